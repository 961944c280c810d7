"""Configuration: a TOML file, then the environment, then flags. The one module that reads either.

Every section is a frozen value that the package it configures declares. A field named `..._s` is written without that
ending and takes a duration (seal_timeout = "30m"); one that counts `..._bytes` takes a size (cache_bytes = "20GiB").
"""

import difflib
import fnmatch
import math
import os
import re
import tomllib
import types
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from enum import Enum
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from archival.config import ArchivalConfig
from headwater.event_log import LogFormat, LogLevel
from headwater.gateway.config import GatewayConfig
from headwater.units import duration_text, parse_duration, parse_size, size_text
from headwater_core.control.config import ControlConfig
from headwater_core.errors import UsageError
from headwater_core.objectstore.config import StoreConfig
from hydration.config import HydrationConfig

DEFAULT_FILE = Path("headwater.toml")
PREFIX = "HEADWATER_"
_NOT_SETTINGS = {"HEADWATER_CONFIG"}  # environment variables with another job
_SERVICE_LINK = re.compile(r"HEADWATER_(\w+_)?(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT(_[0-9]+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)?)")
"""What Kubernetes puts into every pod of a namespace that has a Service called headwater, or headwater-…."""
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeConfig:
    """This agent. data_dir holds its state: lock, control journal, manifest index, cache, local socket.

    only_agent   no other one writes to the bucket, so a store without conditional writes will do
    log_level    the least level of the events on stderr
    log_format   how they read
    """

    id: str = "headwater"
    data_dir: Path = Path("/var/lib/headwater")
    only_agent: bool = False
    log_level: LogLevel = LogLevel.AUTO
    log_format: LogFormat = LogFormat.AUTO

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[A-Za-z0-9._-]{1,64}", self.id):
            raise UsageError(f"node.id {self.id[:80]!r} is not 1 to 64 of A-Z a-z 0-9 . _ -")


@dataclass(frozen=True, slots=True, kw_only=True)
class LogConfig:
    """The broker's log directories.

    metadata_dir  the broker's metadata.log.dir, when it is set there; it tells who leads
    owned         no broker runs here, headwater itself deletes what it has archived
    """

    dirs: tuple[Path, ...] = ()
    metadata_dir: Path | None = None
    layout: str = "kafka"
    owned: bool = False

    def __post_init__(self) -> None:
        if self.layout != "kafka":
            raise UsageError(f"log.layout {self.layout!r} is not known; this version reads kafka")


_SECTIONS: Mapping[str, type[Any]] = {
    "node": NodeConfig,
    "log": LogConfig,
    "store": StoreConfig,
    "archival": ArchivalConfig,
    "hydration": HydrationConfig,
    "control": ControlConfig,
    "gateway": GatewayConfig,
}
_PER_TOPIC = {  # key: whose it overrides
    "read_priority": "hydration",
    "seal_timeout": "archival",
    "release": "archival",
    "begin_anew_epoch": "archival",
    "stale_keys_below": "archival",
}


@dataclass(frozen=True, slots=True)
class TopicRule:
    """Values for the topics whose name matches `pattern` (with `*` and `?`; without them it names one topic)."""

    pattern: str
    values: Mapping[str, Any]  # key as it is written: parsed value

    @property
    def names_one_topic(self) -> bool:
        return not set(self.pattern) & set("*?[")


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """Everything that was said, checked. `origins` tells where: "store.url" -> "headwater.toml"; defaults are absent."""

    node: NodeConfig
    log: LogConfig
    store: StoreConfig
    archival: ArchivalConfig
    hydration: HydrationConfig
    control: ControlConfig
    gateway: GatewayConfig
    topics: tuple[TopicRule, ...] = ()
    origins: Mapping[str, str] = field(default_factory=dict)

    def archival_for(self, topic: str) -> ArchivalConfig:
        return self._with_rules(topic, "archival", self.archival)

    def hydration_for(self, topic: str) -> HydrationConfig:
        return self._with_rules(topic, "hydration", self.hydration)

    def _with_rules(self, topic: str, section: str, value: _T) -> _T:
        """Patterns apply in the file's order, later ones over earlier ones; the topic's own name comes last."""
        for rule in sorted(self.topics, key=lambda rule: rule.names_one_topic):
            if fnmatch.fnmatchcase(topic, rule.pattern):
                told = {_keys(section)[key]: said for key, said in rule.values.items() if _PER_TOPIC[key] == section}
                value = replace(value, **told)  # type: ignore[type-var]
        return value


def load(file: Path | None, environ: Mapping[str, str], flags: Mapping[str, object]) -> Config:
    """The configuration from `file` (headwater.toml when None, if there is one), the environment and flags.

    flags   dotted keys: {"store.url": ...}

    Raises UsageError for an unknown key, a value of the wrong kind, and a file that was named but cannot be read.
    """
    name, document = _read(file, environ)
    said: dict[str, tuple[object, str]] = {}
    topics = document.pop("topics", {})
    if not isinstance(topics, dict):
        raise UsageError(f"{name}: [topics] must be a section, not a value")
    for section, values in document.items():
        if section not in _SECTIONS:
            raise UsageError(f"{name}: unknown section [{section}]{_nearest(section, [*_SECTIONS, 'topics'])}")
        if not isinstance(values, dict):
            raise UsageError(f"{name}: [{section}] must be a section, not a value")
        said |= {f"{section}.{key}": (value, name) for key, value in values.items()}
    for variable, text in environ.items():
        if variable.startswith(PREFIX) and variable not in _NOT_SETTINGS and not _SERVICE_LINK.fullmatch(variable):
            said[_dotted(variable)] = (text, f"${variable}")
    said |= {key: (value, "a flag") for key, value in flags.items()}
    sections = {section: _build(section, kind, said) for section, kind in _SECTIONS.items() if section != "store"}
    for key, (_, origin) in said.items():
        if key.partition(".")[2] not in _keys(key.partition(".")[0]):
            raise UsageError(f"{origin}: unknown key {key!r}{_nearest(key, _all_keys())}")
    if "store.url" not in said:
        said["store.url"] = (f"file://{sections['node'].data_dir.absolute()}/archive", "the data directory")
    return Config(
        **sections,
        store=_build("store", StoreConfig, said),
        topics=tuple(_rule(name, pattern, values) for pattern, values in topics.items()),
        origins={key: origin for key, (_, origin) in said.items()},
    )


def shown(config: Config) -> Iterable[tuple[str, str, str]]:
    """(key, value as it would be written, origin) of every setting."""
    for section in _SECTIONS:
        for key, name in _keys(section).items():
            yield (
                f"{section}.{key}",
                _written(name, getattr(getattr(config, section), name)),
                config.origins.get(f"{section}.{key}", "default"),
            )
    for rule in config.topics:
        for key, value in rule.values.items():
            yield f'topics."{rule.pattern}".{key}', _written(_keys(_PER_TOPIC[key])[key], value), "the file"


def _read(file: Path | None, environ: Mapping[str, str]) -> tuple[str, dict[str, Any]]:
    named = file or (Path(environ["HEADWATER_CONFIG"]) if environ.get("HEADWATER_CONFIG") else None)
    path = named or DEFAULT_FILE
    try:
        return str(path), tomllib.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        if named is None:
            return str(path), {}
        raise UsageError(f"no configuration file {path}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"cannot read the configuration {path}: {error}") from error
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"{path} is not TOML: {error}") from error


def _build(section: str, kind: type[_T], said: Mapping[str, tuple[object, str]]) -> _T:
    hints = typing.get_type_hints(kind)
    values = {}
    for key, name in _keys(section).items():
        if f"{section}.{key}" in said:
            value, origin = said[f"{section}.{key}"]
            values[name] = _parsed(name, hints[name], value, f"{origin}: {section}.{key}")
    try:
        return kind(**values)
    except ValueError as error:
        raise UsageError(f"[{section}]: {error}") from error


def _rule(file: str, pattern: str, values: object) -> TopicRule:
    where = f'{file}: [topics."{pattern}"]'
    if not re.fullmatch(r"[A-Za-z0-9._*?\[\]!-]{1,249}", pattern) or pattern.count("[") != pattern.count("]"):
        raise UsageError(f"{where} is no topic name and no pattern (A-Z a-z 0-9 . _ - and * ? [ ])")
    if not isinstance(values, dict):
        raise UsageError(f"{where} must be a section, not a value")
    parsed = {}
    for key, value in values.items():
        if key not in _PER_TOPIC:
            raise UsageError(f"{where}: unknown key {key!r}{_nearest(key, _PER_TOPIC)}")
        section = _PER_TOPIC[key]
        name = _keys(section)[key]
        parsed[key] = _parsed(name, typing.get_type_hints(_SECTIONS[section])[name], value, f"{where} {key}")
    return TopicRule(pattern, parsed)


@cache
def _keys(section: str) -> Mapping[str, str]:
    """Key as it is written -> field name."""
    if section not in _SECTIONS:
        return {}
    names = [each.name for each in fields(_SECTIONS[section])]
    return {name.removesuffix("_s") if _is_duration(name) else name: name for name in names}


def _is_duration(name: str) -> bool:
    return name.endswith("_s") and not name.endswith("_per_s")


def _is_size(name: str) -> bool:
    return name.endswith(("_bytes", "_bytes_max", "_bytes_per_s"))


def _all_keys() -> list[str]:
    return [f"{section}.{key}" for section in _SECTIONS for key in _keys(section)]


def _dotted(variable: str) -> str:
    known = {PREFIX + key.replace(".", "_").upper(): key for key in _all_keys()}
    if variable not in known:
        raise UsageError(f"unknown environment variable {variable}{_nearest(variable, known)}")
    return known[variable]


def _nearest(key: str, known: Iterable[str]) -> str:
    names = list(known)
    near = difflib.get_close_matches(key, names, n=1, cutoff=0.6) or difflib.get_close_matches(
        key.rpartition(".")[2], [name.rpartition(".")[2] for name in names], n=1, cutoff=0.6
    )
    if not near:
        return f"; known are {', '.join(sorted(names))}" if len(names) < 12 else ""
    return f"; did you mean {next(name for name in names if name == near[0] or name.endswith('.' + near[0]))!r}?"


def _parsed(name: str, kind: Any, value: object, where: str) -> Any:
    """`value`, from TOML or text, as the field `name` of type `kind` wants it."""
    try:
        if _is_duration(name):
            return kind(parse_duration(value)) if isinstance(value, str) else _refuse(value, 'a duration such as "30m"')
        if _is_size(name):
            return parse_size(str(value)) if _is_a(value, str, int) else _refuse(value, 'a size such as "20GiB"')
        return _convert(kind, value)
    except (UsageError, ValueError, OverflowError) as error:
        raise UsageError(f"{where}: {error}") from error


def _convert(kind: Any, value: object) -> Any:
    if typing.get_origin(kind) in (typing.Union, types.UnionType):
        return _convert(next(arm for arm in typing.get_args(kind) if arm is not types.NoneType), value)
    if typing.get_origin(kind) in (tuple, Sequence):
        parts = value.split(",") if isinstance(value, str) else value if isinstance(value, list | tuple) else _refuse(value, "a list")
        return tuple(_convert(typing.get_args(kind)[0], part.strip() if isinstance(part, str) else part) for part in parts if part != "")
    if kind is bool:
        text = str(value).lower() if isinstance(value, str | bool) else ""
        return text == "true" if text in ("true", "false") else _refuse(value, "true or false")
    if kind is Path:
        return Path(value).expanduser() if isinstance(value, str | os.PathLike) else _refuse(value, "a path")
    if isinstance(kind, type) and issubclass(kind, Enum):
        parse: Callable[[object], Enum] = getattr(kind, "parse", kind)
        return parse(value)
    if kind is str:
        return value if isinstance(value, str) else _refuse(value, "text")
    if kind is int:
        return int(value) if isinstance(value, str | int) and not isinstance(value, bool) else _refuse(value, "a whole number")
    if kind is float:
        number = float(value) if isinstance(value, str | int | float) and not isinstance(value, bool) else math.nan
        return number if math.isfinite(number) else _refuse(value, "a number")
    raise TypeError(f"no rule for a setting of type {kind}")


def _is_a(value: object, *kinds: type) -> bool:
    return isinstance(value, kinds) and not isinstance(value, bool)


def _refuse(value: object, wanted: str) -> Any:
    raise UsageError(f"{wanted} expected, not {value!r}")


def _written(name: str, value: object) -> str:
    if value is None:
        return ""
    if name == "password":
        return "(set)"
    if _is_duration(name) and isinstance(value, int | float):
        return duration_text(value)
    if _is_size(name) and isinstance(value, int):
        return size_text(value)
    if isinstance(value, tuple):
        return ", ".join(str(part) for part in value)
    if isinstance(value, Enum):
        return str(value.value)
    return str(value).lower() if isinstance(value, bool) else str(value)
