"""A broker's Fetch response on its way to the client: what the archive may have is not out of range, and what it has goes in between.

Source: Kafka 4.4, FetchResponse.json.
"""

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field

from headwater.gateway.protocol import Api, Code
from headwater.gateway.proxy.address_walk import AddressOf, AddressWalk, MalformedResponse, TopicKey, padded_uvarint
from headwater.gateway.response import Part
from headwater_core.segments import flexible

CodeFor = Callable[[TopicKey, int], Code]


@dataclass(frozen=True, slots=True)
class Inserted:
    """Encoded elements of an array. size_bytes: of all of them"""

    count: int
    size_bytes: int
    parts: Sequence[Part]


@dataclass(frozen=True, slots=True)
class Insertion:
    """Where it is due: the next `dropped_bytes` of the response are left out, and `parts` go in their place."""

    dropped_bytes: int
    parts: Sequence[Part]


@dataclass(frozen=True, slots=True)
class Merge:
    """What goes into a broker's response. How many topics and partitions of its own that has is not known when its length is announced:
    brokers name a topic twice where some of its partitions are unknown to them.

    topics      whole topics, before the broker's
    partitions  by topic, which were requested of the broker too: before its own
    """

    topics: Inserted
    partitions: Mapping[TopicKey, Inserted] = field(default_factory=dict)

    def grown_bytes(self, *, is_flexible: bool) -> int:
        """How much longer the response becomes."""
        arrays = [inserted for inserted in (self.topics, *self.partitions.values()) if inserted.count]
        return sum(inserted.size_bytes for inserted in arrays) + len(arrays) * is_flexible


class FetchWalk(AddressWalk):
    """
    code_for   the code in place of OFFSET_OUT_OF_RANGE, by topic and partition
    merge      what goes in between
    insertion  what is due where the last `advance` has stopped: to be carried out and set to None before the next
    """

    def __init__(
        self,
        version: int,
        address_of: AddressOf,
        body_bytes: int,
        code_for: CodeFor,
        *,
        keeps_length: bool = False,
        merge: Merge | None = None,
    ) -> None:
        self.insertion: Insertion | None = None
        self._code_for, self._merge = code_for, merge
        super().__init__(Api.FETCH, version, address_of, body_bytes, keeps_length=keeps_length)

    def _code_of(self, topic: TopicKey, partition: int, code: memoryview) -> None:
        if int.from_bytes(code, "big", signed=True) == Code.OFFSET_OUT_OF_RANGE:
            code[:] = flexible.i16(self._code_for(topic, partition))

    def _walk(self, api_key: int) -> Generator[None, None, None]:
        yield from self._skip_tags()  # of the response header
        yield from self._fetch() if self._merge is None else self._merged(self._merge)

    def _merged(self, merge: Merge) -> Generator[None, None, None]:
        unused = dict(merge.partitions)
        self._skip(10 if self._version >= 7 else 4)
        for _ in (yield from self._grown_items(merge.topics)):
            topic = yield from self._topic()
            for _ in (yield from self._grown_items(unused.pop(topic, _NOTHING))):
                yield from self._partition(topic)
            yield from self._skip_tags()
        if unused:
            raise MalformedResponse(f"a Fetch response without {len(unused)} topics that were requested")
        if self._version >= 16:
            yield from self._endpoint_tags()

    def _grown_items(self, inserted: Inserted) -> Generator[None, None, range]:
        """The items of an array before which others are inserted. A compact length takes one byte more, needed or not: readers of such a
        number do not mind."""
        if not inserted.count:
            return (yield from self._items())
        size_bytes = 1 if self._is_flexible else 4
        while len(self._window) - self._at < size_bytes or (self._is_flexible and self._window[self._at + size_bytes - 1] >= 0x80):
            if len(self._window) - self._at < size_bytes:
                yield
            else:
                size_bytes += 1
        at = self._at
        own = yield from self._items()
        self._at = at  # what is read again is left out
        count = len(own) + inserted.count
        raw = padded_uvarint(count + 1, size_bytes + 1) if self._is_flexible else flexible.i32(count)
        self.insertion = Insertion(size_bytes, [raw, *inserted.parts])
        yield
        return own


_NOTHING = Inserted(0, 0, ())
