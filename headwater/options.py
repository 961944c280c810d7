"""Options and arguments that several verbs share."""

import functools
import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

import click

from headwater_core.errors import UsageError
from headwater_core.partition import TopicPartition, check_topic_name

if TYPE_CHECKING:
    from headwater.config import Config

_P = ParamSpec("_P")
_R = TypeVar("_R")


_CONFIG_OPTIONS = (
    click.option("--config", "config_file", metavar="FILE", help="Configuration file."),
    click.option("--data-dir", metavar="DIR", help="State of this agent (node.data_dir)."),
    click.option("--log-dir", "log_dirs", metavar="DIR", multiple=True, help="A broker's log directory (log.dirs); may be repeated."),
    click.option("--store", metavar="URL", help="file:///DIR or s3://BUCKET/PREFIX (store.url)."),
    click.option("--endpoint-url", metavar="URL", help="Of an S3 server other than AWS (store.endpoint_url)."),
    click.option("--set", "settings", metavar="KEY=VALUE", multiple=True, help="Any other setting: --set archival.seal_timeout=5m."),
)


def configured(verb: Callable[..., _R]) -> Callable[..., _R]:
    """Give `verb` the options that make up a configuration, and the configuration as its first argument."""

    def with_config(
        config_file: str | None,
        data_dir: str | None,
        log_dirs: Sequence[str],
        store: str | None,
        endpoint_url: str | None,
        settings: Sequence[str],
        **rest: Any,
    ) -> _R:
        named = config_file or click.get_current_context().find_object(str)
        flags = {"node.data_dir": data_dir, "log.dirs": list(log_dirs) or None, "store.url": store, "store.endpoint_url": endpoint_url}
        config = load_config(named, {key: value for key, value in flags.items() if value is not None} | dict(map(_setting, settings)))
        return verb(config, **rest)

    wrapped: Callable[..., _R] = functools.update_wrapper(with_config, verb)  # takes over the options that `verb` has already
    for option in reversed(_CONFIG_OPTIONS):
        wrapped = option(wrapped)
    return wrapped


def load_config(named: str | None, flags: dict[str, object]) -> "Config":
    from headwater.config import load

    return load(Path(named) if named else None, os.environ, flags)


def _setting(text: str) -> tuple[str, object]:
    key, equals, value = text.partition("=")
    if not equals:
        raise UsageError(f"--set {text}: KEY=VALUE expected")
    return key.strip(), value.strip()


class Selection(click.ParamType[str]):
    """TOPIC or TOPIC:PARTITION."""

    name = "TOPIC[:P]"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        try:
            parse_selection(value)
        except UsageError as error:
            self.fail(str(error), param, ctx)
        return str(value)


def parse_selection(text: str) -> tuple[str, int | None]:
    """A topic and, when it names one, a partition. Topic names hold no colon."""
    topic, colon, partition = text.partition(":")
    check_topic_name(topic)
    if not colon:
        return topic, None
    if not re.fullmatch(r"[0-9]{1,10}", partition):
        raise UsageError(f"not a partition: {partition[:80]!r}")
    return topic, TopicPartition(topic, int(partition)).partition


selection_argument = click.argument("selection", metavar="[TOPIC[:P]]", required=False, type=Selection())
