"""Frames at random through the proxy, from clients and from brokers: connections end with typed errors, and memory stays what it was.

FRAMES sets how many.
"""

import asyncio
import os
import random
import resource
from collections.abc import Iterable
from contextlib import suppress

from structlog.testing import capture_logs

from headwater.gateway.protocol import Api
from headwater.gateway.proxy.offered_apis import OFFERED
from headwater_core.segments import flexible
from tests.headwater.gateway.proxy.fake_broker import Bench, Client, FakeBroker, bench, metadata, request, response
from tests.headwater.gateway.proxy.test_proxied_connection import AWAY, ask_commit, ask_metadata, correlation_of
from tests.headwater.gateway.raw import a_request
from tests.s3server import free_ports

FRAMES = int(os.environ.get("FRAMES", "3000"))
TYPED = {"malformed_request", "connection_closed", "connection_lost", "upstream_failed", "hidden_request"}
GROWN_KIB_MAX = 64 << 10


def some_requests() -> list[bytes]:
    known = [ask_metadata(version, 1) for version in range(13)] + [ask_commit(1)]
    known += [a_request(Api.SASL_AUTHENTICATE, version, {"auth_bytes": b"secret"}) for version in range(3)]
    return known + [request(api_key, offered.version_max, 1, bytes(40)) for api_key, offered in OFFERED.items()]


def damaged(frame: bytes, random_: random.Random) -> bytes:
    """With a byte changed, a piece cut, doubled, or another length."""
    raw, how = bytearray(frame), random_.random()
    at = random_.randrange(len(raw))
    if how < 0.5:
        raw[at] = random_.randrange(256)
    elif how < 0.7:
        del raw[at : at + random_.randrange(1, 9)]
    elif how < 0.85:
        raw[at:at] = random_.randbytes(random_.randrange(1, 9))
    if random_.random() < 0.7:
        raw[:4] = flexible.i32(max(0, len(raw) - 4))  # so that what is in it is looked at
    return bytes(raw)


def test_nonsense_ends_its_own_connection_with_a_typed_error() -> None:
    random_ = random.Random(FRAMES)
    known, answers = some_requests(), [metadata(version, AWAY) for version in range(13)]

    def answer(frame: bytes) -> Iterable[bytes]:
        raw = response(correlation_of(frame), answers[frame[7] % 13] if frame[4:6] == flexible.i16(Api.METADATA) else frame[12:])
        return [damaged(raw, random_) if b"headwater" not in frame and random_.random() < 0.3 else raw]

    async def use(opened: Bench) -> None:
        for _ in range(FRAMES // 10):
            client = await opened.connect()
            with suppress(ConnectionError, TimeoutError):
                async with asyncio.timeout(0.5):
                    await nonsense(client)
            client.writer.close()
        client = await opened.connect()
        await client.send(ask_metadata(5, 1))
        while (frame := await client.receive()) is None or len(frame) < 8:  # the broker's nonsense may meet this one as well
            client = await opened.connect()
            await client.send(ask_metadata(5, 1))

    async def nonsense(client: Client) -> None:
        for _ in range(10):
            await client.send(damaged(random_.choice(known), random_))
        client.writer.write_eof()
        while await client.reader.read(1 << 16):
            pass

    async def run() -> int:
        async with bench(FakeBroker(answer), ports={1: free_ports(1)[0]}) as opened:
            await use(opened)
            before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            await use(opened)
            return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before

    with capture_logs() as logs:
        assert asyncio.run(run()) < GROWN_KIB_MAX
    events = {entry["event"] for entry in logs if entry["log_level"] in ("warning", "error", "critical")}
    assert {"malformed_request", "upstream_failed"} <= events  # of both sides
    assert events <= TYPED | {"brokers_not_found"}, [entry for entry in logs if entry["event"] not in TYPED][:3]
