"""The agent's local socket: one-shot commands pass their work to the agent that holds the data directory.

A frame is a 4-byte big-endian length and one msgpack message. A client sends one Ask; the agent answers with any number of
Rows and ends with one Done. The socket is in the data directory, which only the agent's user can access.
"""

import asyncio
import contextlib
import os
import socket
import struct
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec

from headwater.agent_api import NoAgent as NoAgent
from headwater_core import errors

NAME = "rows.sock"
FRAME_BYTES_MAX = 1 << 20
CLIENTS_MAX = 16  # answered at once
CONNECTIONS_MAX = 64  # with those that wait; another connection is closed
QUESTION_S = 10.0  # for a client to send its question
_LENGTH = struct.Struct(">I")


class Ask(msgspec.Struct, tag="ask", frozen=True):
    """What to do: a command and its arguments, as on the command line."""

    verb: str
    arguments: dict[str, Any] = {}


class Row(msgspec.Struct, tag="row", frozen=True):
    """One line of the answer, as the command would print it."""

    values: dict[str, Any]


class PassDone(msgspec.Struct, tag="done", frozen=True):
    """The end. exit_code 0, or the code and message of an error."""

    exit_code: int = 0
    message: str = ""


_decoder: msgspec.msgpack.Decoder[Ask | Row | PassDone] = msgspec.msgpack.Decoder(Ask | Row | PassDone)

# The error that a client raises for an exit code. CorruptData needs more than a message, so it becomes VerificationFailed.
_RAISED: dict[int, type[errors.HeadwaterError]] = {
    2: errors.UsageError,
    3: errors.Partial,
    4: errors.VerificationFailed,
    5: errors.TransientError,
    6: errors.NotFound,
    7: errors.Locked,
    8: errors.Unauthorised,
    10: errors.NothingExamined,
}


def ask(data_dir: Path, question: Ask, *, timeout_s: float | None = None) -> Iterator[dict[str, Any]]:
    """The rows of the agent's answer, as they arrive. Raises NoAgent, what the command raised in the agent, and TransientError when the
    connection fails or is silent for `timeout_s`."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
        client.settimeout(timeout_s)
        try:
            with _address(data_dir) as address:
                client.connect(address)
        except (FileNotFoundError, NotADirectoryError, ConnectionRefusedError):
            raise NoAgent(f"no agent is running on {data_dir}") from None
        except PermissionError:
            raise errors.Unauthorised(f"not allowed to connect to the agent on {data_dir}") from None
        try:
            client.sendall(_frame(question))
            with client.makefile("rb") as answers:
                while not isinstance(message := _read(answers.read), PassDone):
                    if isinstance(message, Row):
                        yield message.values
        except (OSError, msgspec.MsgspecError) as error:
            raise errors.TransientError(f"the agent on {data_dir} stopped answering: {error}") from error
        if message.exit_code:
            raise _RAISED.get(message.exit_code, errors.HeadwaterError)(message.message)


Handler = Callable[[Ask], AsyncGenerator[dict[str, Any], None]]


@contextlib.asynccontextmanager
async def serving(data_dir: Path, handler: Handler) -> AsyncIterator[None]:
    """Answer clients until the block ends. Only for the process that holds the data directory's lock.

    At most CLIENTS_MAX at once; others wait for them. A client that sends no question within QUESTION_S gets an error.
    """
    places = asyncio.Semaphore(CLIENTS_MAX)
    talks: set[asyncio.Task[None]] = set()

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        talks.add(task)
        try:
            if len(talks) <= CONNECTIONS_MAX:
                await _answer(handler, places, reader, writer)
        except (ConnectionError, asyncio.CancelledError):
            pass  # the client has disconnected, or the agent stops
        finally:
            talks.discard(task)
            writer.close()

    server = await asyncio.start_unix_server(talk, sock=_listener(data_dir), limit=FRAME_BYTES_MAX)
    try:
        yield
    finally:
        server.close()
        with contextlib.suppress(FileNotFoundError):
            (data_dir / NAME).unlink()
        for each in list(talks):
            each.cancel()
        await asyncio.gather(*talks, return_exceptions=True)


async def _answer(handler: Handler, places: asyncio.Semaphore, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        question = await _question(reader)
        async with places, contextlib.aclosing(handler(question)) as rows:  # a client that disconnects ends the work at once
            async for row in rows:
                writer.write(_frame(Row(row)))
                await writer.drain()
        done = PassDone()
    except errors.HeadwaterError as error:
        done = PassDone(error.exit_code, str(error))
    except (msgspec.MsgspecError, asyncio.IncompleteReadError) as error:
        done = PassDone(errors.UsageError.exit_code, f"not a question: {error}")
    writer.write(_frame(done))
    await writer.drain()


async def _question(reader: asyncio.StreamReader) -> Ask:
    try:
        async with asyncio.timeout(QUESTION_S):
            length = _LENGTH.unpack(await reader.readexactly(_LENGTH.size))[0]
            if length > FRAME_BYTES_MAX:
                raise errors.UsageError(f"a frame of {length} bytes, limit {FRAME_BYTES_MAX}")
            question = _decoder.decode(await reader.readexactly(length))
    except TimeoutError:
        raise errors.UsageError(f"no question within {QUESTION_S:g} s") from None
    if not isinstance(question, Ask):
        raise errors.UsageError("expected a question")
    return question


def _listener(data_dir: Path) -> socket.socket:
    """A bound socket. Removes the socket of a killed agent: the caller holds the lock, so no process listens on it."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    with contextlib.suppress(FileNotFoundError):
        (data_dir / NAME).unlink()
    with _address(data_dir) as address:
        listener.bind(address)
        os.chmod(address, 0o600)
    return listener


@contextlib.contextmanager
def _address(data_dir: Path) -> Iterator[str]:
    """A name for the socket that fits into the 107 bytes of an address, however long the directory's own path is."""
    directory = os.open(data_dir, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{directory}/{NAME}"
    finally:
        os.close(directory)


def _frame(message: Ask | Row | PassDone) -> bytes:
    body = msgspec.msgpack.encode(message)
    return _LENGTH.pack(len(body)) + body


def _read(read: Callable[[int], bytes]) -> Ask | Row | PassDone:
    prefix = read(_LENGTH.size)
    if len(prefix) < _LENGTH.size:
        raise ConnectionError("the connection ended within an answer")
    length = _LENGTH.unpack(prefix)[0]
    if length > FRAME_BYTES_MAX:
        raise ConnectionError(f"a frame of {length} bytes, limit {FRAME_BYTES_MAX}")
    body = read(length)
    if len(body) < length:
        raise ConnectionError("the connection ended within an answer")
    return _decoder.decode(body)
