"""Options and arguments that several commands share."""

import functools
import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, ParamSpec, TypeVar

import click

from headwater import event_log
from headwater.event_log import LogFormat, LogLevel
from headwater.units import parse_path
from headwater_core.errors import UsageError
from headwater_core.partition import TopicPartition, check_topic_name, parse_incarnation

if TYPE_CHECKING:
    from headwater.config import Config

_P = ParamSpec("_P")
_R = TypeVar("_R")


class ProgramOptions(NamedTuple):
    """The options before the command. The same options after the command override them."""

    config_file: str | None = None
    log_level: str | None = None
    log_format: str | None = None


def log_options(command: Callable[_P, _R]) -> Callable[_P, _R]:
    level = click.option(
        "--log-level",
        type=click.Choice([each.value for each in LogLevel]),
        help="Lowest level of events on stderr (node.log_level).",
    )
    form = click.option(
        "--log-format",
        type=click.Choice([each.value for each in LogFormat]),
        help="Format of events; auto: text on a terminal, else JSON (node.log_format).",
    )
    return level(form(command))


_CONFIG_OPTIONS = (
    click.option("--config", "config_file", metavar="FILE", help="Configuration file.  [default: $HEADWATER_CONFIG, else headwater.toml]"),
    click.option("--data-dir", metavar="DIR", help="Directory for the agent's own state (node.data_dir)."),
    click.option("--log-dir", "log_dirs", metavar="DIR", multiple=True, help="A Kafka broker's log directory (log.dirs). May be repeated."),
    click.option("--store", metavar="URL", help="The bucket: s3://BUCKET/PREFIX or file:///DIR (store.url)."),
    click.option("--endpoint-url", metavar="URL", help="Endpoint of an S3 server other than AWS (store.endpoint_url)."),
    click.option(
        "--set",
        "settings",
        metavar="KEY=VALUE",
        multiple=True,
        help="Any other setting, such as archival.seal_timeout=5m. May be repeated.",
    ),
)


def configured(verb: Callable[..., _R], *, log_level: LogLevel = LogLevel.WARNING, takes_reload: bool = False) -> Callable[..., _R]:
    """Give `verb` the options that make up a configuration, and the configuration as its first argument. Also configures events.

    log_level     the default one
    takes_reload  `verb` also gets `reload`, which reads the configuration again, with the same options
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
        reload = functools.partial(load_config, config_file or program.config_file, given)
        config = reload()
        if takes_reload:
            rest["reload"] = reload
        event_log.configure(config.node.log_level, config.node.log_format, default=log_level)
        return verb(config, **rest)

    wrapped: Callable[..., _R] = functools.update_wrapper(with_config, verb)  # takes over the options that `verb` has already
    wrapped = log_options(wrapped)
    for option in reversed(_CONFIG_OPTIONS):
        wrapped = option(wrapped)
    return wrapped


def program_options() -> ProgramOptions:
    return click.get_current_context().find_object(ProgramOptions) or ProgramOptions()


def configure_events() -> None:
    """For a verb without a configuration: the options before it alone say which events are written, to stderr as always."""
    program = program_options()
    event_log.configure(LogLevel(program.log_level or LogLevel.AUTO), LogFormat(program.log_format or LogFormat.AUTO))


def load_config(named: str | None, flags: dict[str, object]) -> "Config":
    from headwater.config import load

    return load(parse_path(named) if named else None, os.environ, flags)


def _setting(text: str) -> tuple[str, object]:
    key, equals, value = text.partition("=")
    if not equals:
        raise UsageError(f"--set {text}: KEY=VALUE expected")
    return key.strip(), value.strip()


class LocalPath(click.Path):
    """A path on this machine, and not a URL."""

    def __init__(self, *, dir_okay: bool = True) -> None:
        super().__init__(path_type=Path, dir_okay=dir_okay)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        try:
            return super().convert(parse_path(value), param, ctx)
        except UsageError as error:
            self.fail(str(error), param, ctx)


class SelectionType(click.ParamType[str]):
    """TOPIC or TOPIC:PARTITION."""

    name = "TOPIC[:P]"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        try:
            parse_selection(value)
        except UsageError as error:
            self.fail(str(error), param, ctx)
        return str(value)


class IncarnationSelection(click.ParamType[str]):
    """TOPIC or TOPIC:PARTITION, of the current incarnation or of TOPIC@TOPIC_ID."""

    name = "TOPIC[@TOPIC_ID][:P]"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        try:
            parse_incarnation_selection(value)
        except UsageError as error:
            self.fail(str(error), param, ctx)
        return str(value)


def parse_selection(text: str) -> tuple[str, int | None]:
    """(topic, partition or None) from TOPIC or TOPIC:PARTITION. Topic names have no colon. Raises UsageError."""
    topic, colon, partition = text.partition(":")
    check_topic_name(topic)
    return topic, _partition(topic, partition) if colon else None


def parse_incarnation_selection(text: str) -> tuple[str, str | None, int | None]:
    """(topic, topic id or None, partition or None) from TOPIC[@TOPIC_ID][:PARTITION]. Raises UsageError."""
    incarnation, colon, partition = text.partition(":")
    topic, topic_id = parse_incarnation(incarnation)
    return topic, topic_id, _partition(topic, partition) if colon else None


def _partition(topic: str, text: str) -> int:
    if not re.fullmatch(r"[0-9]{1,10}", text):
        raise UsageError(f"not a partition number: {text[:80]!r}")
    return TopicPartition(topic, int(text)).partition


selection_argument = click.argument("selection", metavar="[TOPIC[:P]]", required=False, type=SelectionType())
from_option = click.option(
    "--from",
    "first",
    metavar="WHERE",
    default="earliest",
    show_default=True,
    help="Start: earliest, an offset, or a time such as 2026-01-31T12:00:00Z.",
)
to_option = click.option(
    "--to", "end", metavar="WHERE", default="latest", show_default=True, help="End, exclusive: latest, an offset, or a time."
)


def isolation_option(default: str) -> Callable[[Callable[_P, _R]], Callable[_P, _R]]:
    return click.option(
        "--isolation",
        type=click.Choice(["read_uncommitted", "read_committed"]),
        default=default,
        show_default=True,
        help="As a consumer's isolation.level.",
    )
