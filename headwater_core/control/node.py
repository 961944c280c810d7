"""The control log, replicated by pysyncobj. The one place that knows the library, and what it must be kept from.

* The state lives in a SyncObjConsumer with one method, `apply(bytes)`: what the library would pickle, rename or number is
  never ours. Journal and snapshot are our own files (headwater_core/control/journal.py, headwater_core/control/snapshot.py).
* A lone node has no transport: it opens no port, and its files say nothing of an address.
* The library ticks in a thread of ours, which ends with the node and turns a full disk into an error for the callers.
* Every call has its own time-out; the library has been seen to forget callbacks.
* Between peers the library speaks pickle. It is replaced by one that admits nothing but plain values, frames are bounded,
  and beyond loopback a long shared secret is demanded.
"""

import io
import ipaddress
import pickle
import shutil
import threading
import zlib
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Self, cast

import pysyncobj.journal
import pysyncobj.pickle
import pysyncobj.syncobj
import pysyncobj.tcp_connection
import pysyncobj.tcp_server
import pysyncobj.transport
import structlog
from pysyncobj import FAIL_REASON, SyncObj, SyncObjConf, SyncObjConsumer, SyncObjException, replicated
from pysyncobj.encryptor import HAS_CRYPTO
from pysyncobj.node import Node as RaftNode
from pysyncobj.tcp_connection import TcpConnection
from pysyncobj.transport import TCPTransport, Transport, TransportNotReadyError

from headwater_core.control.config import ControlConfig
from headwater_core.control.control_log import PUBLISH_TIMEOUT_S
from headwater_core.control.control_records import Record, decode, encode
from headwater_core.control.journal import Entry, Journal
from headwater_core.control.snapshot import read_snapshot, write_snapshot
from headwater_core.control.state import EMPTY, ControlState, apply_all
from headwater_core.errors import CorruptData, HeadwaterError, TransientError, UnknownOutcome, UsageError
from headwater_core.files import disk_errors, rename_synced, replace_file

log = structlog.get_logger()

SECRET_CHARS_MIN = 32
_MESSAGE_BYTES_MAX = 8 << 20  # a batch of entries is 64 KiB, one command at most 1 MiB
_COMPACT_AFTER_ENTRIES = 2_000
_LONE = RaftNode("lone")


class ControlNode:
    """One member of the control log; alone, the whole of it. Its files lie in `data_dir`, whose lock the caller holds.

    Starts at once; `ready` waits until it has caught up. `needs_rebuild` says that its files were missing or damaged: the
    state may lack what the bucket knows until control.rebuild has run. Damaged files are kept aside as *.damaged.

    Raises UsageError for a configuration that cannot work, TransientError when the port is in use, and DiskFull.
    """

    def __init__(self, data_dir: Path, config: ControlConfig | None = None) -> None:
        if not __debug__:
            raise UsageError("the control log does not run under python -O: pysyncobj guards its peers with assert")
        config = config or ControlConfig()
        check_config(config)
        self._files = _Files(data_dir)
        self._journal, state = self._files.open(with_peers=bool(config.peers))
        self._replica = _Replica(state)
        self._alone = not config.peers
        self._ready, self._stop, self._wake = threading.Event(), threading.Event(), threading.Event()
        self._failure: HeadwaterError | None = None
        self._waiting: set[_Call] = set()
        try:
            self._raft = self._start(config)
        except HeadwaterError:
            self._journal._destroy()
            raise
        except SyncObjException as error:
            self._journal._destroy()
            raise TransientError(f"control log: {config.listen} cannot be bound; is it in use?") from error
        self._thread = threading.Thread(target=self._run, name="control", daemon=True)
        self._thread.start()

    def _start(self, config: ControlConfig) -> SyncObj:
        timers = (
            {"appendEntriesPeriod": 0.01, "raftMinTimeout": 0.031, "raftMaxTimeout": 0.04}
            if self._alone
            else {"appendEntriesPeriod": 0.02, "raftMinTimeout": 0.4, "raftMaxTimeout": 0.8, "connectionRetryTime": 0.2}
        )
        conf = SyncObjConf(
            autoTick=False,
            journalFile=self._journal,
            fullDumpFile=str(self._files.snapshot),
            serializer=self._save_snapshot,
            deserializer=self._load_snapshot,
            useFork=False,
            onReady=self._ready.set,
            logCompactionMinEntries=_COMPACT_AFTER_ENTRIES,
            logCompactionMinTime=300,
            bindAddress=config.listen,
            maxBindRetries=1,
            password=config.password,
            **timers,
        )
        if self._alone:
            return SyncObj(_LONE, [], conf, [self._replica], transportClass=Transport)
        return SyncObj(config.listen, list(config.peers), conf, [self._replica], transportClass=_PeerTransport)

    def _save_snapshot(self, path: str, entries: tuple[Entry, Entry, object]) -> None:
        """The library would try again at every tick, for ever: a snapshot that cannot be written ends the node instead."""
        try:
            write_snapshot(Path(path), self._replica.state, entries[1], entries[0])
        except HeadwaterError as error:
            self._failure = error

    def _load_snapshot(self, path: str) -> tuple[Entry, Entry, tuple[()]]:
        self._replica.state, before, last = read_snapshot(Path(path))
        return last, before, ()

    @property
    def needs_rebuild(self) -> bool:
        return self._files.rebuild_marker.exists()

    @property
    def informed(self) -> bool:
        return self._failure is None and self._ready.is_set() and not self.needs_rebuild

    def rebuilt(self) -> None:
        """The state has been filled from the bucket."""
        self._files.rebuild_marker.unlink(missing_ok=True)

    @property
    def failure(self) -> HeadwaterError | None:
        """What has ended this node; None while it runs."""
        return self._failure

    @property
    def role(self) -> str:
        """ "leader", "follower", or "none" while there is no leader. As last heard."""
        if self._failure:
            return "none"
        if self._raft._isLeader():
            return "leader"
        return "none" if self._raft._getLeader() is None else "follower"

    def ready(self, timeout_s: float) -> bool:
        """Wait until this node has applied what the log held when it joined; False when that takes longer."""
        self._check_running()
        return self._ready.wait(timeout_s)

    def state(self) -> ControlState:
        """What this node knows now; a value, it does not change any more."""
        return self._replica.state

    def publish(self, *records: Record, timeout_s: float = PUBLISH_TIMEOUT_S) -> None:
        """Return when the records are agreed, on disk here, and applied. See ControlLog."""
        self._check_running()
        call = _Call()
        self._waiting.add(call)
        try:
            self._replica.apply(encode(records), callback=call.answer)
            self._wake.set()
            if not call.answered.wait(timeout_s):
                raise UnknownOutcome(f"control log: no answer in {timeout_s:g} s")
        finally:
            self._waiting.discard(call)
        if call.reason in (FAIL_REASON.MISSING_LEADER, FAIL_REASON.QUEUE_FULL, FAIL_REASON.REQUEST_DENIED):
            raise TransientError(f"control log: not accepted (reason {call.reason})")
        if call.reason != FAIL_REASON.SUCCESS:
            self._check_running()
            raise UnknownOutcome(f"control log: the answer is not known (reason {call.reason})")

    def compact(self) -> None:
        """Write a snapshot and shorten the journal at the next tick, without waiting for it to grow."""
        self._raft.forceLogCompaction()
        self._wake.set()

    def close(self) -> None:
        """Stop, with everything agreed on disk. May be called twice."""
        self._stop.set()
        self._wake.set()
        self._thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def _run(self) -> None:
        """The library's only thread."""
        try:
            while not self._stop.is_set() and self._failure is None:
                if self._alone:
                    if not self._waiting and self._ready.is_set():
                        self._wake.wait(0.05)
                        self._wake.clear()
                    self._raft.doTick(0.0 if self._ready.is_set() else 0.005)
                else:
                    self._tick_with_peers()
                self._journal.sync()  # before the next tick answers for what this one wrote
            self._journal.onOneSecondTimer()
            self._journal.sync()
        except HeadwaterError as error:
            self._failure = error
        except Exception as error:
            log.exception("control_node_failed")
            self._failure = TransientError(f"control log stopped: {error!r}")
        finally:
            self._failure = self._failure or TransientError("the control log is closed")
            self._raft.destroy()
            for call in list(self._waiting):
                call.answer(None, FAIL_REASON.UNKNOWN_OUTCOME)

    def _tick_with_peers(self) -> None:
        try:
            self._raft.doTick(0.005)
        except HeadwaterError:
            raise
        except Exception:  # a message that makes no sense must not end the node
            log.warning("control_message_dropped", exc_info=True)
            self._stop.wait(0.05)

    def _check_running(self) -> None:
        if self._failure:
            raise self._failure


class _Call:
    """One publish that waits for its answer."""

    __slots__ = ("answered", "reason")

    def __init__(self) -> None:
        self.answered = threading.Event()
        self.reason: int | str | None = None

    def answer(self, _: object, reason: int | str | None) -> None:
        self.reason = reason
        self.answered.set()


class _Replica(SyncObjConsumer):  # type: ignore[misc]
    """Where agreed commands arrive, always in the node's own thread."""

    def __init__(self, state: ControlState) -> None:
        super().__init__()
        self.state = state

    @replicated  # type: ignore[untyped-decorator]
    def apply(self, command: bytes) -> None:
        """Must not raise, and must do the same on every node: what cannot be read is left out by all of them."""
        try:
            self.state = apply_all(self.state, decode(command))
        except CorruptData as error:
            log.error("control_command_skipped", reason=str(error))


class _Files:
    """The node's files, brought into a state that the library can start from, whatever happened to them."""

    def __init__(self, data_dir: Path) -> None:
        self.directory = data_dir / "control"
        self.journal = self.directory / "journal"
        self.snapshot = self.directory / "snapshot"
        self.rebuild_marker = self.directory / "needs-rebuild"

    def open(self, *, with_peers: bool) -> tuple[Journal, ControlState]:
        """What is damaged is kept aside as *.damaged, and the rest is used: a snapshot outlives its journal, and a journal goes on
        before its damage.
        """
        with disk_errors(self.directory):
            self.directory.mkdir(parents=True, exist_ok=True)
            for path in (self.journal, self.snapshot):
                path.exists()  # says so when nobody may look
        state, before, last = self._read_snapshot()
        journal = self._open_journal(with_peers)
        try:
            self._reconcile(journal, before, last)
        except CorruptData as error:
            self._set_aside(self.journal, error)
            promised = journal.getCurrentTerm(), journal.getVotedForNodeId()
            journal._destroy()
            journal = Journal(self.journal, with_peers=with_peers)
            journal.setCurrentTerm(*promised)
            self._begin_with(journal, before, last)
        except BaseException:
            journal._destroy()
            raise
        return journal, state

    def _read_snapshot(self) -> tuple[ControlState, Entry | None, Entry | None]:
        if not self.snapshot.exists():
            return EMPTY, None, None
        try:
            return read_snapshot(self.snapshot)
        except CorruptData as error:
            self._set_aside(self.snapshot, error)
            return EMPTY, None, None

    def _open_journal(self, with_peers: bool) -> Journal:
        if not self.journal.exists():
            replace_file(self.rebuild_marker, b"")
        try:
            journal = Journal(self.journal, with_peers=with_peers)
        except CorruptData as error:
            try:
                with disk_errors(self.journal):
                    shutil.copyfile(self.journal, self.journal.with_name("journal.damaged"))
                replace_file(self.rebuild_marker, b"")
                journal = Journal(self.journal, with_peers=with_peers, salvage=True)
                log.error("control_journal_cut", path=str(self.journal), reason=str(error))
            except CorruptData:
                self._set_aside(self.journal, error)
                journal = Journal(self.journal, with_peers=with_peers)
        if journal.torn:
            replace_file(self.rebuild_marker, b"")
        return journal

    def _set_aside(self, path: Path, why: CorruptData) -> None:
        log.error("control_file_set_aside", path=str(path), reason=str(why))
        replace_file(self.rebuild_marker, b"")
        with disk_errors(path):
            rename_synced(path, path.with_name(path.name + ".damaged"))

    def _reconcile(self, journal: Journal, before: Entry | None, last: Entry | None) -> None:
        """Let the journal begin with the snapshot's two entries.

        After a crash between snapshot and compaction it begins earlier; the library would then drop all of it, the
        entries after the snapshot included.
        """
        entries = cast("list[Entry]", journal[:])
        if before is None:
            if entries and entries[0][1] != 1:
                raise CorruptData(str(self.journal), 0, f"begins at entry {entries[0][1]}, and there is no snapshot")
        elif before in entries and entries[entries.index(before) + 1 :][:1] == [last]:
            if entries[0] != before:
                journal.deleteEntriesTo(entries.index(before))
        elif entries:
            raise CorruptData(str(self.journal), 0, "does not contain what the snapshot ends with")
        else:
            self._begin_with(journal, before, last)

    @staticmethod
    def _begin_with(journal: Journal, before: Entry | None, last: Entry | None) -> None:
        """Let an empty journal go on from a snapshot, whose two entries the library looks for there."""
        if before is not None and last is not None:
            journal.add(*before)
            journal.add(*last)
            if journal.getCurrentTerm() < last[2]:
                journal.setCurrentTerm(last[2], None)
            journal.setRaftCommitIndex(last[1])
            journal.sync()


def check_config(config: ControlConfig) -> None:
    """Raises UsageError when the peers could not be trusted or reached."""
    if not config.peers:
        return
    addresses = [_address(text) for text in (config.listen, *config.peers)]
    if config.password is not None:
        if len(config.password) < SECRET_CHARS_MIN:
            raise UsageError(f"[control] password: at least {SECRET_CHARS_MIN} characters, better a generated secret")
        if not HAS_CRYPTO:
            raise UsageError("[control] password: needs the package `cryptography`")
    elif not all(_is_loopback(host) for host, _ in addresses):
        raise UsageError("[control] peers beyond this machine need a password")


def _address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise UsageError(f"[control] not host:port: {text[:100]!r}")
    return host.strip("[]"), int(port)


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


# What the library gets instead of its own: journals, pickle, decompression, connections.


class _PlainPickle:
    """Stands in for the pickle module: plain values only. Protocol 4 knows bytes without calling a function for them."""

    class _Unpickler(pickle.Unpickler):
        def find_class(self, module: str, name: str) -> Any:
            raise pickle.UnpicklingError(f"{module}.{name} is not a plain value")

    @classmethod
    def load(cls, file: io.BufferedIOBase) -> Any:
        return cls._Unpickler(file).load()

    @classmethod
    def loads(cls, data: bytes) -> Any:
        return cls.load(io.BytesIO(data))

    _load, _loads = load, loads

    @staticmethod
    def dump(value: Any, file: io.BufferedIOBase, _: object = None) -> None:
        file.write(pickle.dumps(value, 4))

    @staticmethod
    def dumps(value: Any, _: object = None) -> bytes:
        return pickle.dumps(value, 4)


class _BoundedZlib:
    compress = staticmethod(zlib.compress)

    @staticmethod
    def decompress(data: bytes) -> bytes:
        inflating = zlib.decompressobj()
        content = inflating.decompress(data, _MESSAGE_BYTES_MAX)
        if not inflating.eof:
            raise zlib.error("message too large or incomplete")
        return content


class _BoundedConnection(TcpConnection):  # type: ignore[misc]
    """Hangs up on a peer that announces a frame beyond the bound, before taking it in."""

    def _TcpConnection__processRead(self) -> bool:  # noqa: N802  the library's private name
        more = bool(super()._TcpConnection__processRead())
        buffered = self._TcpConnection__readBuffer
        if len(buffered) >= 4 and not 0 < int.from_bytes(buffered[:4], "little", signed=True) <= _MESSAGE_BYTES_MAX:
            self.disconnect()
            return False
        return more and len(buffered) <= _MESSAGE_BYTES_MAX


class _PeerTransport(TCPTransport):  # type: ignore[misc]
    """Peers only: no administration and no silent listeners over the wire."""

    def tryGetReady(self) -> None:  # noqa: N802
        try:
            super().tryGetReady()
        except TransportNotReadyError:
            self._server.unbind()  # closes the socket that could not be bound
            raise

    def setOnUtilityMessageCallback(self, message: str, callback: Callable[..., None] | None) -> None:  # noqa: N802
        pass

    def _onIncomingMessageReceived(self, conn: TcpConnection, message: Any) -> None:  # noqa: N802
        """Take in a peer that connects to us. The library would let a stranger with a peer's name cut that link for good."""
        if self._syncObj.encryptor and not conn.sendRandKey:
            super()._onIncomingMessageReceived(conn, message)
            return
        node = self._nodeAddrToNode.get(message) if isinstance(message, str) else None
        if node is None or self._shouldConnect(node):  # nobody we know, or one that we connect to, not it to us
            conn.disconnect()
            return
        replaced = self._connections.get(node)
        super()._onIncomingMessageReceived(conn, message)
        if replaced not in (None, conn):
            replaced.disconnect()  # if that was the true one it notices, and comes again


def _harden() -> None:
    pysyncobj.pickle.pickle = _PlainPickle
    pysyncobj.tcp_connection.zlib = _BoundedZlib
    pysyncobj.tcp_server.TcpConnection = _BoundedConnection
    pysyncobj.transport.TcpConnection = _BoundedConnection
    pysyncobj.syncobj.createJournal = lambda journal: journal


_harden()
