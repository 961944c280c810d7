"""How every document of the bucket is written: JSON for people, with a format version and a digest against bit rot."""

from collections.abc import Callable, Collection, Mapping
from typing import Any, TypeVar

import msgspec

from headwater_core.errors import CorruptData, NeedsUpgrade, UnsupportedFormat, UsageError
from headwater_core.objectstore.digest import digest_of

FORMAT_MAJOR = 1
FORMAT = (FORMAT_MAJOR, 2)
VERSION_MAX = 2**62  # of a document that is read, so that another version can always follow

WRONG: tuple[type[Exception], ...] = (
    msgspec.MsgspecError,
    LookupError,
    TypeError,
    AttributeError,
    ValueError,
    OverflowError,
    RecursionError,
    UsageError,
)

T = TypeVar("T", bound=msgspec.Struct)


def prepared(kind: type[T]) -> type[T]:
    """Class decorator: msgspec learns what `kind` and the structs in it look like now, in the one thread that imports it.

    Else it does so when the struct is first wanted, and ends the process with a signal when two threads want it at once (0.22):
    partitions load together.
    """
    msgspec.json.Decoder(kind)
    return kind


def seal(value: msgspec.Struct) -> bytes:
    """`value`, which has a `format`, as indented JSON with its digest as the last field."""
    body = msgspec.to_builtins(value)
    body["digest"] = _digest(body)
    return msgspec.json.format(msgspec.json.encode(body), indent=1) + b"\n"


def seal_lines(fields: dict[str, Any], lists: dict[str, list[bytes]]) -> bytes:
    """As `seal`, from plain values and from lists of items that are JSON already: each item on a line of its own."""
    body = {**fields, **{name: [msgspec.Raw(line) for line in lines] for name, lines in lists.items()}}
    digest = _digest(msgspec.json.decode(msgspec.json.encode(body)))
    parts = [f" {_text(name)}: {_text(value)}" for name, value in fields.items()]
    for name, lines in lists.items():
        rows = ",\n".join(f"  {line.decode()}" for line in lines)
        parts.append(f" {_text(name)}: [\n{rows}\n ]" if rows else f" {_text(name)}: []")
    parts.append(f' "digest": {_text(digest)}')
    return ("{\n" + ",\n".join(parts) + "\n}\n").encode()


def _text(value: object) -> str:
    return msgspec.json.encode(value).decode()


def unseal(raw: bytes, kind: type[T], where: str, check: Callable[[T], object] = lambda _: None) -> T:
    """A `kind` from bytes. Raises as `unseal_body`.

    check  raises what is wrong with a value that could be made
    """
    body = unseal_body(raw, where)
    try:
        check_version(body)
        value = msgspec.convert(body, kind)
        check(value)
        return value
    except WRONG as error:
        raise CorruptData(where, 0, str(error)[:200]) from error


def unseal_body(raw: bytes, where: str, majors: Collection[int] = (FORMAT_MAJOR,)) -> dict[str, Any]:
    """What the document says, as plain values; unknown fields are covered by the digest and otherwise ignored.

    majors  of the format that the caller reads

    Raises UnsupportedFormat for another major version, CorruptData for everything else that is wrong.
    """
    try:
        body: dict[str, Any] = msgspec.json.decode(raw)
        check_readable(body, where, majors)
        digest = body.pop("digest")
        if digest != _digest(body):
            raise CorruptData(where, 0, f"its digest says {str(digest)[:40]!r}, its content {_digest(body)}")
        return body
    except WRONG as error:
        raise CorruptData(where, 0, str(error)[:200]) from error


def check_version(body: Mapping[str, Any]) -> None:
    """Raises ValueError for a version that no document comes to, and what WRONG lists when it is none."""
    if body.get("version", 0) > VERSION_MAX:
        raise ValueError(f"version {str(body['version'])[:40]}")


def check_readable(body: Mapping[str, Any], where: str, majors: Collection[int] = (FORMAT_MAJOR,)) -> None:
    """Raises UnsupportedFormat unless the format that it names is one of these; CorruptData, or what WRONG lists, when it names none."""
    version = body["format"]
    if type(version[0]) is not int:
        raise CorruptData(where, 0, f"no format version: {str(version)[:40]!r}")
    if version[0] not in majors:
        reads = " and ".join(f"{major}.x" for major in majors)
        raise UnsupportedFormat(f"needs upgrade: {where} has format {str(version)[:40]!r}; this version reads {reads}")


def check_ours(format_: tuple[int, int], where: str, writes: tuple[int, int] = FORMAT) -> None:
    """Raises NeedsUpgrade for a document that this version must not write over: it would lose what a newer one has put there."""
    if format_ > writes:
        wrote, ours = (".".join(map(str, version)) for version in (format_, writes))
        raise NeedsUpgrade(
            f"needs upgrade: {where} was written by a newer version of headwater, in format {wrote}; this one writes {ours}. "
            "It is read and left as it is; upgrade this agent"
        )


def _digest(body: dict[str, Any]) -> str:
    """Over the body without white space, keys sorted, so that re-indenting a document does not break it."""
    return digest_of(msgspec.json.encode(body, order="sorted"))
