"""Options and arguments that several verbs share."""

import functools
import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, ParamSpec, TypeVar

import click

from headwater import event_log
from headwater.event_log import LogFormat, LogLevel
from headwater_core.errors import UsageError
from headwater_core.partition import TopicPartition, check_topic_name, parse_incarnation

if TYPE_CHECKING:
    from headwater.config import Config

_P = ParamSpec("_P")
_R = TypeVar("_R")


class ProgramOptions(NamedTuple):
    """What was given before the verb. The same options after it count for more."""

    config_file: str | None = None
    log_level: str | None = None
    log_format: str | None = None


def log_options(command: Callable[_P, _R]) -> Callable[_P, _R]:
    level = click.option(
        "--log-level",
        type=click.Choice([each.value for each in LogLevel]),
        help="Which events appear on stderr, from this level up (node.log_level).",
    )
    form = click.option(
        "--log-format",
        type=click.Choice([each.value for each in LogFormat]),
        help="How events read; auto: text on a terminal, else JSON (node.log_format).",
    )
    return level(form(command))


_CONFIG_OPTIONS = (
    click.option("--config", "config_file", metavar="FILE", help="Configuration file."),
    click.option("--data-dir", metavar="DIR", help="State of this agent (node.data_dir)."),
    click.option("--log-dir", "log_dirs", metavar="DIR", multiple=True, help="A broker's log directory (log.dirs); may be repeated."),
    click.option("--store", metavar="URL", help="file:///DIR or s3://BUCKET/PREFIX (store.url)."),
    click.option("--endpoint-url", metavar="URL", help="Of an S3 server other than AWS (store.endpoint_url)."),
    click.option("--set", "settings", metavar="KEY=VALUE", multiple=True, help="Any other setting: --set archival.seal_timeout=5m."),
)


def configured(verb: Callable[..., _R], *, log_level: LogLevel = LogLevel.WARNING) -> Callable[..., _R]:
    """Give `verb` the options that make up a configuration, and the configuration as its first argument; events are written as it says.

    log_level  unless anything else is given
    """

    def with_config(
        config_file: str | None,
        data_dir: str | None,
        log_dirs: Sequence[str],
        store: str | None,
        endpoint_url: str | None,
        settings: Sequence[str],
        **rest: Any,
    ) -> _R:
        program = program_options()
        flags = {
            "node.data_dir": data_dir,
            "log.dirs": list(log_dirs) or None,
            "store.url": store,
            "store.endpoint_url": endpoint_url,
            "node.log_level": rest.pop("log_level") or program.log_level,
            "node.log_format": rest.pop("log_format") or program.log_format,
        }
        given = {key: value for key, value in flags.items() if value is not None} | dict(map(_setting, settings))
        config = load_config(config_file or program.config_file, given)
        event_log.configure(config.node.log_level, config.node.log_format, default=log_level)
        return verb(config, **rest)

    wrapped: Callable[..., _R] = functools.update_wrapper(with_config, verb)  # takes over the options that `verb` has already
    wrapped = log_options(wrapped)
    for option in reversed(_CONFIG_OPTIONS):
        wrapped = option(wrapped)
    return wrapped


def program_options() -> ProgramOptions:
    return click.get_current_context().find_object(ProgramOptions) or ProgramOptions()


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


class IncarnationSelection(click.ParamType[str]):
    """The same, or TOPIC@TOPIC_ID[:PARTITION]."""

    name = "TOPIC[@TOPIC_ID][:P]"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        try:
            parse_incarnation_selection(value)
        except UsageError as error:
            self.fail(str(error), param, ctx)
        return str(value)


def parse_selection(text: str) -> tuple[str, int | None]:
    """A topic and, when it names one, a partition. Topic names hold no colon."""
    topic, colon, partition = text.partition(":")
    check_topic_name(topic)
    return topic, _partition(topic, partition) if colon else None


def parse_incarnation_selection(text: str) -> tuple[str, str | None, int | None]:
    """A topic, its id when an incarnation is named that the name may no longer mean, and a partition when one is named."""
    incarnation, colon, partition = text.partition(":")
    topic, topic_id = parse_incarnation(incarnation)
    return topic, topic_id, _partition(topic, partition) if colon else None


def _partition(topic: str, text: str) -> int:
    if not re.fullmatch(r"[0-9]{1,10}", text):
        raise UsageError(f"not a partition: {text[:80]!r}")
    return TopicPartition(topic, int(text)).partition


selection_argument = click.argument("selection", metavar="[TOPIC[:P]]", required=False, type=Selection())
