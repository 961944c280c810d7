"""Configuration: a TOML file, then the environment, then flags. The one module that reads either.

Every section is a frozen value that the package it configures declares.
"""

import difflib
import fnmatch
import re
import tomllib
import typing
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from functools import cache
from itertools import combinations_with_replacement
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from archival.config import ArchivalConfig, ClusterConfig
from headwater.admin.config import AdminConfig
from headwater.drill.config import DrillConfig
from headwater.event_log import LogFormat, LogLevel
from headwater.gateway.config import GatewayConfig
from headwater.pattern_overlap import common_name
from headwater.setting_values import exact_text, key_of, parse_value, value_text
from headwater.units import parse_path
from headwater_core.control.config import ControlConfig
from headwater_core.errors import UsageError
from headwater_core.layouts.chunks.chunks_layout import ChunksLayout
from headwater_core.objectstore.config import StoreConfig
from hydration.config import HydrationConfig
from manifests.keys import parse_manifest
from manifests.setting_list import SettingList, check_pattern

DEFAULT_FILE = Path("headwater.toml")
PREFIX = "HEADWATER_"
_NOT_SETTINGS = {"HEADWATER_CONFIG"}  # environment variables with another job
_SERVICE_LINK = re.compile(r"HEADWATER_(\w+_)?(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT(_[0-9]+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)?)")
"""Variables that Kubernetes sets in every pod of a namespace that has a Service named headwater, or headwater-…."""
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeConfig:
    """This agent. data_dir holds its state: lock, control journal, manifest index, cache, local socket.

    only_agent   no other agent writes to the bucket, so a store without conditional writes is enough
    log_level    the lowest level of the events on stderr
    log_format   their form: for people, or JSON
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

    metadata_dir  the broker's metadata.log.dir, when it is set there; it names the leaders
    owned         no broker runs here: headwater itself deletes what it has archived
    bootstrap_servers  host:port of brokers of the cluster; this node's own is found by them, and asked what is committed
    client_properties  how to connect to it, as Kafka's tools take it with --command-config
    server_properties  the broker's own file: how long it keeps a log where neither topic nor cluster say so
    """

    dirs: tuple[Path, ...] = ()
    metadata_dir: Path | None = None
    layout: str = "kafka"
    owned: bool = False
    bootstrap_servers: tuple[str, ...] = ()
    client_properties: Path | None = None
    server_properties: Path | None = None

    def __post_init__(self) -> None:
        for each in self.bootstrap_servers:
            if not re.fullmatch(r"[^\s:]+:\d{1,5}|\[[0-9A-Fa-f:.]+\]:\d{1,5}", each):
                raise UsageError(f"log.bootstrap_servers: {each[:80]!r} is not host:port")
        if self.owned and self.bootstrap_servers:
            raise UsageError("log.bootstrap_servers: in an owned directory (log.owned) there is no broker to ask")
        if self.layout != "kafka":
            raise UsageError(f"log.layout {self.layout!r} is not known; this version reads kafka")


_SECTIONS: Mapping[str, type[Any]] = {
    "node": NodeConfig,
    "log": LogConfig,
    "store": StoreConfig,
    "archival": ArchivalConfig,
    "cluster": ClusterConfig,
    "hydration": HydrationConfig,
    "control": ControlConfig,
    "gateway": GatewayConfig,
    "admin": AdminConfig,
    "drill": DrillConfig,
}
_PER_TOPIC = {  # key: the section that it overrides
    "earliest": "gateway",
    "read_priority": "hydration",
    "archive": "archival",
    "layout": "archival",
    "chunk_variant": "archival",
    "chunk_bytes": "archival",
    "chunks_in_flight": "archival",
    "chunk_commit_bytes": "archival",
    "chunk_commit_age": "archival",
    "offload": "archival",
    "seal_timeout": "archival",
    "offload_after": "archival",
    "offload_when_local_exceeds": "archival",
    "max_segment_bytes": "archival",
    "max_segment_age": "archival",
    "release": "archival",
    "release_past_groups": "archival",
    "release_ignore_groups_after": "archival",
    "release_keep_bytes": "archival",
    "release_keep_ms": "archival",
    "begin_anew_epoch": "archival",
    "stale_keys_below": "archival",
    "recover_from": "archival",
    "retention": "archival",
    "retention_bytes": "archival",
    "superseded_retention": "archival",
    "merge_bytes": "archival",
    "merge_after": "archival",
    "min_saved_percent": "archival",
}


_BY_COMMAND = (
    "read_priority",
    "archive",
    "offload_after",
    "offload_when_local_exceeds",
)  # of these; all agents take them up from the bucket
_COMMAND = "a command"
FLAG, DATA_DIRECTORY = "a flag", "the data directory"  # origins of settings


class Alias(NamedTuple):
    """The key of ours that another name stands for, and the unit of its number; "bucket" for the name of one, "" for a value of ours."""

    key: str
    unit: str = ""


_ALIASES = {  # as the proposals of Pulsar call them, and RocketMQ's
    "tieredReadPriority": Alias("read_priority"),
    "offloadTimeInMinutes": Alias("offload_after", "m"),
    "offloadSizeInMB": Alias("offload_when_local_exceeds", "MiB"),
    "maxSizePerOffloadSegmentMbytes": Alias("max_segment_bytes", "MiB"),
    "maxOffloadSegmentRolloverTimeMinutes": Alias("max_segment_age", "m"),
    "s3ChunkSize": Alias("chunk_bytes"),
    "s3ClientThreadNum": Alias("chunks_in_flight"),
    "tieredStoreGroupCommitSize": Alias("chunk_commit_bytes"),
}
_SECTION_ALIASES = {  # as the proposal to put RocketMQ's tiered storage on S3 calls them
    "store": {"s3Region": Alias("region"), "s3Bucket": Alias("url", "bucket")},
    "hydration": {"readaheadChunkNum": Alias("readahead_chunks")},
}
_REFUSED = ("s3AccessKey", "s3SecretAccessKey")
_BUCKET = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")
_CREDENTIALS = (
    "credentials never stand in the configuration; boto3's own chain finds them: "
    "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY in the environment, a profile of ~/.aws, or the role of the machine"
)


@dataclass(frozen=True, slots=True)
class TopicRule:
    """Values for the topics whose name matches `pattern` (with `*` and `?`; without them it names one topic).

    origin  where they were set: the file, or a command
    """

    pattern: str
    values: Mapping[str, Any]  # key as it is written: parsed value
    origin: str = "the file"

    @property
    def names_one_topic(self) -> bool:
        return not set(self.pattern) & set("*?[")


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """Every setting, checked. `origins` has where it was set: "store.url" -> "headwater.toml"; defaults are absent.

    topics     in the order of the file
    commanded  what was set by command, for all agents of the archive, the strongest last
    """

    node: NodeConfig
    log: LogConfig
    store: StoreConfig
    archival: ArchivalConfig
    cluster: ClusterConfig
    hydration: HydrationConfig
    control: ControlConfig
    gateway: GatewayConfig
    admin: AdminConfig
    drill: DrillConfig
    topics: tuple[TopicRule, ...] = ()
    commanded: tuple[TopicRule, ...] = ()
    origins: Mapping[str, str] = field(default_factory=dict)

    def archival_for(self, topic: str) -> ArchivalConfig:
        return self._with_rules(topic, "archival", self.archival)

    @property
    def may_write_chunks(self) -> bool:
        """Is there a topic, or may there be one, whose layout is "chunks"?"""
        return ChunksLayout.name in (self.archival.layout, *(rule.values.get("layout") for rule in self.topics))

    def hydration_for(self, topic: str) -> HydrationConfig:
        return self._with_rules(topic, "hydration", self.hydration)

    def gateway_for(self, topic: str) -> GatewayConfig:
        return self._with_rules(topic, "gateway", self.gateway)

    def origin_for(self, topic: str, key: str) -> str:
        """Where the value that holds for `topic` was set, for people. key: one that may be set for a topic"""
        rules = [rule for rule in self._rules_for(topic) if key in rule.values]
        if not rules:
            setting = f"{_PER_TOPIC[key]}.{key}"
            return f"{setting} of {self.origins[setting]}" if setting in self.origins else "default"
        rule = rules[-1]
        return f"{rule.origin}, for {'the topic' if rule.names_one_topic else f'the pattern {rule.pattern}'}"

    def with_commands(self, settings: SettingList) -> "Config":
        """As it is with what was set by command, and nothing else was. What this version does not know is left out."""
        found: dict[str, dict[str, Any]] = {}
        for each in settings.settings:
            with suppress(UsageError):
                value = parse_commanded(each.key, each.value)
                found[each.pattern] = {**found.pop(each.pattern, {}), each.key: value}
        return replace(self, commanded=_by_strength(TopicRule(pattern, values, _COMMAND) for pattern, values in found.items()))

    def _with_rules(self, topic: str, section: str, value: _T) -> _T:
        for rule in self._rules_for(topic):
            values = {_keys(section)[key]: each for key, each in rule.values.items() if _PER_TOPIC[key] == section}
            value = replace(value, **values)  # type: ignore[type-var]
        return value

    def _rules_for(self, topic: str) -> Iterator[TopicRule]:
        """Those that match, the strongest last: patterns in the file's order, the topic's own name in the file; then the same of what was
        set by command."""
        for rules in (_by_strength(self.topics), self.commanded):
            for rule in rules:
                if rule.pattern == topic or fnmatch.fnmatchcase(topic, rule.pattern):
                    yield rule


def _by_strength(rules: Iterable[TopicRule]) -> tuple[TopicRule, ...]:
    """The strongest last: patterns in their order, then names."""
    return tuple(sorted(rules, key=lambda rule: rule.names_one_topic))


class Given(NamedTuple):
    """A value as it was set, unchecked, and where: a file, a variable of the environment, a flag."""

    value: object
    origin: str


def load(file: Path | None, environ: Mapping[str, str], flags: Mapping[str, object]) -> Config:
    """The configuration from `file` (headwater.toml when None, if there is one), the environment and flags.

    flags   dotted keys: {"store.url": ...}

    Raises UsageError for an unknown key, a value of the wrong kind, and a file that was named but cannot be read.
    """
    name, document = _read(file, environ)
    topics = document.pop("topics", {})
    if not isinstance(topics, dict):
        raise UsageError(f"{name}: [topics] must be a section, not a value")
    given = _given_in_file(name, document) | _given_in_environment(environ) | _given_by_flags(flags)
    sections = {section: _build(section, kind, given) for section, kind in _SECTIONS.items() if section != "store"}
    for key, each in given.items():
        if key == "archival.recover_from":
            raise UsageError(f'{each.origin}: recover_from is for one topic, under its own [topics."NAME"]')
        if key.partition(".")[2] not in _keys(key.partition(".")[0]):
            raise UsageError(f"{each.origin}: unknown key {key!r}{_nearest(key, _all_keys())}")
    if "store.url" not in given:
        given["store.url"] = Given(f"file://{sections['node'].data_dir.absolute()}/archive", DATA_DIRECTORY)
    rules = tuple(_rule(name, pattern, values) for pattern, values in topics.items())
    config = Config(
        **sections,
        store=_build("store", StoreConfig, given),
        topics=rules,
        origins={key: each.origin for key, each in given.items()},
    )
    _check_layouts(config)
    return config


def _check_layouts(config: Config) -> None:
    """Raises UsageError where a layout and an offload were set that do not go together: under [archival], or for a topic that there may be,
    by what holds for it of all that was set. One topic is tried for each rule, and for each two that overlap."""
    config.archival.check_layout(is_set="archival.layout" in config.origins)
    patterns = [rule.pattern for rule in config.topics if rule.values.keys() & {"layout", "offload"}]
    for one, other in combinations_with_replacement(patterns, 2):
        topic = common_name(one, other)
        if topic is None:
            continue
        layout, offload = (config.origin_for(topic, key) for key in ("layout", "offload"))
        try:
            config.archival_for(topic).check_layout(is_set=layout != "default")
        except UsageError as error:
            raise UsageError(f"a topic named {topic}: {error} (the layout: {layout}; the offload: {offload})") from error


def parse_commanded(key: str, text: str) -> Any:
    """The value of a setting of a topic that may be set by command. Raises UsageError."""
    text, key = str(_own_value(key, text, key)), own_key(key)
    if key not in _BY_COMMAND:
        known = f"{key!r} is set in the configuration file" if key in _PER_TOPIC else f"unknown key {key!r}{_nearest(key, _BY_COMMAND)}"
        raise UsageError(f"{known}; by command: {', '.join(_BY_COMMAND)}")
    section = _PER_TOPIC[key]
    name = _keys(section)[key]
    return parse_value(name, typing.get_type_hints(_SECTIONS[section])[name], text, key)


def commanded_text(key: str, text: str) -> str:
    """The same value as it is written in the bucket, whatever alias it was given by. Raises UsageError."""
    value = parse_commanded(key, text)
    return exact_text(_keys(_PER_TOPIC[own_key(key)])[own_key(key)], value)


def own_key(key: str) -> str:
    """The key of a topic's setting by our own name, whatever alias it was given by."""
    return _ALIASES[key].key if key in _ALIASES else key


def _own_value(key: str, value: object, where: str) -> object:
    """The value as our own key has it: with the unit that is part of an alias's name. Raises UsageError, which begins with `where`."""
    found = next((each[key] for each in (_ALIASES, *_SECTION_ALIASES.values()) if key in each), None)
    unit = found.unit if found else ""
    if not unit:
        return value
    if unit == "bucket":
        if not isinstance(value, str) or not _BUCKET.fullmatch(value):
            raise UsageError(f"{where}: the name of a bucket expected, not {value!r}")
        return f"s3://{value}"
    if isinstance(value, bool) or not re.fullmatch(r"[0-9]{1,15}", str(value)):
        raise UsageError(f"{where}: a whole number of {'minutes' if unit == 'm' else 'MiB'} expected, not {value!r}")
    return f"{value}{unit}"


def shown(config: Config) -> Iterable[tuple[str, str, str]]:
    """(key, value for people, origin) of every setting."""
    for section in _SECTIONS:
        for key, name in _keys(section).items():
            yield (
                f"{section}.{key}",
                value_text(name, getattr(getattr(config, section), name)),
                config.origins.get(f"{section}.{key}", "default"),
            )
    for rule in config.topics:
        for key, value in rule.values.items():
            yield f'topics."{rule.pattern}".{key}', value_text(_keys(_PER_TOPIC[key])[key], value), "the file"


def setting(config: Config, key: str) -> object:
    """Return the value of a dotted key; None for one that is not known."""
    section, _, name = key.partition(".")
    return getattr(getattr(config, section), _keys(section)[name]) if name in _keys(section) else None


def setting_text(config: Config, key: str) -> str:
    """Return the same as text, equal where the values are; a password is not shown."""
    section, _, name = key.partition(".")
    return exact_text(_keys(section)[name], setting(config, key)) if name in _keys(section) else ""


class RuleValue(NamedTuple):
    """One setting for the topics whose name matches `pattern`, as text. by, since_ms: who has set it, and when; "" and 0 in a file."""

    pattern: str
    key: str
    value: str
    origin: str
    by: str = ""
    since_ms: int = 0


def rule_values(config: Config, settings: SettingList, selection: str) -> Iterator[RuleValue]:
    """What the file and commands say of a topic, archived or not; of a pattern, and of all patterns and names that it matches.

    settings   what was set by command, also what this version does not know
    """

    def concerns(pattern: str) -> bool:
        one, other = (selection, pattern) if TopicRule(selection, {}).names_one_topic else (pattern, selection)
        return one == other or fnmatch.fnmatchcase(one, other)

    for rule in filter(lambda rule: concerns(rule.pattern), config.topics):
        for key, value in rule.values.items():
            yield RuleValue(rule.pattern, key, exact_text(_keys(_PER_TOPIC[key])[key], value), rule.origin)
    for each in settings.settings:
        if concerns(each.pattern):
            yield RuleValue(each.pattern, each.key, each.value, _COMMAND, each.by, each.since_ms)


def _read(file: Path | None, environ: Mapping[str, str]) -> tuple[str, dict[str, Any]]:
    named = file or (parse_path(environ["HEADWATER_CONFIG"]) if environ.get("HEADWATER_CONFIG") else None)
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


def _given_in_file(name: str, document: Mapping[str, object]) -> dict[str, Given]:
    given: dict[str, Given] = {}
    for section, values in document.items():
        if section not in _SECTIONS:
            _check_no_credential(name, section)
            raise UsageError(f"{name}: unknown section [{section}]{_nearest(section, [*_SECTIONS, 'topics'])}")
        if not isinstance(values, dict):
            raise UsageError(f"{name}: [{section}] must be a section, not a value")
        for key, value in values.items():
            _take(given, f"{section}.{key}", Given(value, name))
    return given


def _given_by_flags(flags: Mapping[str, object]) -> dict[str, Given]:
    given: dict[str, Given] = {}
    for key, value in flags.items():
        _take(given, key, Given(value, FLAG))
    return given


def _take(given: dict[str, Given], dotted: str, each: Given) -> None:
    """Add one setting to what the same source gave, by our own name and in our unit. Raises UsageError for one that is there already, by
    the other name, and for a credential."""
    section, _, key = dotted.partition(".")
    _check_no_credential(each.origin, dotted.rpartition(".")[2])
    alias = _SECTION_ALIASES.get(section, {}).get(key)
    own = alias.key if alias else own_key(key) if section == _PER_TOPIC.get(own_key(key)) else key
    named = f"{section}.{own}" if own != key else dotted
    if named in given:
        raise UsageError(f"{each.origin}: {named} is given twice, once as {key}")
    given[named] = Given(_own_value(key, each.value, f"{each.origin}: {dotted}"), each.origin) if own != key else each


def _check_no_credential(where: str, key: str) -> None:
    """Raises UsageError for a key of a credential, without its value."""
    if key in _REFUSED:
        raise UsageError(f"{where}: {key}: {_CREDENTIALS}")


def _given_in_environment(environ: Mapping[str, str]) -> dict[str, Given]:
    ours = [name for name in environ if name.startswith(PREFIX) and name not in _NOT_SETTINGS and not _is_service_link(name)]
    given: dict[str, Given] = {}
    for name in ours:
        for refused in _REFUSED:
            if name.endswith(refused.upper()):
                raise UsageError(f"${name}: {refused}: {_CREDENTIALS}")
        _take(given, _dotted(name), Given(environ[name], f"${name}"))
    return given


def _is_service_link(name: str) -> bool:
    return _SERVICE_LINK.fullmatch(name) is not None and name not in _variables()


def _build(section: str, kind: type[_T], given: Mapping[str, Given]) -> _T:
    hints = typing.get_type_hints(kind)
    values = {}
    for key, name in _keys(section).items():
        if f"{section}.{key}" in given:
            value, origin = given[f"{section}.{key}"]
            values[name] = parse_value(name, hints[name], value, f"{origin}: {section}.{key}")
    try:
        return kind(**values)
    except ValueError as error:
        raise UsageError(f"[{section}]: {error}") from error


def _rule(file: str, pattern: str, values: object) -> TopicRule:
    where = f'{file}: [topics."{pattern}"]'
    try:
        check_pattern(pattern)
    except UsageError as error:
        raise UsageError(f"{where}: {error}") from error
    if not isinstance(values, dict):
        raise UsageError(f"{where} must be a section, not a value")
    parsed = {}
    for given, value in values.items():
        _check_no_credential(where, given)
        key = own_key(given)
        if key in parsed:
            raise UsageError(f"{where}: {key} is given twice, once as {given}")
        if key not in _PER_TOPIC:
            raise UsageError(f"{where}: unknown key {key!r}{_nearest(key, _PER_TOPIC)}")
        section = _PER_TOPIC[key]
        name = _keys(section)[key]
        own = _own_value(given, value, f"{where} {given}")
        parsed[key] = parse_value(name, typing.get_type_hints(_SECTIONS[section])[name], own, f"{where} {given}")
    rule = TopicRule(pattern, parsed)
    if (manifest := parsed.get("recover_from")) is not None:
        if not rule.names_one_topic:
            raise UsageError(f"{where} recover_from: one manifest is for one topic, by its name")
        if (found := parse_manifest(manifest)) is None or found.partition is not None:
            raise UsageError(f"{where} recover_from: {manifest[:200]!r} is no topic manifest: meta/TOPIC/TOPIC_ID/topic.json")
    return rule


@cache
def _keys(section: str) -> Mapping[str, str]:
    """Key as it is written -> field name."""
    if section not in _SECTIONS:
        return {}
    names = [each.name for each in fields(_SECTIONS[section])]
    return {key_of(name): name for name in names}


def _all_keys() -> list[str]:
    return [f"{section}.{key}" for section in _SECTIONS for key in _keys(section)]


def _all_aliases() -> list[str]:
    of_topics = [f"{_PER_TOPIC[alias.key]}.{name}" for name, alias in _ALIASES.items()]
    return of_topics + [f"{section}.{name}" for section, aliases in _SECTION_ALIASES.items() for name in aliases]


@cache
def _variables() -> Mapping[str, str]:
    """Variable of the environment -> key."""
    return {PREFIX + key.replace(".", "_").upper(): key for key in (*_all_keys(), *_all_aliases())}


def _dotted(variable: str) -> str:
    known = _variables()
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
