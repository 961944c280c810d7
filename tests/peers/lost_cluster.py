"""A cluster that was lost, as its logs show it: what was archived of them, and what of its transactions a recovery may show. The judge of
tests.peers.test_lost_moments; it takes the rules from tests.recovery.coordinator_model."""

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from headwater_core.segments import flexible
from headwater_core.segments.coordinator_records import plain_string
from headwater_core.segments.markers import COMMIT, read_marker
from headwater_core.segments.records import Record
from headwater_core.segments.share_records import ShareKey, ShareState
from recovery.coordinators import OFFSETS, TRANSACTIONS
from recovery.cut import TornTransaction
from recovery.share_groups import SHARE_GROUPS, ShareStates
from tests.recovery.coordinator_model import (
    ONGOING,
    PREPARE_ABORT,
    PREPARE_COMMIT,
    Batch,
    Commit,
    CommitKey,
    GroupCoordinator,
    Place,
    Row,
    decode_state,
    outcomes,
    records_of,
)
from tests.recovery.written_archive import batches_in


@dataclass(slots=True)
class Transaction:
    """As its coordinator and its records show it. records, markers: offsets by partition; states: those of its coordinator's records"""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    version: int
    partitions: set[Place] = field(default_factory=set)
    records: dict[Place, list[int]] = field(default_factory=lambda: defaultdict(list))
    markers: dict[Place, tuple[int, int]] = field(default_factory=dict)
    states: list[int] = field(default_factory=list)

    def is_named_by(self, torn: TornTransaction, seen: Collection[Place], unseen: Collection[Place]) -> bool:
        """Some of its COMMITs in `seen`, and that it lacks something in `unseen`."""
        named = {*zip(torn.committed, torn.markers, strict=True)}
        committed = {(f"{topic}:{number}", self.markers[topic, number][0]) for topic, number in seen}
        return torn.producer_id == self.producer_id and bool(named & committed) and bool({*torn.missing} & texts(unseen))


class LostCluster:
    """log_dirs: of its brokers, as they were lost. ends: of what is archived"""

    def __init__(self, log_dirs: Sequence[Path], ends: Mapping[Place, int]) -> None:
        self.ends = ends
        self.logs: dict[Place, list[Batch]] = {}
        for directory in (
            path
            for log_dir in log_dirs
            for path in log_dir.iterdir()
            if (path / "partition.metadata").exists() and not path.name.startswith("__cluster")
        ):
            topic, _, number = directory.name.rpartition("-")
            batches, place = batches_in(directory), (topic, int(number))
            if end_of(batches) >= end_of(self.logs.get(place, [])):  # a follower may lack what its leader wrote last
                self.logs[place] = batches
        self.transactions = list(self._transactions())
        self._last = {name: (offset, partitions) for name, offset, partitions in self._last_states()}

    def archived(self, place: Place) -> list[Batch]:
        return [batch for batch in self.logs[place] if batch[0].next_offset <= self.ends.get(place, 0)]

    def visible(self, place: Place) -> set[int]:
        """The offsets of what was archived that have a COMMIT there, or need none."""
        return {offset for offset, seen in outcomes(Row.of(*batch) for batch in self.archived(place)).items() if seen}

    def _transactions(self) -> Iterator[Transaction]:
        """Each that a coordinator began, with its records: in a log they lie in the order of its markers."""
        of_place: dict[tuple[int, Place], list[Transaction]] = defaultdict(list)
        for place in sorted(place for place in self.logs if place[0] == TRANSACTIONS):
            open_now: dict[str, Transaction] = {}
            for record in records_of(self.logs[place]):
                name = transactional_id(record)
                state = decode_state(record.value) if record.value is not None else None
                if state is None or state.status not in (ONGOING, PREPARE_COMMIT, PREPARE_ABORT):
                    if (ended := open_now.pop(name, None)) is not None:
                        ended.states.append(record.offset)
                    continue
                if name not in open_now:
                    open_now[name] = Transaction(name, state.producer_id, state.epoch, state.version)
                    yield open_now[name]
                transaction = open_now[name]
                transaction.states.append(record.offset)
                for added in sorted(state.partitions - transaction.partitions):
                    of_place[state.producer_id, added].append(transaction)
                transaction.partitions |= state.partitions
        for place, batches in self.logs.items():
            following = {key[0]: iter(found) for key, found in of_place.items() if key[1] == place}
            current: dict[int, Transaction] = {}
            for header, raw in batches:
                if header.producer_id >= 0 and (header.is_transactional or header.is_control):
                    transaction = current.get(header.producer_id) or next(following[header.producer_id])
                    current[header.producer_id] = transaction
                    if header.is_control:
                        transaction.markers[place] = header.base_offset, read_marker(raw).type
                        del current[header.producer_id]
                    else:
                        transaction.records[place] += range(header.base_offset, header.next_offset)

    def in_part(self, torn: Sequence[TornTransaction]) -> Iterator[str]:
        """The transactions that come back in part and are not named, though the archive shows that something is missing."""
        visible = {place: self.visible(place) for place in self.logs}
        for transaction in self.transactions:
            seen = {place for place, offsets in transaction.records.items() if visible[place] & {*offsets}}
            unseen = {place for place in transaction.records if self._lacks(transaction, place, visible[place])}
            is_named = any(transaction.is_named_by(each, seen, unseen) for each in torn)
            if seen and unseen and not is_named:
                yield f"{transaction}: visible at {sorted(seen)}, not at {sorted(unseen)}"

    def wrongly_named(self, torn: Sequence[TornTransaction]) -> Iterator[str]:
        """Of what is named as torn, what is no transaction with a COMMIT archived in some of these partitions, and none in some of those.

        With transactions of version 2, nothing else is named with it: those of version 1 are told apart by their times.
        """
        for each in torn:
            for transaction in self.transactions:
                committed = self._committed(transaction)
                others = transaction.partitions - committed
                is_exact = {*each.committed} <= texts(committed) and {*each.missing} <= texts(others)
                if transaction.is_named_by(each, committed, others) and (is_exact or transaction.version < 2):
                    break
            else:
                yield str(each)

    def _committed(self, transaction: Transaction) -> set[Place]:
        return {place for place, (offset, kind) in transaction.markers.items() if kind == COMMIT and offset < self.ends.get(place, 0)}

    def _lacks(self, transaction: Transaction, place: Place, visible: set[int]) -> bool:
        """Some of its records there are not visible, and the archive shows that it has some."""
        offsets = transaction.records[place]
        last, partitions = self._last.get(transaction.transactional_id, (-1, set[Place]()))
        is_stated = last in transaction.states and place in partitions
        return (is_stated or any(offset < self.ends.get(place, 0) for offset in offsets)) and not visible >= {*offsets}

    def _last_states(self) -> Iterator[tuple[str, int, set[Place]]]:
        """(id, offset, partitions) of what is archived of each coordinator's log, in its order."""
        for place in (place for place in self.logs if place[0] == TRANSACTIONS):
            for record in records_of(self.archived(place)):
                state = decode_state(record.value) if record.value is not None else None
                yield transactional_id(record), record.offset, state.partitions if state is not None else set()

    def commits(self) -> dict[CommitKey, Commit]:
        """What groups had committed, as archived; with a transaction, if its COMMIT is."""
        coordinator = GroupCoordinator()
        for place in (place for place in self.logs if place[0] == OFFSETS):
            visible = self.visible(place)
            for header, raw in self.archived(place):
                if not header.is_control and (not header.is_transactional or header.base_offset in visible):
                    coordinator.load([(header._replace(attributes=0), raw)])
        return coordinator.commits

    def share_states(self) -> dict[ShareKey, ShareState]:
        found: dict[ShareKey, ShareState] = {}
        for place in (place for place in self.logs if place[0] == SHARE_GROUPS):
            states = ShareStates()
            for record in records_of(self.archived(place)):
                states.record(record, "share group")
            assert not states.unknown
            found.update(states.outcome())
        return found


def transactional_id(record: Record) -> str:
    reader = flexible.Reader(record.key or b"", "transaction")
    reader.i16()
    return plain_string(reader, "transactional id")


def end_of(batches: Sequence[Batch]) -> int:
    return batches[-1][0].next_offset if batches else 0


def texts(places: Collection[Place]) -> set[str]:
    return {f"{topic}:{number}" for topic, number in places}
