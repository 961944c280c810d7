"""Whatever broker and archive hold, a Fetch through the proxy ends with the right record, or the right error, and never in a loop."""

import asyncio
import random
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from itertools import product
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from structlog.testing import capture_logs

from headwater.gateway.frames import read_header
from headwater.gateway.gateway_meter import GatewayMeter
from headwater.gateway.handlers.fetch import Fetched
from headwater.gateway.messages import Fields, read_request
from headwater.gateway.protocol import Api, Code
from headwater.gateway.proxy.broker_requests import BrokerRequests, decoded, encoded
from headwater.gateway.proxy.fetch_walk import FetchWalk
from headwater.gateway.proxy.merged_fetch import Fetches, FetchPlan, decline_session
from headwater_core.errors import HeadwaterError, TransientError
from headwater_core.segments import flexible
from tests.headwater.gateway.proxy.test_address_walk import ours
from tests.headwater.gateway.proxy.test_fetch_walk import key_of, walked
from tests.headwater.gateway.raw import a_request

TURNS = 4  # a client that has neither a record nor an error by then is in a loop
VERSIONS = (4, 6, 11, 12, 13, 18)


def partition_of(number: int, code: int, records: bytes = b"", *, end: int = -1) -> dict[str, Any]:
    return {
        "partition_index": number,
        "error_code": code,
        "high_watermark": end,
        "last_stable_offset": end,
        "log_start_offset": -1,
        "aborted_transactions": None,
        "preferred_read_replica": -1,
        "records": records,
    }


@dataclass
class Log:
    """A record for each offset, but those of `gaps`. is_denied: its reader may not see it"""

    start: int
    end: int
    gaps: Collection[int] = ()
    is_denied: bool = False

    def answer(self, number: int, offset: int, prefix: bytes) -> dict[str, Any]:
        """As a broker does it, and an archive."""
        if self.is_denied:
            return partition_of(number, Code.TOPIC_AUTHORIZATION_FAILED)
        if not self.start <= offset <= self.end:
            return partition_of(number, Code.OFFSET_OUT_OF_RANGE)
        found = next((each for each in range(offset, self.end) if each not in self.gaps), None)
        return partition_of(number, Code.NONE, b"" if found is None else prefix + b"%d" % found, end=self.end)


@dataclass
class Broker:
    logs: Mapping[tuple[str, int], Log]
    topic_id: Callable[[str], bytes] = lambda name: name.encode().ljust(16, b"\0")
    asked: list[int] = field(default_factory=list)
    throttle_ms: int = 0

    def name_of(self, topic: str | bytes) -> str:
        return topic if isinstance(topic, str) else topic.rstrip(b"\0").decode()

    async def ask(self, api_key: int, version: int, body: bytes) -> bytes:
        tags = b"\0" if version >= 12 or (api_key, version) == (Api.METADATA, 10) else b""
        frame = flexible.i16(api_key) + flexible.i16(version) + flexible.i32(1) + flexible.i16(-1) + tags + body
        return self.response(frame)

    def response(self, frame: bytes) -> bytes:
        header = read_header(frame)
        fields = read_request(frame, header.body_position, header.api_key, header.api_version)
        self.asked.append(header.api_key)
        answers = {Api.FETCH: self._fetch, Api.LIST_OFFSETS: self._offsets, Api.METADATA: self._metadata}
        return encoded(header.api_key, header.api_version, answers[Api(header.api_key)](fields, header.api_version))

    def _fetch(self, fields: Fields, version: int) -> Fields:
        assert fields.get("session_id", 0) == 0
        if self.throttle_ms:
            return {"throttle_time": self.throttle_ms, "error_code": 0, "session_id": 0, "responses": []}
        key = "topic_id" if version >= 13 else "topic"
        topics = [
            {
                key: topic[key],
                "partitions": [
                    self.logs[self.name_of(topic[key]), each["partition"]].answer(each["partition"], each["fetch_offset"], b"b")
                    for each in topic["partitions"]
                ],
            }
            for topic in fields["topics"]
        ]
        return {"error_code": 0, "session_id": 0, "responses": topics}

    def _offsets(self, fields: Fields, version: int) -> Fields:
        def answer(log: Log, number: int, timestamp: int) -> Fields:
            offset = log.start if timestamp == -2 else log.end
            code = Code.TOPIC_AUTHORIZATION_FAILED if log.is_denied else Code.NONE
            return {"partition_index": number, "error_code": code, "timestamp": -1, "offset": offset, "leader_epoch": 0}

        topics = [
            {
                "name": topic["name"],
                "partitions": [
                    answer(self.logs[topic["name"], each["partition_index"]], each["partition_index"], each["timestamp"])
                    for each in topic["partitions"]
                ],
            }
            for topic in fields["topics"]
        ]
        return {"topics": topics}

    def _metadata(self, fields: Fields, version: int) -> Fields:
        topics = [
            {"error_code": 0, "name": each["name"], "topic_id": self.topic_id(each["name"]), "is_internal": False, "partitions": []}
            for each in fields["topics"]
        ]
        return {"brokers": [], "cluster_id": "c", "controller_id": 1, "topics": topics}


@dataclass
class Archive:
    """
    waits      so often nothing has come from the bucket yet
    stable     where a transaction is open
    newer_end  where the archive ends by now, of which a reader does not know
    failure    what a look at the manifest raises
    asked      bodies of fetches
    """

    logs: Mapping[tuple[str, int], Log]
    code: Code = Code.NONE
    waits: int = 0
    stable: int | None = None
    newer_end: int = 0
    failure: HeadwaterError | None = None
    is_listed: bool = True
    asked: list[Fields] = field(default_factory=list)

    def name_of(self, topic: str | bytes) -> str:
        return topic if isinstance(topic, str) else topic.rstrip(b"\0").decode()

    def may_hold(self, topic: str | bytes, partition: int) -> bool:
        return not self.is_listed or (self.name_of(topic), partition) in self.logs

    def id_of(self, topic: str | bytes) -> bytes | None:
        if not self.is_listed or self.name_of(topic) not in {name for name, _ in self.logs}:
            return None
        return self.name_of(topic).encode().ljust(16, b"\0")

    async def range_of(self, topic: str | bytes, partition: int) -> tuple[int, int]:
        if self.failure is not None:
            raise self.failure
        log = self.logs[self.name_of(topic), partition]
        return log.start, max(log.end, self.newer_end)

    async def fetch(self, body: Fields, version: int) -> Fetched:
        self.asked.append(body)
        key = "topic_id" if version >= 13 else "topic"

        self.waits -= 1
        places = {(topic[key], each["partition"]) for topic in body["topics"] for each in topic["partitions"]} if self.waits >= 0 else set()

        def answer(topic: str | bytes, each: Fields) -> Fields:
            if places:
                return partition_of(each["partition"], Code.NONE, end=9)
            if self.stable is not None and self.stable <= each["fetch_offset"]:
                return {**partition_of(each["partition"], Code.NONE, end=9), "last_stable_offset": self.stable}
            if self.code is not Code.NONE:
                return partition_of(each["partition"], self.code)
            return self.logs[self.name_of(topic), each["partition"]].answer(each["partition"], each["fetch_offset"], b"a")

        topics = [{key: topic[key], "partitions": [answer(topic[key], each) for each in topic["partitions"]]} for topic in body["topics"]]
        return Fetched({"error_code": 0, "session_id": 0, "responses": topics}, waiting=places)


class Reader:
    """Fetches through the proxy, in one version."""

    def __init__(self, broker: Broker, archive: Archive, version: int = 12, *, skips_gaps: bool = True) -> None:
        self.broker, self.version = broker, version
        self.meter = GatewayMeter()
        self.fetches = Fetches(archive, BrokerRequests(broker.ask), self.meter, skips_gaps=skips_gaps)

    async def fetch(self, wanted: Mapping[tuple[str, int], int], **more: Any) -> dict[tuple[str, int], Any]:
        frame = self.request(wanted, **more)
        plan = await self.fetches.plan(frame)
        key, raw = "topic_id" if self.version >= 13 else "topic", self._sent(plan)
        found = decoded(Api.FETCH, self.version, raw)
        return {
            (self.broker.name_of(topic[key]), each["partition_index"]): each for topic in found["responses"] for each in topic["partitions"]
        }

    def request(self, wanted: Mapping[tuple[str, int], int], **more: Any) -> bytes:
        topics: dict[str, list[Any]] = {}
        for (topic, number), offset in wanted.items():
            epochs = {"current_leader_epoch": 3, "last_fetched_epoch": 3, "log_start_offset": -1}
            topics.setdefault(topic, []).append({"partition": number, "fetch_offset": offset, "partition_max_bytes": 1 << 20, **epochs})
        key = "topic_id" if self.version >= 13 else "topic"
        named = [{key: key_of(self.version, topic), "partitions": partitions} for topic, partitions in topics.items()]
        facts = {"replica_id": -1, "max_wait": 500, "min_bytes": 1, "max_bytes": 50 << 20, "isolation_level": 0, "rack_id": ""}
        return a_request(Api.FETCH, self.version, {**facts, "topics": named, "forgotten_topics_data": [], **more})

    def _sent(self, plan: FetchPlan) -> bytes:
        if plan.answer is not None:
            return b"".join(bytes(part) for part in plan.answer if isinstance(part, bytes))[8:]
        raw = self.broker.response(plan.frame[4:])
        walk = FetchWalk(self.version, ours, len(raw), self.fetches.code_for, keeps_length=True, merge=plan.merge)
        sent = walked(walk, raw, random.Random(1))
        grown = plan.merge.grown_bytes(is_flexible=self.version >= 12) if plan.merge is not None else 0
        assert len(sent) == len(raw) + grown
        return sent

    async def until_told(self, place: tuple[str, int], offset: int) -> tuple[int, bytes]:
        """Code and records, from the first answer that has either; (0, b""): none has."""
        for _ in range(TURNS):
            found = (await self.fetch({place: offset}))[place]
            if found["error_code"] or found["records"]:
                return found["error_code"], found["records"] or b""
        return 0, b""


SOUP = ("soup", 0)


def expected(broker: Log, archive: Log | None, offset: int, *, skips_gaps: bool) -> tuple[int, bytes]:
    """What is right."""
    if offset >= broker.start:
        answer = broker.answer(0, offset, b"b")
        return answer["error_code"], answer["records"]
    if archive is None or offset < archive.start:
        return Code.OFFSET_OUT_OF_RANGE, b""
    cold = next((each for each in range(offset, archive.end) if each not in archive.gaps), None)
    if cold is not None:
        return 0, b"a%d" % cold
    if not skips_gaps and archive.end < broker.start:
        return Code.OFFSET_OUT_OF_RANGE, b""
    answer = broker.answer(0, broker.start, b"b")
    return answer["error_code"], answer["records"]


@settings(max_examples=400, deadline=None)
@given(
    st.tuples(st.integers(0, 6), st.integers(0, 6)).map(sorted),
    st.none() | st.tuples(st.integers(0, 6), st.integers(0, 6)).map(sorted),
    st.frozensets(st.integers(0, 6)),
    st.integers(0, 8),
    st.sampled_from(VERSIONS),
    st.booleans(),
)
def test_a_reader_ends_with_a_record_or_a_true_error(
    broker: list[int], archive: list[int] | None, gaps: frozenset[int], offset: int, version: int, skips_gaps: bool
) -> None:
    live, cold = Log(broker[0], broker[1]), Log(archive[0], archive[1], gaps) if archive is not None else None
    reader = Reader(Broker({SOUP: live}), Archive({SOUP: cold} if cold is not None else {}), version, skips_gaps=skips_gaps)
    assert asyncio.run(reader.until_told(SOUP, offset)) == expected(live, cold, offset, skips_gaps=skips_gaps)


@pytest.mark.parametrize("version", VERSIONS)
def test_cold_and_live_partitions_come_in_one_answer(version: int) -> None:
    live = {(topic, number): Log(10 * number, 40) for topic, number in product(("menu", "soup"), range(3))} | {("bills", 0): Log(30, 40)}
    cold = {place: Log(0, log.start) for place, log in live.items() if log.start}
    broker, archive = Broker(live), Archive(cold)

    async def run() -> None:
        reader = Reader(broker, archive, version)
        wanted = dict.fromkeys(live, 5)
        first = await reader.fetch(wanted)
        assert {place for place, found in first.items() if found["records"]} == live.keys() - cold.keys()
        assert not any(found["error_code"] for found in first.values())
        again = await reader.fetch(wanted)
        assert {place: found["records"] for place, found in again.items()} == {place: b"a5" if place in cold else b"b5" for place in live}
        assert {found["high_watermark"] for found in again.values()} == {40}

    asyncio.run(run())


def test_the_broker_is_asked_for_less_where_the_archive_has_a_share() -> None:
    live, sizes = {("soup", 0): Log(0, 9), ("soup", 1): Log(5, 9)}, []
    broker, archive = Broker(live), Archive({("soup", 1): Log(0, 5)})
    honest = broker.response

    def response(frame: bytes) -> bytes:
        header = read_header(frame)
        if header.api_key == Api.FETCH:
            sizes.append(read_request(frame, header.body_position, Api.FETCH, header.api_version)["max_bytes"])
        return honest(frame)

    broker.response = response  # type: ignore[method-assign]

    async def run() -> None:
        reader = Reader(broker, archive)
        for max_bytes in (8 << 20, 50 << 20):
            for _ in range(2):
                await reader.fetch(dict.fromkeys(live, 1), max_bytes=max_bytes)

    asyncio.run(run())
    assert sizes == [8 << 20, 1, 4 << 20, 1, 42 << 20, 1, 42 << 20]
    assert [body["max_bytes"] for body in archive.asked] == [4 << 20, 8 << 20, 8 << 20]


def test_a_reader_without_rights_is_told_so_for_what_is_archived_too() -> None:
    log = Log(5, 9)
    reader = Reader(Broker({SOUP: log}), archive := Archive({SOUP: Log(0, 5)}))

    async def run() -> None:
        assert await reader.until_told(SOUP, 1) == (0, b"a1")
        log.is_denied = True
        assert await reader.until_told(SOUP, 2) == (Code.TOPIC_AUTHORIZATION_FAILED, b"")

    asyncio.run(run())
    assert len(archive.asked) == 1


@pytest.mark.parametrize("code", [Code.KAFKA_STORAGE_ERROR, Code.CORRUPT_MESSAGE])
def test_an_archive_that_cannot_say_what_it_has_is_no_absence(code: Code) -> None:
    reader = Reader(Broker({SOUP: Log(5, 9)}), Archive({SOUP: Log(0, 5)}, code))
    assert asyncio.run(reader.until_told(SOUP, 1)) == (code, b"")


def test_what_is_on_its_way_is_waited_for_and_not_passed_over() -> None:
    reader = Reader(Broker({SOUP: Log(5, 9)}), Archive({SOUP: Log(0, 5)}, waits=2))
    assert asyncio.run(reader.until_told(SOUP, 1)) == (0, b"a1")


@pytest.mark.parametrize(("isolation", "expected"), [(1, b""), (0, b"b5")])
def test_behind_a_transaction_whose_end_is_not_archived_yet_nothing_is_passed_over(isolation: int, expected: bytes) -> None:
    reader = Reader(Broker({SOUP: Log(5, 9)}), Archive({SOUP: Log(0, 5)}, stable=2))

    async def run() -> bytes:
        for _ in range(TURNS):
            found = (await reader.fetch({SOUP: 2}, isolation_level=isolation))[SOUP]
        return found["records"] or b""

    assert asyncio.run(run()) == expected


@pytest.mark.parametrize(
    ("newer_end", "failure", "expected"),
    [
        (5, None, (0, b"")),
        (0, TransientError("away"), (Code.KAFKA_STORAGE_ERROR, b"")),
        (0, None, (0, b"b9")),
    ],
)
def test_only_a_manifest_that_is_read_now_proves_a_gap(newer_end: int, failure: HeadwaterError | None, expected: tuple[int, bytes]) -> None:
    """What the broker has deleted was archived before; a reader may not have seen that yet."""
    archive = Archive({SOUP: Log(0, 3)}, newer_end=newer_end, failure=failure)
    assert asyncio.run(Reader(Broker({SOUP: Log(9, 12)}), archive).until_told(SOUP, 3)) == expected


@pytest.mark.parametrize("version", VERSIONS)
def test_before_the_archive_was_listed_nothing_is_out_of_range(version: int) -> None:
    archive = Archive({SOUP: Log(0, 5)}, is_listed=False)
    reader = Reader(Broker({SOUP: Log(5, 9)}), archive, version)

    async def run() -> None:
        assert await reader.until_told(SOUP, 1) == (Code.KAFKA_STORAGE_ERROR, b"")
        archive.is_listed = True
        assert await reader.until_told(SOUP, 1) == (0, b"a1")

    asyncio.run(run())


@pytest.mark.parametrize("version", VERSIONS)
def test_what_is_found_to_be_no_topic_of_the_archive_is_the_broker_s(version: int) -> None:
    archive = Archive({}, is_listed=False)
    reader = Reader(Broker({SOUP: Log(5, 9)}), archive, version)

    async def run() -> None:
        await reader.until_told(SOUP, 1)
        archive.is_listed = True
        assert await reader.until_told(SOUP, 1) == (Code.OFFSET_OUT_OF_RANGE, b"")

    asyncio.run(run())


def test_a_throttled_client_is_throttled() -> None:
    """A broker answers one that is over its quota with nothing at all."""
    reader = Reader(broker := Broker({SOUP: Log(5, 9)}), Archive({SOUP: Log(0, 5)}))

    async def run() -> None:
        await reader.fetch({SOUP: 1})
        broker.throttle_ms = 700
        plan = await reader.fetches.plan(reader.request({SOUP: 1}))
        assert plan.answer is not None
        [frame] = plan.answer
        assert isinstance(frame, bytes)
        assert decoded(Api.FETCH, 12, frame[8:])["throttle_time"] == 700
        broker.throttle_ms = 0
        assert (await reader.fetch({SOUP: 1}))[SOUP]["records"] == b"a1"

    asyncio.run(run())


def test_a_request_that_is_too_long_to_be_taken_apart_is_the_broker_s() -> None:
    wide = {("soup", number): 1 for number in range(41_000)}
    reader = Reader(Broker({SOUP: Log(5, 9)}), Archive({SOUP: Log(0, 5)}))

    async def run() -> None:
        await reader.fetch({SOUP: 1})
        frame = reader.request(wide)
        assert (await reader.fetches.plan(frame)).frame == frame
        assert reader.fetches.code_for("soup", 0) is Code.KAFKA_STORAGE_ERROR  # and no answer without records, for ever

    asyncio.run(run())


@pytest.mark.parametrize("version", [4, 12])
def test_a_topic_that_was_created_again_has_nothing_of_the_one_before(version: int) -> None:
    broker = Broker({SOUP: Log(5, 9)}, lambda name: b"another".ljust(16, b"\0"))
    reader = Reader(broker, archive := Archive({SOUP: Log(0, 5)}), version)
    assert asyncio.run(reader.until_told(SOUP, 1)) == (Code.OFFSET_OUT_OF_RANGE, b"")
    assert not archive.asked


def test_what_is_at_the_broker_again_costs_one_look() -> None:
    log = Log(5, 9)
    broker = Broker({SOUP: log})
    reader = Reader(broker, Archive({SOUP: Log(0, 5)}))

    async def run() -> None:
        await reader.until_told(SOUP, 1)
        assert (await reader.fetch({SOUP: 6}))[SOUP]["records"] == b"b6"
        broker.asked.clear()
        await reader.fetch({SOUP: 7})

    asyncio.run(run())
    assert broker.asked == [Api.FETCH]


@pytest.mark.parametrize("version", range(7, 19))
def test_no_session_is_asked_for_and_nothing_else_is_changed(version: int) -> None:
    reader = Reader(Broker({}), Archive({}), version)
    plain, asking = (bytearray(reader.request({SOUP: 1}, session_id=number, session_epoch=epoch)) for number, epoch in ((0, -1), (7, 3)))
    assert decline_session(asking, version) == 7
    assert asking == plain
    assert decline_session(plain, version) == 0
    assert asking == plain


def test_what_is_skipped_what_is_archived_and_what_is_refused_are_counted() -> None:
    async def run() -> None:
        reader = Reader(Broker({SOUP: Log(8, 10)}), Archive({SOUP: Log(0, 5)}))
        assert await reader.until_told(SOUP, 2) == (0, b"a2")
        assert (reader.meter.archived_fetches, reader.meter.archived_bytes, reader.meter.gaps) == (1, 2, 0)
        with capture_logs() as logs:
            assert await reader.until_told(SOUP, 6) == (0, b"b8")
        assert reader.meter.gaps == 1
        [said] = [each for each in logs if each["event"] == "gap_skipped"]
        assert (said["partition"], said["offset"], said["next_offset"]) == ("soup:0", 6, 8)
        broken = Reader(Broker({SOUP: Log(8, 10)}), Archive({SOUP: Log(0, 5)}, code=Code.KAFKA_STORAGE_ERROR))
        assert await broken.until_told(SOUP, 2) == (Code.KAFKA_STORAGE_ERROR, b"")
        assert broken.meter.refusals == {"KAFKA_STORAGE_ERROR": 1}

    asyncio.run(run())


def test_the_end_of_a_compacted_archive_is_no_gap() -> None:
    async def run() -> None:
        reader = Reader(Broker({SOUP: Log(8, 10)}), Archive({SOUP: Log(0, 8, gaps=(6, 7))}))
        assert await reader.until_told(SOUP, 6) == (0, b"b8")
        assert reader.meter.gaps == 0

    asyncio.run(run())
