"""The value of one setting: from TOML or text, and as text again.

A field named `..._s` is written without that ending and takes a duration (seal_timeout = "30m"); one that counts
`..._bytes` takes a size (cache_bytes = "20GiB").
"""

import math
import os
import types
import typing
from collections.abc import Callable, Sequence
from enum import Enum
from pathlib import Path
from typing import Any

from headwater.units import duration_text, parse_duration, parse_path, parse_size, size_text
from headwater_core.errors import UsageError
from headwater_core.redaction import redact

_DURATIONS = {"d": 86400, "h": 3600, "m": 60, "s": 1}
_SIZES = {"GiB": 1 << 30, "MiB": 1 << 20, "KiB": 1 << 10, "B": 1}


def key_of(field: str) -> str:
    """The key that a configuration file has for a field of a section's value."""
    return field.removesuffix("_s") if _is_duration(field) else field


def parse_value(name: str, kind: Any, value: object, where: str) -> Any:
    """`value`, from TOML or text, as the field `name` of type `kind` has it. Raises UsageError, which begins with `where`."""
    try:
        if _is_duration(name):
            return _arm(kind)(parse_duration(value)) if isinstance(value, str) else _refuse(value, 'a duration such as "30m"')
        if _is_size(name):
            return parse_size(str(value)) if _is_a(value, str, int) else _refuse(value, 'a size such as "20GiB"')
        return _convert(kind, value)
    except (UsageError, ValueError, OverflowError) as error:
        raise UsageError(f"{where}: {error}") from error


def _convert(kind: Any, value: object) -> Any:
    kind = _arm(kind)
    if typing.get_origin(kind) in (tuple, Sequence):
        parts = value.split(",") if isinstance(value, str) else value if isinstance(value, list | tuple) else _refuse(value, "a list")
        return tuple(_convert(typing.get_args(kind)[0], part.strip() if isinstance(part, str) else part) for part in parts if part != "")
    if kind is bool:
        text = str(value).lower() if isinstance(value, str | bool) else ""
        return text == "true" if text in ("true", "false") else _refuse(value, "true or false")
    if kind is Path:
        return parse_path(value).expanduser() if isinstance(value, str | os.PathLike) else _refuse(value, "a path")
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


def _arm(kind: Any) -> Any:
    """What there is of an optional kind when there is something."""
    is_union = typing.get_origin(kind) in (typing.Union, types.UnionType)
    return next(arm for arm in typing.get_args(kind) if arm is not types.NoneType) if is_union else kind


def _is_a(value: object, *kinds: type) -> bool:
    return isinstance(value, kinds) and not isinstance(value, bool)


def _refuse(value: object, wanted: str) -> Any:
    raise UsageError(f"{wanted} expected, not {value!r}")


def value_text(name: str, value: object) -> str:
    """The value of the field `name` for people; a password is not shown."""
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
    return str(value).lower() if isinstance(value, bool) else redact(str(value))


def exact_text(name: str, value: object) -> str:
    """The value of the field `name` as text that parse_value reads as the same value: in the largest unit that divides it."""
    if isinstance(value, int) and value and (_is_duration(name) or _is_size(name)):
        units = _DURATIONS if _is_duration(name) else _SIZES
        return next(f"{value // size}{unit}" for unit, size in units.items() if value % size == 0)
    return "0s" if _is_duration(name) and value == 0 else value_text(name, value)


def _is_duration(name: str) -> bool:
    return name.endswith("_s") and not name.endswith("_per_s")


def _is_size(name: str) -> bool:
    return name.endswith(("_bytes", "_bytes_max", "_bytes_per_s", "_exceeds"))
