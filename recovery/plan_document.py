"""A plan as a document, as manifests.document seals one: JSON for people, each entry on a line of its own.

Neither writing nor reading holds more than a block of entries. A document that somebody has indented otherwise is read as a whole.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from io import BytesIO
from itertools import count
from typing import Any, BinaryIO, NamedTuple, Protocol

import msgspec
from msgspec.structs import replace

from headwater_core.errors import CorruptData, UsageError
from headwater_core.objectstore.digest import Digest
from manifests.document import WRONG, check_readable, unseal
from manifests.entry import Entry
from recovery.entry_list import EntryList
from recovery.recovery_plan import PartitionPlan, RecoveryPlan, check_plan

LINE_BYTES_MAX = 1 << 20  # an entry takes a thousandth
WHOLE_BYTES_MAX = 1 << 30  # of a document that is read as a whole: some two million entries, and 10 GiB of memory
ENTRIES_MAX = 100_000_000  # of a partition: where the disk for temporary files must have 12 GB
_NO_ENTRIES = re.compile(rb'^     "entries": \[\](,?)$', re.MULTILINE)  # so deep in the document is nothing else of that name
_BEGIN = b'     "entries": [\n'
_END = re.compile(rb"     \](,?)\n")
_HOLE = b"\0"  # where entries go; JSON has none, not even in a text


class Output(Protocol):
    def write(self, piece: bytes, /) -> int: ...


class SealedPlan(NamedTuple):
    """digest: as the document has it"""

    plan: RecoveryPlan
    digest: str


def write_plan(plan: RecoveryPlan, file: Output) -> str:
    """Write the document; return its digest. Raises as check_plan, UsageError for a plan that is too large without its entries, and what
    writing raises."""
    check_plan(plan)
    body = msgspec.to_builtins(plan, enc_hook=lambda entries: [])
    text = msgspec.json.format(msgspec.json.encode(body), indent=1)
    if len(text) > WHOLE_BYTES_MAX:
        raise UsageError(f"the plan takes {len(text)} bytes without its runs, limit {WHOLE_BYTES_MAX}: recover fewer topics at once")
    for partition in _partitions(body):
        partition["entries"] = msgspec.Raw(_HOLE)
    *parts, last = msgspec.json.encode(body, order="sorted").split(_HOLE)
    lists = [partition.listed for topic in plan.topics for partition in topic.partitions]
    digest, end = Digest(), 0
    for entries, part, place in zip(lists, parts, _NO_ENTRIES.finditer(text), strict=True):
        digest.update(part + b"[")
        file.write(text[end : place.start()] + (_BEGIN if entries else _BEGIN.rstrip()))
        for at, entry in enumerate(entries, 1):
            line = msgspec.json.encode(entry, order="sorted") + (b"," if at < len(entries) else b"")
            digest.update(line)
            file.write(line + b"\n")
        digest.update(b"]")
        file.write((b"     ]" if entries else b"]") + place[1])
        end = place.end()
    digest.update(last)
    file.write(text[end:].removesuffix(b"\n}") + b',\n "digest": ' + msgspec.json.encode(digest.text()) + b"\n}\n")
    return digest.text()


def encode_plan(plan: RecoveryPlan) -> bytes:
    """The document of a plan that is not large."""
    file = BytesIO()
    write_plan(plan, file)
    return file.getvalue()


def read_plan(file: BinaryIO, where: str) -> SealedPlan:
    """The plan of a document, from its beginning. Raises CorruptData for anything that `make_plan` would not have made, UnsupportedFormat
    for an unknown version, and what reading the file raises.

    file  can be read again from its beginning
    """
    try:
        return _on_lines(file, where)
    except _OtherwiseIndentedError:
        file.seek(0)
        return _as_a_whole(file, where)


def decode_plan(raw: bytes, where: str = "recovery plan") -> RecoveryPlan:
    """The plan of a document. Raises as read_plan."""
    return read_plan(BytesIO(raw), where).plan


class _OtherwiseIndentedError(Exception):
    """The entries are not on lines as `write_plan` writes them."""


class _ListRead(NamedTuple):
    """digest: of the list as it is sealed; comma: what follows it"""

    entries: EntryList
    digest: Digest
    comma: bytes


def _as_a_whole(file: BinaryIO, where: str) -> SealedPlan:
    raw = file.read(WHOLE_BYTES_MAX + 1)
    if len(raw) > WHOLE_BYTES_MAX:
        raise CorruptData(where, 0, f"more than {WHOLE_BYTES_MAX} bytes, and not indented as it was written")
    plan = unseal(raw, RecoveryPlan, where, check_plan)
    return SealedPlan(plan, msgspec.json.decode(raw)["digest"])


def _on_lines(file: BinaryIO, where: str) -> SealedPlan:
    """The document without the entries is a small one; it is read with the number of the list where each list was."""
    lists: list[_ListRead] = []
    rest = bytearray()
    while line := file.readline(LINE_BYTES_MAX):
        if len(line) == LINE_BYTES_MAX or len(rest) > WHOLE_BYTES_MAX:
            raise _OtherwiseIndentedError
        if line == _BEGIN:
            read = _read_list(file, where)
            line = b"%b%d]%b\n" % (_BEGIN.rstrip(), len(lists), read.comma)
            lists.append(read)
        rest += line
    try:
        body: dict[str, Any] = msgspec.json.decode(rest)
        check_readable(body, where)
        sealed = body.pop("digest")
        places = _marked(body, len(lists))
        digest = _digest(body, lists)
        if sealed != digest:
            raise CorruptData(where, 0, f"its digest says {str(sealed)[:40]!r}, its content {digest}")
        for partition in _partitions(body):
            if type(partition["entries"]) is msgspec.Raw:
                partition["entries"] = []
        plan = _with_entries(msgspec.convert(body, RecoveryPlan), {at: read.entries for at, read in zip(places, lists, strict=True)})
        return SealedPlan(check_plan(plan), digest)
    except WRONG as error:
        raise CorruptData(where, 0, str(error)[:200]) from error


def _read_list(file: BinaryIO, where: str) -> _ListRead:
    """Raises CorruptData."""
    digest, comma = Digest(), b""

    def entries() -> Iterator[Entry]:
        nonlocal comma
        before = b"["
        number = 0
        while (end := _END.fullmatch(line := file.readline(LINE_BYTES_MAX))) is None:
            if not line.startswith(b"{") or not line.endswith((b"},\n", b"}\n")):
                raise _OtherwiseIndentedError
            if not before or number >= ENTRIES_MAX:
                raise ValueError(f"no comma after entry {number}" if not before else f"more than {ENTRIES_MAX} entries")
            body = msgspec.json.decode(line.removesuffix(b"\n").removesuffix(b","))
            digest.update(before + msgspec.json.encode(body, order="sorted"))
            before = b"," if line.endswith(b",\n") else b""
            yield msgspec.convert(body, Entry)
            number += 1
        if before == b"[":
            raise _OtherwiseIndentedError
        if before:
            raise ValueError(f"an entry is missing after {number}")
        digest.update(b"]")
        comma = end[1]

    try:
        return _ListRead(EntryList.of(entries()), digest, comma)
    except WRONG as error:
        raise CorruptData(where, 0, str(error)[:200]) from error


def _marked(body: dict[str, Any], wanted: int) -> list[int]:
    """Which of all partitions those are whose lists were read, in order of the lists. Those have a hole in `body` from now on."""
    numbers, marked = [], []
    for at, partition in enumerate(_partitions(body)):
        if [type(each) for each in partition["entries"]] == [int]:
            numbers += partition["entries"]
            marked.append(at)
            partition["entries"] = msgspec.Raw(_HOLE)
    if numbers != list(range(wanted)):
        raise _OtherwiseIndentedError
    return marked


def _digest(body: dict[str, Any], lists: Sequence[_ListRead]) -> str:
    """Of the whole document, with the lists in the holes."""
    first, *parts = msgspec.json.encode(body, order="sorted").split(_HOLE)
    whole = Digest()
    whole.update(first)
    for read, part in zip(lists, parts, strict=True):
        whole.append(read.digest.value, read.digest.size_bytes)
        whole.update(part)
    return whole.text()


def _with_entries(plan: RecoveryPlan, lists: Mapping[int, EntryList]) -> RecoveryPlan:
    """lists: by the place of their partition among all"""
    numbers = count()

    def filled(partition: PartitionPlan) -> PartitionPlan:
        found = lists.get(next(numbers))
        return partition if found is None else replace(partition, entries=found)

    return replace(plan, topics=tuple(replace(topic, partitions=tuple(map(filled, topic.partitions))) for topic in plan.topics))


def _partitions(body: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for topic in body["topics"]:
        yield from topic["partitions"]
