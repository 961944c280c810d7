"""Frames through a proxy, byte by byte, between a client and a broker that do what a test tells them."""

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from typing import Any

import pytest
from structlog.testing import capture_logs

from headwater.gateway.protocol import Api, Code
from headwater.gateway.proxy import proxied_connection
from headwater.gateway.proxy.offered_apis import OFFERED
from headwater.gateway.proxy.proxied_connection import EDITED_BYTES_MAX, acks_of
from headwater_core.segments import flexible
from tests.headwater.gateway.proxy.fake_broker import (
    Bench,
    Client,
    FakeBroker,
    bench,
    brokers,
    decoded,
    encoded,
    metadata,
    next_frame,
    response,
)
from tests.headwater.gateway.raw import a_request
from tests.s3server import free_ports

OFFSETS = Api.LIST_OFFSETS
AWAY = ("upstream.internal", 9092)


def through(
    use: Callable[[Client, Bench], Awaitable[Any]], *answers: Callable[[bytes], Iterable[bytes] | None], **more: Any
) -> list[FakeBroker]:
    """What brokers received while a client used the port to begin at. Their answers are those to Metadata, and then what is given."""
    fakes = [FakeBroker(answer) for answer in answers]

    async def run() -> None:
        ports = dict(enumerate(free_ports(len(fakes)), 1))
        async with bench(*fakes, ports=ports, **more) as opened:
            await use(await opened.connect(), opened)

    asyncio.run(run())
    return fakes


def opaque(frame: bytes) -> Iterable[bytes]:
    """An answer that nobody looks into: the request's own body."""
    return [response(correlation_of(frame), frame[12:])]


def ask_metadata(version: int, correlation_id: int, topics: list[Any] | None = None) -> bytes:
    operations = {"include_topic_authorized_operations": False, "include_cluster_authorized_operations": False}
    return a_request(Api.METADATA, version, {"topics": topics or [], "allow_auto_topic_creation": False, **operations}, correlation_id)


def ask_commit(correlation_id: int, group: str = "g") -> bytes:
    """What nobody looks into."""
    return a_request(
        Api.OFFSET_COMMIT, 2, {"group_id": group, "generation_id_or_member_epoch": -1, "member_id": "", "topics": []}, correlation_id
    )


def correlation_of(frame: bytes) -> int:
    return int.from_bytes(frame[8:12], "big", signed=True)


def produce(version: int, correlation_id: int, acks: int, *, records: bytes = b"soup", transactional_id: str | None = None) -> bytes:
    topics = [{"name": "soup", "topic_id": bytes(16), "partition_data": [{"index": 0, "records": records}]}]
    facts = {"transactional_id": transactional_id, "acks": acks, "timeout": 1000, "topic_data": topics}
    return a_request(Api.PRODUCE, version, facts, correlation_id)


def test_opaque_frames_pass_as_they_are_in_their_order() -> None:
    sent = [ask_commit(number, "g" * size) for number, size in enumerate((1, 3000, 2))]

    async def use(client: Client, opened: Bench) -> None:
        await client.send(*sent)
        for frame in sent:
            assert await client.receive() == next(iter(opaque(frame)))

    [broker] = through(use, opaque)
    assert [frame for frame in broker.received if correlation_of(frame) != 0 or frame[4:6] == sent[0][4:6]] == sent


@pytest.mark.parametrize("version", range(14))
def test_brokers_are_found_at_ports_of_ours(version: int) -> None:
    async def use(client: Client, opened: Bench) -> None:
        await client.send(ask_metadata(version, 7, []))
        found = decoded(await client.receive() or b"", Api.METADATA, version)
        ports = opened.server.registry.ports
        assert [(each["node_id"], each["host"], each["port"]) for each in found["brokers"]] == [
            (1, *ports.address_of(1, "127.0.0.1")),
            (2, *ports.address_of(2, "127.0.0.1")),
        ]
        assert opened.server.registry.brokers == {1: AWAY, 2: ("other.internal", 9093)}

    def answer(frame: bytes) -> Iterable[bytes]:
        return [response(correlation_of(frame), metadata(frame[7], AWAY, ("other.internal", 9093)))]

    through(use, answer, answer)


def test_a_port_leads_to_its_broker() -> None:
    async def use(client: Client, opened: Bench) -> None:
        await client.send(ask_metadata(5, 1, []))
        await client.receive()
        for node_id in (1, 2):
            other = await opened.connect(node_id)
            await other.send(ask_commit(2, f"of {node_id}"))
            assert f"of {node_id}".encode() in (await other.receive() or b"")

    addresses: list[Any] = []

    def answer(frame: bytes) -> Iterable[bytes]:
        if frame[4:6] == flexible.i16(Api.METADATA):
            return [response(correlation_of(frame), metadata(frame[7], *addresses))]
        return opaque(frame)

    async def begin(client: Client, opened: Bench) -> None:
        addresses.extend(opened.addresses)
        await use(client, opened)

    one, two = through(begin, answer, answer)
    asked = {frame[4:6] for frame in two.received} | {frame[4:6] for frame in one.received}
    assert flexible.i16(Api.OFFSET_COMMIT) in asked
    assert all(b"of 2" not in frame for frame in one.received)
    assert all(b"of 1" not in frame for frame in two.received)


def test_a_broker_that_is_not_known_yet_is_asked_for() -> None:
    """After a restart a client comes to a broker's port before anybody has requested Metadata."""

    async def use(client: Client, opened: Bench) -> None:
        other = await opened.connect(1)
        await other.send(ask_commit(2))
        assert await other.receive() is not None

    addresses: list[Any] = []

    def answer(frame: bytes) -> Iterable[bytes]:
        if frame[4:6] == flexible.i16(Api.METADATA):
            return [response(correlation_of(frame), metadata(frame[7], *addresses))]
        return opaque(frame)

    async def begin(client: Client, opened: Bench) -> None:
        addresses.extend(opened.addresses)
        await use(client, opened)

    through(begin, answer)


@pytest.mark.parametrize("version", [*range(3, 9), 9, 12, 13])
@pytest.mark.parametrize("records", [b"x" * 10, b"x" * 600_000])
def test_a_produce_without_an_answer_moves_no_other_answer(version: int, records: bytes) -> None:
    async def use(client: Client, opened: Bench) -> None:
        await client.send(ask_commit(0))
        await client.receive()
        await client.send(produce(version, 1, 0, records=records), produce(version, 2, 1), produce(version, 3, 0))
        assert correlation_of((await client.receive() or b"")[:4].rjust(12, b"\0")) >= 0
        await client.send(ask_commit(4))
        frame = await client.receive()
        assert frame is not None
        assert int.from_bytes(frame[4:8], "big") == 4

    def answer(frame: bytes) -> Iterable[bytes]:
        if frame[4:6] != flexible.i16(Api.PRODUCE):
            return opaque(frame)
        return [] if acks_of(frame, version) == 0 else [response(correlation_of(frame), encoded(Api.PRODUCE, version, responses=[]))]

    through(use, answer)


@pytest.mark.parametrize("version", range(3, 14))
@pytest.mark.parametrize("transactional_id", [None, "", "t" * 300])
def test_acks_are_found_in_every_version_and_nothing_is_guessed(version: int, transactional_id: str | None) -> None:
    for acks in (-1, 0, 1):
        frame = produce(version, 1, acks, transactional_id=transactional_id)
        assert acks_of(frame, version) == acks
        for end in range(14, len(frame)):
            assert acks_of(frame[:end], version) in (acks, None)


def fetch(version: int, records: bytes, *nodes: tuple[str, int]) -> bytes:
    partition = {
        "partition_index": 0,
        "error_code": Code.NOT_LEADER_OR_FOLLOWER,
        "high_watermark": 9,
        "aborted_transactions": None,
        "preferred_read_replica": -1,
        "records": records,
    }
    topics = [{"topic_id": bytes(16), "partitions": [partition]}]
    return encoded(Api.FETCH, version, error_code=0, session_id=0, responses=topics, node_endpoints=brokers(*nodes))


@pytest.mark.parametrize(("size", "is_replaced"), [(1000, True), (EDITED_BYTES_MAX + 1000, False), (3 * EDITED_BYTES_MAX, False)])
def test_the_endpoint_of_a_new_leader_is_ours_or_nobody_s(size: int, is_replaced: bool) -> None:
    records = random.Random(size).randbytes(size)

    async def use(client: Client, opened: Bench) -> None:
        await client.send(a_request(Api.FETCH, 16, {"max_wait": 0, "min_bytes": 1, "topics": [], "forgotten_topics_data": []}, 3))
        frame = await client.receive()
        assert frame is not None
        assert AWAY[0].encode() not in frame or not is_replaced
        found = decoded(frame, Api.FETCH, 16)
        assert found["responses"][0]["partitions"][0]["records"] == records
        ours = opened.server.registry.ports.address_of(1, "127.0.0.1")
        assert [(each["host"], each["port"]) for each in found.get("node_endpoints", [])] == ([ours] if is_replaced else [])

    def answer(frame: bytes) -> Iterable[bytes]:
        return [response(correlation_of(frame), fetch(16, records, AWAY) if frame[5] == Api.FETCH else metadata(frame[7], AWAY))]

    through(use, answer)


def test_long_metadata_is_changed_at_its_beginning() -> None:
    topics = [{"error_code": 0, "name": "n" * 200, "partitions": [], "is_internal": False} for _ in range(9000)]
    body = metadata(5, AWAY, topics=topics)
    assert len(body) > EDITED_BYTES_MAX

    async def use(client: Client, opened: Bench) -> None:
        await client.send(ask_metadata(5, 3, None), ask_metadata(5, 4, None))
        for _ in range(2):
            found = decoded(await client.receive() or b"", Api.METADATA, 5)
            assert len(found["topics"]) == len(topics)
            assert found["brokers"][0]["host"] == "127.0.0.1"

    through(use, lambda frame: [response(correlation_of(frame), body)])


@pytest.mark.parametrize("version", range(5))
def test_what_is_not_offered_is_hidden(version: int) -> None:
    ranges = [{"api_key": key, "min_version": 0, "max_version": 99} for key in (Api.PRODUCE, Api.FETCH, 82, 500)]

    async def use(client: Client, opened: Bench) -> None:
        await client.send(a_request(Api.API_VERSIONS, version, {"client_software_name": "c", "client_software_version": "1"}, 1))
        found = decoded(await client.receive() or b"", Api.API_VERSIONS, version)
        assert [(each["api_key"], each["max_version"]) for each in found["api_keys"]] == [(0, 13), (1, 18)]

    def answer(frame: bytes) -> Iterable[bytes]:
        return [response(correlation_of(frame), encoded(Api.API_VERSIONS, version, error_code=0, api_keys=ranges))]

    through(use, answer)


def test_a_newer_api_versions_is_answered_here_and_in_its_turn() -> None:
    newer = a_request(Api.API_VERSIONS, 0, {}, 2)
    newer = newer[:6] + flexible.i16(6) + newer[8:]

    async def use(client: Client, opened: Bench) -> None:
        await client.send(newer)
        frame = await client.receive()
        assert frame is not None
        assert decoded(frame, Api.API_VERSIONS, 0)["error_code"] == Code.UNSUPPORTED_VERSION
        await client.send(ask_commit(1), newer)
        assert [int.from_bytes((await client.receive() or b"")[4:8], "big") for _ in range(2)] == [1, 2]

    [broker] = through(use, opaque)
    assert newer not in broker.received


@pytest.mark.parametrize(("api_key", "version"), [(500, 0), (82, 0), (Api.FETCH, 19), (-1, 0), (Api.METADATA, 99)])
def test_what_was_not_offered_ends_the_connection_and_is_seen(api_key: int, version: int) -> None:
    frame = flexible.i16(api_key) + flexible.i16(version) + flexible.i32(1) + flexible.i16(-1)
    frame = flexible.i32(len(frame)) + frame

    async def use(client: Client, opened: Bench) -> None:
        await client.send(frame)
        assert await client.receive() is None

    with capture_logs() as logs:
        [broker] = through(use, opaque)
    assert frame not in broker.received
    assert [each["api"] for each in logs if each["event"] == "hidden_request"] == [f"{api_key} version {version}"]


def test_unknown_requests_pass_where_they_may() -> None:
    frame = flexible.i32(10) + flexible.i16(500) + flexible.i16(3) + flexible.i32(1) + flexible.i16(-1)

    async def use(client: Client, opened: Bench) -> None:
        await client.send(frame)
        assert await client.receive() == next(iter(opaque(frame)))

    through(use, opaque, passes_unknown=True)


@pytest.mark.parametrize(
    "tokens",
    [[b"\0A\0secret"], [b"n,,n=user,r=abc", b"c=biws,r=abc,p=def"], [b"\x60\x82" + bytes(300), b"\x05\x04" + bytes(40), b"x" * 3], [b""]],
)
def test_tokens_without_a_header_pass_until_a_request_follows(tokens: list[bytes]) -> None:
    async def use(client: Client, opened: Bench) -> None:
        await client.send(a_request(Api.SASL_HANDSHAKE, 0, {"mechanism": "PLAIN"}, 1))
        await client.receive()
        for token in tokens:
            await client.send(flexible.i32(len(token)) + token)
            assert await client.receive() == flexible.i32(len(token) + 1) + token + b"!"
        await client.send(ask_commit(2))
        assert int.from_bytes((await client.receive() or b"")[4:8], "big") == 2

    def answer(frame: bytes) -> Iterable[bytes]:
        if frame[4:] in tokens:
            return [flexible.i32(len(frame) - 3) + frame[4:] + b"!"]
        if frame[4:6] == flexible.i16(Api.SASL_HANDSHAKE):
            return [response(1, encoded(Api.SASL_HANDSHAKE, 0, error_code=0, mechanisms=["PLAIN"]))]
        return opaque(frame)

    through(use, answer)


def test_after_a_handshake_that_was_refused_no_token_is_expected() -> None:
    async def use(client: Client, opened: Bench) -> None:
        await client.send(a_request(Api.SASL_HANDSHAKE, 0, {"mechanism": "X"}, 1))
        await client.receive()
        await client.send(flexible.i32(3) + b"abc")
        assert await client.receive() is None

    through(use, lambda frame: [response(correlation_of(frame), encoded(Api.SASL_HANDSHAKE, 0, error_code=33, mechanisms=["PLAIN"]))])


@pytest.mark.parametrize(
    "raw", [b"\x16\x03\x01\x02\x00\x01", b"GET / HTTP/1.1\r\n\r\n", flexible.i32(-1), flexible.i32(9) + bytes(9), flexible.i32(2**31 - 1)]
)
def test_what_is_no_request_ends_the_connection_with_one_line(raw: bytes) -> None:
    async def use(client: Client, opened: Bench) -> None:
        await client.send(raw)
        assert await client.receive() is None

    with capture_logs() as logs:
        through(use, lambda frame: [response(correlation_of(frame), metadata(frame[7], AWAY))])
    assert [each["event"] for each in logs if each["event"] not in ("broker_found", "brokers_not_found")].count("malformed_request") == 1


@pytest.mark.parametrize(
    "answer",
    [
        lambda frame: [response(correlation_of(frame) + 1, b"")],
        lambda frame: [response(correlation_of(frame), b"\x7f" * 20)],
        lambda frame: [response(correlation_of(frame), b"")],
        lambda frame: [flexible.i32(2) + b"ab"],
        lambda frame: None,
        lambda frame: [flexible.i32(100) + flexible.i32(correlation_of(frame)), *[]],
    ],
)
def test_a_broker_s_nonsense_reaches_no_client(answer: Callable[[bytes], Iterable[bytes] | None]) -> None:
    async def use(client: Client, opened: Bench) -> None:
        await client.send(ask_metadata(5, 5, []))
        receiving = asyncio.ensure_future(client.receive())
        done, _ = await asyncio.wait((receiving,), timeout=1)
        assert not done or receiving.result() is None
        receiving.cancel()

    through(use, answer)


@pytest.mark.parametrize("share", [0.1, 0.5, 0.999])
def test_a_broker_that_ends_inside_a_long_response_ends_its_client_and_nobody_else(share: float) -> None:
    async def use(client: Client, opened: Bench) -> None:
        await client.send(a_request(Api.FETCH, 16, {"max_wait": 0, "min_bytes": 1, "topics": [], "forgotten_topics_data": []}, 3))
        assert await client.receive() is None
        other = await opened.connect()
        await other.send(ask_commit(1))
        assert await other.receive() is not None

    def answer(frame: bytes) -> Iterable[bytes] | None:
        if frame[5] != Api.FETCH:
            return opaque(frame)
        whole = response(3, fetch(16, bytes(3 * EDITED_BYTES_MAX), AWAY))
        return cut(whole[: int(share * len(whole))])

    def cut(part: bytes) -> Iterable[bytes]:
        yield part
        raise ConnectionResetError

    through(use, answer)


def test_a_short_frame_takes_no_memory_for_what_it_announces() -> None:
    """Of a newer ApiVersions, before anybody has said who he is."""
    frame = flexible.i32(100 << 20) + flexible.i16(Api.API_VERSIONS) + flexible.i16(99) + flexible.i32(1) + flexible.i16(-1)

    async def use(client: Client, opened: Bench) -> None:
        await client.send(frame)
        assert await client.receive() is None

    through(use, opaque)


def test_brokers_of_another_cluster_are_not_learned() -> None:
    async def use(client: Client, opened: Bench) -> None:
        opened.server.registry.check("mine")
        await client.send(ask_metadata(5, 1))
        assert await client.receive() is None
        late = await opened.connect()
        await late.send(ask_metadata(1, 2))  # which names no cluster
        await late.receive()
        assert not opened.server.registry.brokers

    through(use, lambda frame: [response(correlation_of(frame), metadata(frame[7], AWAY, cluster_id="other"))])


def test_a_describe_cluster_that_fails_is_no_other_cluster() -> None:
    async def use(client: Client, opened: Bench) -> None:
        await client.send(ask_metadata(5, 1), a_request(Api.DESCRIBE_CLUSTER, 0, {"include_cluster_authorized_operations": False}, 2))
        for _ in range(2):
            assert await client.receive() is not None

    def answer(frame: bytes) -> Iterable[bytes]:
        if frame[5] != Api.DESCRIBE_CLUSTER:
            return [response(correlation_of(frame), metadata(frame[7], AWAY))]
        failed = encoded(Api.DESCRIBE_CLUSTER, 0, error_code=31, error_message=None, cluster_id="", controller_id=-1, brokers=[])
        return [response(correlation_of(frame), failed)]

    through(use, answer)


@pytest.mark.parametrize("size_bytes", [-1, -100, 1 << 20])
def test_a_token_of_an_impossible_length_ends_the_connection(size_bytes: int) -> None:
    async def use(client: Client, opened: Bench) -> None:
        await client.send(a_request(Api.SASL_HANDSHAKE, 0, {"mechanism": "PLAIN"}, 1))
        await client.receive()
        await client.send(flexible.i32(size_bytes) + bytes(20))
        assert await client.receive() is None

    through(use, lambda frame: [response(1, encoded(Api.SASL_HANDSHAKE, 0, error_code=0, mechanisms=["PLAIN"]))])


def test_what_a_client_has_requested_is_answered_when_it_has_ended_its_side() -> None:
    async def use(client: Client, opened: Bench) -> None:
        await client.send(ask_commit(1))
        client.writer.write_eof()
        assert await client.receive() is not None
        assert await client.receive() is None

    through(use, opaque)


def sasl(error_code: int) -> Callable[[bytes], Iterable[bytes] | None]:
    """A broker that wants to know who asks, and says so."""

    def answer(frame: bytes) -> Iterable[bytes] | None:
        api_key, version = int.from_bytes(frame[4:6], "big"), frame[7]
        if api_key == Api.METADATA:
            return None
        if api_key == Api.SASL_AUTHENTICATE:
            body = encoded(api_key, version, error_code=error_code, error_message=None, auth_bytes=b"", session_lifetime_ms=0)
            return [response(correlation_of(frame), body)]
        return opaque(frame)

    return answer


@pytest.mark.parametrize("version", [0, 1, 2])
@pytest.mark.parametrize(("error_code", "is_known"), [(0, True), (58, False)])
def test_a_client_may_send_much_once_its_broker_knows_it(version: int, error_code: int, is_known: bool) -> None:
    async def use(client: Client, opened: Bench) -> None:
        await client.send(a_request(Api.SASL_AUTHENTICATE, version, {"auth_bytes": b"secret"}, 1))
        assert await client.receive() is not None
        await client.send(produce(9, 2, 1, records=b"x" * 600_000))
        with suppress(ConnectionError):
            assert (await client.receive() is not None) == is_known

    through(use, sasl(error_code))


def test_a_client_that_does_not_say_who_it_is_has_to_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proxied_connection, "AUTHENTICATE_S", 0.05)

    async def use(client: Client, opened: Bench) -> None:
        assert await client.receive() is None

    with capture_logs() as logs:
        through(use, sasl(0))
    assert any("not authenticated" in str(each.get("reason")) for each in logs if each["event"] == "connection_closed")


def test_one_address_has_not_all_the_connections_that_nobody_knows() -> None:
    async def use(client: Client, opened: Bench) -> None:
        others = [await opened.connect() for _ in range(2)]
        assert await others[1].receive() is None
        await client.send(a_request(Api.SASL_AUTHENTICATE, 2, {"auth_bytes": b"secret"}, 1))
        await client.receive()
        late = await opened.connect()
        await late.send(ask_commit(1))
        assert await late.receive() is not None

    through(use, sasl(0), unauthenticated_per_address=2)


def test_before_it_stops_a_proxy_answers_what_is_in_flight_and_takes_nothing_new() -> None:
    go, asked = asyncio.Event(), asyncio.Event()

    class Slow(FakeBroker):
        async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            while (frame := await next_frame(reader)) is not None:
                if frame[4:6] == flexible.i16(Api.OFFSET_COMMIT):
                    asked.set()
                    await go.wait()
                for part in opaque(frame):
                    writer.write(part)
            writer.close()

    async def run() -> None:
        async with bench(Slow(), ports={1: free_ports(1)[0]}) as opened:
            address = opened.server.address
            busy, idle = await opened.connect(), await opened.connect()
            await busy.send(ask_commit(1))
            await asked.wait()
            opened.stopping.set()
            assert await idle.receive() is None
            go.set()
            assert await busy.receive() is not None
            assert await busy.receive() is None
            await opened.running
            with pytest.raises(ConnectionError):
                await asyncio.open_connection(*address)

    asyncio.run(run())


def test_what_takes_too_long_is_not_waited_for() -> None:
    async def use(client: Client, opened: Bench) -> None:
        await client.send(ask_commit(1))
        opened.stopping.set()
        assert await client.receive() is None
        await opened.running

    through(use, lambda frame: [], drain_s=0.05)


def test_every_offered_request_has_a_number_that_fits() -> None:
    assert all(0 <= api_key < 2**15 and offered.version_max >= 0 for api_key, offered in OFFERED.items())


def test_a_client_that_sends_on_and_on_is_stopped_between_two_requests() -> None:
    received = 0

    async def use(client: Client, opened: Bench) -> None:
        nonlocal received
        await client.send(*(ask_commit(number) for number in range(30)))
        assert await client.receive() is not None
        opened.stopping.set()
        with suppress(ConnectionError):
            for number in range(30, 1000):
                await client.send(ask_commit(number))
                await asyncio.sleep(0)
        received = 1
        while await client.receive() is not None:
            received += 1
        await opened.running

    [broker] = through(use, opaque, drain_s=5.0)
    assert received == sum(frame[4:6] == flexible.i16(Api.OFFSET_COMMIT) for frame in broker.received)
    assert received < 1000


def test_a_plain_cluster_is_known_by_what_it_answers_its_clients() -> None:
    """The proxy itself has not reached it yet."""

    async def use(client: Client, opened: Bench) -> None:
        await client.send(ask_commit(1))
        assert await client.receive() is not None
        assert opened.server.registry.is_open

    through(use, lambda frame: None if b"headwater" in frame else opaque(frame))


def test_a_request_that_was_not_offered_takes_no_answers_away() -> None:
    async def use(client: Client, opened: Bench) -> None:
        unknown = flexible.i32(60) + b"\x7f\xff" + bytes(58)
        await client.send(ask_commit(1), unknown)
        assert await client.receive() is not None

    through(use, opaque)
