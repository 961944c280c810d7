"""The control log, replicated by pysyncobj.

* The state lives in a SyncObjConsumer with one method, `apply(bytes)`: what the library would pickle, rename or number is
  never ours. Journal and snapshot are our own files (headwater_core/control/journal.py, headwater_core/control/snapshot.py).
* A lone node has no transport: it opens no port, and its files say nothing of an address.
* The library ticks in a thread of ours, which ends with the node and turns a full disk into an error for the callers.
* Every call has its own time-out; the library sometimes loses callbacks.
* What peers may send: headwater_core/control/peer_transport.py.
"""

import threading
from collections import OrderedDict
from functools import partial
from pathlib import Path
from time import monotonic
from types import TracebackType
from typing import Self

import structlog
from pysyncobj import FAIL_REASON, SyncObj, SyncObjConf, SyncObjConsumer, SyncObjException, replicated
from pysyncobj.node import Node as RaftNode
from pysyncobj.transport import Transport

from headwater_core.control.config import ControlConfig
from headwater_core.control.control_files import ControlFiles
from headwater_core.control.control_log import PUBLISH_TIMEOUT_S
from headwater_core.control.control_records import Record, StateDigest, decode, encode
from headwater_core.control.journal import Entry
from headwater_core.control.peer_transport import PeerTransport, check_config
from headwater_core.control.snapshot import read_snapshot, write_snapshot
from headwater_core.control.state import ControlState, apply_all, changed_sum, partition_sum
from headwater_core.errors import CorruptData, HeadwaterError, TransientError, UnknownOutcome, UsageError

log = structlog.get_logger()

_COMPACT_AFTER_ENTRIES = 2_000
_ALONE_S = 0.5  # between two ticks of a lone node without work: it has nobody to hear from, and a publish wakes it
_LONE = RaftNode("lone")
_SUMS_MAX = 10_000  # of the newest commands; a digest arrives within a few
DIGEST_S = 600.0  # between two digests of the leader


class ControlNode:
    """One member of the control log; alone, the whole of it. Its files lie in `data_dir`, whose lock the caller holds.

    Starts at once; `ready` waits until it has caught up. `needs_rebuild` says that its files were missing or damaged: the
    state may lack what the bucket has until the rebuild from it is done. Damaged files are kept aside as *.damaged.

    Raises UsageError for a configuration that cannot work, TransientError when the port is in use, and DiskFull.
    """

    def __init__(self, data_dir: Path, config: ControlConfig | None = None) -> None:
        if not __debug__:
            raise UsageError("the control log does not run under python -O: pysyncobj guards its peers with assert")
        config = config or ControlConfig()
        check_config(config)
        self._files = ControlFiles(data_dir)
        self._journal, state = self._files.open(with_peers=bool(config.peers))
        self._replica = _Replica(state)
        self._alone = not config.peers
        self._ready, self._stop, self._wake = threading.Event(), threading.Event(), threading.Event()
        self._failure: HeadwaterError | None = None
        self._waiting: set[_Call] = set()
        self._digest_at_s = monotonic() + DIGEST_S
        try:
            self._raft = self._start(config)
            self._journal.applied = lambda: int(self._raft.raftLastApplied)
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
        return SyncObj(config.listen, list(config.peers), conf, [self._replica], transportClass=PeerTransport)

    def _save_snapshot(self, path: str, entries: tuple[Entry, Entry, object]) -> None:
        """The library would try again at every tick, without end: a snapshot that cannot be written ends the node instead."""
        try:
            write_snapshot(Path(path), self._replica.state, entries[1], entries[0])
        except HeadwaterError as error:
            self._failure = error

    def _load_snapshot(self, path: str) -> tuple[Entry, Entry, tuple[()]]:
        state, before, last = read_snapshot(Path(path))
        self._replica.load(state)
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
        """ "leader", "follower", or "none" while there is no leader. As last known."""
        if self._failure:
            return "none"
        if self._raft._isLeader():
            return "leader"
        return "none" if self._raft._getLeader() is None else "follower"

    @property
    def applied(self) -> int:
        """The index of the last entry that this node has applied; it grows, but where a node begins again."""
        return int(self._raft.raftLastApplied)

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
            self._replica.apply(encode(records), callback=partial(self._answer, call))
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

    def _answer(self, call: "_Call", outcome: object, reason: int | str | None) -> None:
        """In the library's thread, which has no more to do for it from then on: it must not tick until the caller gets its turn."""
        call.answer(outcome, reason)
        self._waiting.discard(call)

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
                        self._wake.wait(_ALONE_S)
                        self._wake.clear()
                    self._raft.doTick(0.0 if self._ready.is_set() else 0.005)
                else:
                    self._tick_with_peers()
                self._check_agreement()
                self._journal.sync()  # before the next tick acknowledges what this one wrote
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

    def _check_agreement(self) -> None:
        """Raises TransientError when this node's state holds what the others have dropped, and lets the next one begin without it."""
        reason = self._replica.doubt or (
            f"entry {self._journal.lost} was applied here, and the others have another one" if self._journal.lost else ""
        )
        if not reason:
            return
        self._files.begin_again(self._journal.getCurrentTerm(), self._journal.getVotedForNodeId())
        log.warning("control_state_discarded", reason=reason, consequence="it is fetched from the other nodes, and filled from the bucket")
        raise TransientError(f"control log: {reason}; it begins again from the other nodes and the bucket")

    def send_digest(self) -> None:
        """As the leader: let the other nodes compare. Nobody waits for it."""
        newest = self._replica.newest
        if newest is not None and self.role == "leader":
            self._replica.apply(encode([StateDigest(index=newest[0], digest=newest[1])]), callback=lambda *_: None)

    def _tick_with_peers(self) -> None:
        if monotonic() >= self._digest_at_s:
            self._digest_at_s = monotonic() + DIGEST_S
            self.send_digest()
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
    """Where agreed commands arrive, always in the node's own thread.

    newest  the index of the last command that was applied, and what the partitions came to with it
    doubt   why the state cannot be the leader's; "" while nothing shows that
    """

    def __init__(self, state: ControlState) -> None:
        super().__init__()
        self.doubt = ""
        self.load(state)

    def load(self, state: ControlState) -> None:
        """From a snapshot."""
        self.state, self._sum = state, partition_sum(state)
        self._sums: OrderedDict[int, int] = OrderedDict()  # by the index of the command

    @property
    def newest(self) -> tuple[int, int] | None:
        index = next(reversed(self._sums), None)
        return None if index is None else (index, self._sums[index])

    @replicated  # type: ignore[untyped-decorator]
    def apply(self, command: bytes) -> None:
        """Must not raise, and must do the same on every node: what cannot be read is skipped by all of them."""
        try:
            records = decode(command)
        except CorruptData as error:
            log.error("control_command_skipped", reason=str(error))
            return
        for record in records:
            if isinstance(record, StateDigest) and self._sums.get(record.index, record.digest) != record.digest:
                self.doubt = f"after entry {record.index} the leader's partitions came to something else"
        before, self.state = self.state, apply_all(self.state, records)
        self._sum = changed_sum(self._sum, before, self.state, records)
        self._sums[int(self._syncObj.raftLastApplied) + 1] = self._sum
        if len(self._sums) > _SUMS_MAX:
            self._sums.popitem(last=False)
