"""What a one-shot verb and a running agent say to each other."""

import asyncio
import socket
import struct
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest

from headwater import agent_socket
from headwater.agent_socket import Ask, NoAgent, ask, serving
from headwater_core.errors import Fenced, Locked, NotFound, TransientError, UsageError


async def echo(question: Ask) -> AsyncGenerator[dict[str, Any], None]:
    if question.verb == "missing":
        raise NotFound("no such topic")
    if question.verb == "fenced":
        yield {"at": 0}
        raise Fenced("a newer claim")
    for at in range(question.arguments.get("rows", 1)):
        yield {"at": at}


def asked(data_dir: Path, question: Ask) -> list[dict[str, Any]]:
    async def talk() -> list[dict[str, Any]]:
        async with serving(data_dir, echo):
            return await asyncio.to_thread(lambda: list(ask(data_dir, question, timeout_s=10)))

    return asyncio.run(talk())


def test_rows_come_back_in_order(tmp_path: Path) -> None:
    assert asked(tmp_path, Ask("count", {"rows": 500})) == [{"at": at} for at in range(500)]


def test_the_agents_error_is_raised_here(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="no such topic"):
        asked(tmp_path, Ask("missing"))
    with pytest.raises(Locked, match="a newer claim"):
        asked(tmp_path, Ask("fenced"))


def test_without_an_agent_there_is_nobody_to_ask(tmp_path: Path) -> None:
    with pytest.raises(NoAgent):
        list(ask(tmp_path, Ask("status")))
    with pytest.raises(NoAgent):
        list(ask(tmp_path / "absent", Ask("status")))


def test_what_a_killed_agent_left_is_no_agent(tmp_path: Path) -> None:
    with agent_socket._listener(tmp_path):
        pass
    assert (tmp_path / agent_socket.NAME).exists()
    with pytest.raises(NoAgent):
        list(ask(tmp_path, Ask("status")))
    assert asked(tmp_path, Ask("count")) == [{"at": 0}]


def test_a_data_directory_with_a_long_name_works(tmp_path: Path) -> None:
    data_dir = tmp_path / ("d" * 120) / ("e" * 120)
    data_dir.mkdir(parents=True)
    assert asked(data_dir, Ask("count")) == [{"at": 0}]


@pytest.mark.parametrize("frame", [b"\x00\x00\x00\x03abc", struct.pack(">I", 1 << 30), b"\x00\x00\x00\x09abc"])
def test_a_malformed_question_is_answered_and_the_agent_goes_on(tmp_path: Path, frame: bytes) -> None:
    def send() -> bytes:
        with socket.socket(socket.AF_UNIX) as client, agent_socket._address(tmp_path) as address:
            client.connect(address)
            client.sendall(frame)
            client.shutdown(socket.SHUT_WR)
            return client.makefile("rb").read()

    async def talk() -> list[dict[str, Any]]:
        async with serving(tmp_path, echo):
            answer = await asyncio.to_thread(send)
            assert answer
            return await asyncio.to_thread(lambda: list(ask(tmp_path, Ask("count"), timeout_s=10)))

    assert asyncio.run(talk()) == [{"at": 0}]


def test_an_agent_that_goes_away_in_mid_answer_is_a_transient_error(tmp_path: Path) -> None:
    release = asyncio.Event()

    async def stuck(_: Ask) -> AsyncGenerator[dict[str, Any], None]:
        yield {"at": 0}
        await release.wait()

    async def talk() -> None:
        async with serving(tmp_path, stuck):
            rows = ask(tmp_path, Ask("count"), timeout_s=10)
            await asyncio.to_thread(next, rows)
            rest = asyncio.create_task(asyncio.to_thread(list, rows))
        await rest

    with pytest.raises(TransientError):
        asyncio.run(talk())


def test_every_exit_code_has_an_error_to_raise() -> None:
    assert all(kind.exit_code == code for code, kind in agent_socket._RAISED.items())
    assert issubclass(agent_socket._RAISED[2], UsageError)


def test_a_client_that_goes_away_ends_the_work_and_holds_nobody_up(tmp_path: Path) -> None:
    async def talk() -> None:
        ended = asyncio.Event()

        async def endless(_: Ask) -> AsyncGenerator[dict[str, Any], None]:
            try:
                while True:
                    yield {"filler": "x" * 10_000}
            finally:
                ended.set()

        async with serving(tmp_path, endless):
            rows = ask(tmp_path, Ask("count"), timeout_s=10)
            await asyncio.to_thread(next, rows)
            rows.close()  # type: ignore[attr-defined]
            await asyncio.wait_for(ended.wait(), 10)

    asyncio.run(talk())


def test_clients_that_ask_nothing_hold_nobody_up_and_are_let_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agent_socket, "QUESTION_S", 0.2)

    def half_open() -> socket.socket:
        client = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        client.settimeout(10)
        with agent_socket._address(tmp_path) as address:
            client.connect(address)
        client.sendall(b"\0")
        return client

    async def talk() -> None:
        async with serving(tmp_path, echo):
            silent = [await asyncio.to_thread(half_open) for _ in range(2 * agent_socket.CLIENTS_MAX)]
            rows = await asyncio.to_thread(lambda: list(ask(tmp_path, Ask("count"), timeout_s=10)))
            assert rows == [{"at": 0}]
            for each in silent:
                reported = await asyncio.to_thread(each.recv, 1000)
                assert b"no question within" in reported
                assert await asyncio.to_thread(each.recv, 1) == b""
                each.close()

    asyncio.run(talk())


def test_no_more_clients_are_kept_than_can_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agent_socket, "CONNECTIONS_MAX", 3)

    def connected() -> socket.socket:
        client = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        client.settimeout(10)
        with agent_socket._address(tmp_path) as address:
            client.connect(address)
        return client

    async def talk() -> None:
        async with serving(tmp_path, echo):
            clients = [await asyncio.to_thread(connected) for _ in range(4)]
            assert await asyncio.to_thread(clients[3].recv, 1) == b""
            for each in clients:
                each.close()

    asyncio.run(talk())
