"""A cluster with transactions and groups under a seed: the batches that its brokers append, and what is true of each transaction.

Its coordinators do what Kafka's do, in steps of one batch, so that an archive of any moments can be made of it. Sources: Kafka 4.3's
TransactionCoordinator, TransactionMetadata and GroupMetadataManager; KIP-447, KIP-890, KIP-939.
"""

from copy import copy
from dataclasses import dataclass, field
from enum import IntEnum
from random import Random
from typing import NamedTuple

from headwater_core.partition import topic_id_text
from headwater_core.segments import flexible
from headwater_core.segments.encoder import encode_marker
from headwater_core.segments.markers import ABORT, COMMIT
from headwater_core.segments.records import Record
from headwater_core.segments.share_records import SNAPSHOT
from recovery.coordinators import OFFSETS, TRANSACTIONS
from recovery.recovery_plan import Place
from recovery.share_groups import SHARE_GROUPS
from tests.headwater_core.manual_clock import ManualClock
from tests.headwater_core.segments.builders import Producer, a_batch
from tests.recovery.written_archive import share_key, snapshot, text

TWO_PHASE_MS = 2**31 - 1  # the timeout of a transaction that only its transaction manager ends
EPOCH_EXHAUSTED = 2**15 - 2
TOPICS = {"orders": 2, "menu": 1, "bills": 1}
GROUPS = ("simple", "empty", "stable", "consumer")


class Status(IntEnum):
    EMPTY, ONGOING, PREPARE_COMMIT, PREPARE_ABORT, COMPLETE_COMMIT, COMPLETE_ABORT = range(6)


class Appended(NamedTuple):
    """step: when it was"""

    step: int
    base_offset: int
    next_offset: int
    leader_epoch: int
    raw: bytes


@dataclass(slots=True)
class Log:
    """start: of its first segment, which may be without batches there"""

    leader_epoch: int
    end: int = 0
    batches: list[Appended] = field(default_factory=list)
    elections: list[tuple[int, int]] = field(default_factory=list)
    """Step and leader epoch of each; some are followed by no batch."""
    start: int = 0

    def until(self, step: int) -> list[Appended]:
        return [batch for batch in self.batches if batch.step <= step]

    def epoch_at(self, step: int) -> int:
        return max(epoch for since, epoch in self.elections if since <= step)


@dataclass(slots=True)
class Transaction:
    """parts: the offsets of its records, committed offsets included. states: those of its coordinator's. fate: None while it is open.
    is_torn: a recovery has named it as such"""

    number: int
    transactional_id: str
    producer_id: int
    producer_epoch: int
    version: int
    parts: dict[Place, list[int]] = field(default_factory=dict)
    states: list[int] = field(default_factory=list)
    fate: int | None = None
    is_torn: bool = False

    def __str__(self) -> str:
        fate = {None: "open", COMMIT: "committed", ABORT: "aborted"}[self.fate]
        places = ", ".join(f"{topic}:{number} {offsets}" for (topic, number), offsets in sorted(self.parts.items()))
        return f"t{self.number} of {self.transactional_id}, v{self.version}, {self.producer_id}/{self.producer_epoch}, {fate}: {places}"


@dataclass(slots=True)
class State:
    """A transactional id, as its coordinator has it. waiting: for their markers"""

    producer_id: int
    producer_epoch: int
    timeout_ms: int
    version: int
    status: Status = Status.EMPTY
    partitions: set[Place] = field(default_factory=set)
    updated_ms: int = -1
    started_ms: int = -1
    previous_producer_id: int = -1
    next_producer_id: int = -1
    waiting: list[Place] = field(default_factory=list)
    transaction: Transaction | None = None

    def encode(self, *, is_flexible: bool) -> bytes:
        by_topic: dict[str, list[int]] = {}
        for topic, number in sorted(self.partitions):
            by_topic.setdefault(topic, []).append(number)
        head = (flexible.i64(self.producer_id), flexible.i16(self.producer_epoch), flexible.i32(self.timeout_ms), flexible.i8(self.status))
        times = (flexible.i64(self.updated_ms), flexible.i64(self.started_ms))
        if not is_flexible:
            named = [text(topic) + flexible.i32(len(ids)) + b"".join(map(flexible.i32, ids)) for topic, ids in by_topic.items()]
            count = -1 if self.status is Status.EMPTY else len(named)
            return b"".join((flexible.i16(0), *head, flexible.i32(count), *named, *times))
        rows = [flexible.string(topic) + flexible.array(map(flexible.i32, ids)) + flexible.tags({}) for topic, ids in by_topic.items()]
        partitions = b"\0" if self.status is Status.EMPTY else flexible.array(rows)
        tags = {0: flexible.i64(self.previous_producer_id), 1: flexible.i64(self.next_producer_id)}
        tags = {tag: raw for tag, raw in tags.items() if raw != flexible.i64(-1)} | {2: flexible.i16(self.version)}
        return b"".join((flexible.i16(1), *head, partitions, *times, flexible.tags(tags)))


@dataclass(slots=True)
class Client:
    """A transactional producer, as it knows itself. What it had begun when the cluster was lost, it may go on with."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    version: int
    transaction: Transaction | None = None


class TransactionCluster:
    def __init__(self, random: Random) -> None:
        self._random, self.clock, self.step = random, ManualClock(), 0
        self.began_ms = self.clock.now_ms()
        counts = TOPICS | {TRANSACTIONS: random.choice((1, 2)), OFFSETS: random.choice((1, 2)), SHARE_GROUPS: 1}
        self.logs: dict[Place, Log] = {}
        for topic, count in counts.items():
            for number in range(count):
                epoch = random.randrange(4)
                self.logs[topic, number] = Log(epoch, elections=[(0, epoch)])
        self.counts = counts
        self.topic_ids = {topic: topic_id_text(bytes([number]) * 16) for number, topic in enumerate(counts, 1)}
        self.states: dict[str, State] = {}
        self.clients: dict[str, Client] = {}
        self.transactions: list[Transaction] = []
        self.events: list[str] = []
        self._sequences: dict[tuple[int, int, Place], int] = {}
        self._next_producer_id = 1000
        self._ids = {f"id-{number}": random.choice((1, 2)) for number in range(random.randrange(1, 4))}
        self._two_phase = {name for name in self._ids if random.random() < 0.15}
        self._flexible = random.random() < 0.7
        self._groups = {f"group-{number}": random.choice(GROUPS) for number in range(random.randrange(1, 4))}
        for group in self._groups:
            self._describe(group)

    def recovered(
        self, random: Random, logs: dict[Place, Log], transactions: list[Transaction], next_producer_id: int, began_ms: int
    ) -> "TransactionCluster":
        """Return the cluster that goes on with these logs, a second life: its coordinators know no transactional id any more."""
        again = copy(self)
        again._random, again.clock, again.began_ms, again.step = random, ManualClock(began_ms), began_ms, 0
        again.logs, again.transactions, again.events = logs, transactions, []
        again.states, again.clients, again._groups = {}, dict(self.clients), dict(self._groups)
        again._ids = {name: random.choice((1, 2)) for name in self._ids}
        again._next_producer_id = next_producer_id - 1
        return again

    @property
    def data(self) -> list[Place]:
        return [place for place in self.logs if place[0] in TOPICS]

    def run(self, steps: int) -> None:
        while self.step < steps:
            self.clock.advance(self._random.choice((5, 200, 3000)))
            self._act()

    def _act(self) -> None:
        random = self._random
        choice = random.random()
        waiting = [name for name, state in self.states.items() if state.status in (Status.PREPARE_COMMIT, Status.PREPARE_ABORT)]
        if waiting and choice < 0.45:
            self._go_on(random.choice(waiting))
        elif choice < 0.85:
            self._use(random.choice(list(self._ids)))
        elif choice < 0.9:
            place = random.choice(self.data)
            self._append(place, [b"plain"])
        elif choice < 0.92:
            self._share()
        elif choice < 0.97:
            self._use_group(random.choice(list(self._groups)))
        else:
            self._elect(random.choice(list(self.logs)))

    # Transactions

    def _use(self, name: str) -> None:
        random, state, client = self._random, self.states.get(name), self.clients.get(name)
        if state is not None and state.status in (Status.PREPARE_COMMIT, Status.PREPARE_ABORT):
            return
        if state is None or client is None or (client.producer_id, client.producer_epoch) != (state.producer_id, state.producer_epoch):
            self._initialize(name)
        elif client.transaction is None:
            if random.random() < 0.06:
                self._expire(name)
            elif random.random() < 0.08:
                self._initialize(name)
            else:
                self._begin(client, state)
        elif random.random() < 0.5:
            self._write(client, state)
        elif random.random() < 0.85:
            self._end(client, state, COMMIT if random.random() < 0.75 else ABORT)
        elif random.random() < 0.5:
            self._initialize(name)
        elif name not in self._two_phase:
            self.clock.advance(state.timeout_ms)
            self._fence(name, state)

    def _initialize(self, name: str) -> None:
        """A new session; one that finds the former's transaction aborts it first, and comes again."""
        state, version = self.states.get(name), self._ids[name]
        if state is not None and state.status is Status.ONGOING:
            self._fence(name, state)
            return
        timeout_ms = TWO_PHASE_MS if name in self._two_phase else 60_000
        if state is None:
            epoch = 0 if self._random.random() < 0.8 else EPOCH_EXHAUSTED - 2  # as after many sessions
            state = self.states[name] = State(self._new_producer_id(), epoch, timeout_ms, version)
        elif state.producer_epoch >= EPOCH_EXHAUSTED:
            state.previous_producer_id = state.producer_id
            state.producer_id, state.producer_epoch = self._new_producer_id(), 0
        else:
            state.producer_epoch += 1
        state.status, state.partitions, state.started_ms = Status.EMPTY, set(), -1
        self._log_state(name, state)
        self.clients[name] = Client(name, state.producer_id, state.producer_epoch, version)

    def _begin(self, client: Client, state: State) -> None:
        transaction = Transaction(
            len(self.transactions), client.transactional_id, client.producer_id, client.producer_epoch, client.version
        )
        self.transactions.append(transaction)
        client.transaction = state.transaction = transaction
        state.started_ms = self.clock.now_ms()
        self._write(client, state)

    def _write(self, client: Client, state: State) -> None:
        random, transaction = self._random, client.transaction
        assert transaction is not None
        group = random.choice(list(self._groups)) if random.random() < 0.25 else None
        place = random.choice(self.data) if group is None else self.home_of(OFFSETS, group)
        if place not in state.partitions or state.status is not Status.ONGOING:
            state.status = Status.ONGOING
            state.partitions.add(place)
            self._log_state(client.transactional_id, state)
            if random.random() < 0.1:
                return  # the partition is added, and nothing is written
        if group is None:
            values = [b"t%d" % transaction.number] * random.randrange(1, 3)
            at = self._append(place, values, client)
            transaction.parts.setdefault(place, []).extend(range(at, at + len(values)))
        else:
            transaction.parts.setdefault(place, []).append(self._commit(group, client))

    def _end(self, client: Client, state: State, kind: int) -> None:
        """What the client's EndTxn does; with version 2, its next transaction has another epoch."""
        if state.version == 2:
            if state.producer_epoch >= EPOCH_EXHAUSTED:
                state.next_producer_id = self._new_producer_id()
            state.producer_epoch += 1
        self._prepare(client.transactional_id, state, kind)
        client.transaction = None
        client.producer_epoch = state.producer_epoch
        if state.next_producer_id >= 0:
            client.producer_id, client.producer_epoch = state.next_producer_id, 0

    def _fence(self, name: str, state: State) -> None:
        """The coordinator aborts: for a new session, or after the timeout. The client learns of it when it comes again."""
        state.producer_epoch = min(state.producer_epoch + state.version, 2**15 - 1)
        self._prepare(name, state, ABORT)

    def _prepare(self, name: str, state: State, kind: int) -> None:
        state.status = Status.PREPARE_COMMIT if kind == COMMIT else Status.PREPARE_ABORT
        state.waiting = sorted(state.partitions)
        self._random.shuffle(state.waiting)
        if state.transaction is not None:
            state.transaction.fate = kind
            self.events.append(f"{self.step + 1}: {state.status.name} of t{state.transaction.number}")
        self._log_state(name, state)

    def _go_on(self, name: str) -> None:
        """The coordinator writes a marker, or that it has written all."""
        state = self.states[name]
        if state.waiting:
            self._append_marker(state.waiting.pop(), state, name)
            return
        state.status = Status.COMPLETE_COMMIT if state.status is Status.PREPARE_COMMIT else Status.COMPLETE_ABORT
        state.partitions, state.transaction = set(), None
        if state.next_producer_id >= 0:
            state.previous_producer_id, state.producer_id, state.producer_epoch = state.producer_id, state.next_producer_id, 0
            state.next_producer_id = -1
        self._log_state(name, state)

    def _expire(self, name: str) -> None:
        del self.states[name]
        self._append_record(self.home_of(TRANSACTIONS, name), flexible.i16(0) + text(name), None)

    def _log_state(self, name: str, state: State) -> None:
        state.updated_ms = self.clock.now_ms()
        raw = state.encode(is_flexible=self._flexible or state.version == 2)
        at = self._append_record(self.home_of(TRANSACTIONS, name), flexible.i16(0) + text(name), raw)
        if state.transaction is not None:
            state.transaction.states.append(at)

    def _new_producer_id(self) -> int:
        self._next_producer_id += self._random.randrange(1, 4)
        return self._next_producer_id

    # Groups

    def _use_group(self, group: str) -> None:
        choice = self._random.random()
        if choice < 0.7:
            self._commit(group, None)
        elif choice < 0.85:
            if self._groups[group] in ("empty", "stable"):
                self._groups[group] = self._random.choice(("empty", "stable"))
            self._describe(group)
        else:
            topic, number = self._random.choice(self.data)
            key = b"".join((flexible.i16(1), text(group), text(topic), flexible.i32(number)))
            self._append_record(self.home_of(OFFSETS, group), key, None)

    def _commit(self, group: str, client: Client | None) -> int:
        random = self._random
        topic, number = random.choice(self.data)
        log = self.logs[topic, number]
        key = b"".join((flexible.i16(1), text(group), text(topic), flexible.i32(number)))
        offset, epoch, now = flexible.i64(random.randrange(log.end + 1)), flexible.i32(log.leader_epoch), flexible.i64(self.clock.now_ms())
        version = random.choice((1, 3, 4))
        metadata = f"m{self.step}"
        if version == 1:
            value = flexible.i16(1) + offset + text(metadata) + now + flexible.i64(self.clock.now_ms() + 3_600_000)
        elif version == 3:
            value = flexible.i16(3) + offset + epoch + text(metadata) + now
        else:
            value = flexible.i16(4) + offset + epoch + flexible.string(metadata) + now + flexible.tags({})
        return self._append_record(self.home_of(OFFSETS, group), key, value, client)

    def _describe(self, group: str) -> None:
        """What its coordinator writes about the group itself."""
        place, kind = self.home_of(OFFSETS, group), self._groups[group]
        if kind == "consumer":
            self._append_record(place, flexible.i16(3) + text(group), flexible.i16(0) + flexible.i32(1) + flexible.tags({}))
        elif kind != "simple":
            none = flexible.i16(-1)
            head = flexible.i16(3) + text("consumer") + flexible.i32(self.step) + none + none + flexible.i64(self.clock.now_ms())
            member = b"".join(
                (text("m-1"), none, text("c"), text("/h"), flexible.i32(300_000), flexible.i32(45_000), *[flexible.i32(0)] * 2)
            )
            members = flexible.i32(0) if kind == "empty" else flexible.i32(1) + member
            self._append_record(place, flexible.i16(2) + text(group), head + members)

    def _share(self) -> None:
        """The state of a share group in a partition: done up to some offset, and with one batch above it."""
        topic, number = self._random.choice(self.data)
        log = self.logs[topic, number]
        start = self._random.randrange(log.end + 1)
        batches = [(start, self._random.randrange(start, log.end), 0, 1)] if start < log.end else []
        key = share_key(f"shared-{self._random.randrange(2)}", number, kind=SNAPSHOT, topic_id=self.topic_ids[topic])
        self._append_record((SHARE_GROUPS, 0), key, snapshot(start, *batches, leader_epoch=log.leader_epoch))

    # Logs

    def home_of(self, topic: str, name: str) -> Place:
        """The partition of the coordinator of a group or a transactional id."""
        code = 0
        for letter in name:
            code = (code * 31 + ord(letter)) & 0xFFFFFFFF
        return topic, (code & 0x7FFFFFFF) % self.counts[topic]

    def _elect(self, place: Place) -> None:
        log = self.logs[place]
        log.leader_epoch += self._random.randrange(1, 3)
        log.elections.append((self.step, log.leader_epoch))

    def _append_record(self, place: Place, key: bytes, value: bytes | None, client: Client | None = None) -> int:
        log = self.logs[place]
        producer = Producer(id=client.producer_id, epoch=client.producer_epoch, sequence=-1) if client else None
        record = Record(log.end, self.clock.now_ms(), key, value, ())
        raw = a_batch(log.end, [record], epoch=log.leader_epoch, producer=producer, transactional=client is not None)
        return self._keep(place, raw, 1, "record" if client is None else f"commit of t{client.transaction and client.transaction.number}")

    def _append(self, place: Place, values: list[bytes], client: Client | None = None) -> int:
        log, producer = self.logs[place], None
        if client is not None:
            key = client.producer_id, client.producer_epoch, place
            producer = Producer(id=client.producer_id, epoch=client.producer_epoch, sequence=self._sequences.get(key, 0))
            self._sequences[key] = producer.sequence + len(values)
        records = [Record(log.end + at, self.clock.now_ms(), None, value, ()) for at, value in enumerate(values)]
        raw = a_batch(log.end, records, epoch=log.leader_epoch, producer=producer, transactional=client is not None)
        return self._keep(place, raw, len(values), values[0].decode())

    def _append_marker(self, place: Place, state: State, name: str) -> None:
        log, kind = self.logs[place], COMMIT if state.status is Status.PREPARE_COMMIT else ABORT
        raw = encode_marker(
            log.end,
            kind,
            producer_id=state.producer_id,
            producer_epoch=state.producer_epoch,
            coordinator_epoch=self.logs[self.home_of(TRANSACTIONS, name)].leader_epoch,
            leader_epoch=log.leader_epoch,
            timestamp_ms=self.clock.now_ms(),
        )
        self._keep(place, raw, 1, f"{'COMMIT' if kind == COMMIT else 'ABORT'} of t{state.transaction and state.transaction.number}")

    def _keep(self, place: Place, raw: bytes, offsets: int, what: str) -> int:
        log = self.logs[place]
        self.step += 1
        log.batches.append(Appended(self.step, log.end, log.end + offsets, log.leader_epoch, raw))
        if what not in ("record", "plain"):
            self.events.append(f"{self.step}: {what} at {place[0]}:{place[1]} {log.end}")
        log.end += offsets
        return log.end - offsets
