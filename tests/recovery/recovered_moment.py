"""What a recovery made of an archived moment, as the model of Kafka's leaders and coordinators finds it: the judge of I29."""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import product
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

from headwater_core.segments import flexible
from headwater_core.segments.batches import read_batch_header
from headwater_core.segments.markers import COMMIT
from headwater_core.segments.metadata.metadata_snapshot import read_snapshot
from headwater_core.segments.share_records import ShareKey, ShareState, decode_share_key, decode_share_state
from recovery.coordinators import OFFSETS, TRANSACTIONS
from recovery.layout import BOOTSTRAP
from recovery.recovery_plan import Place, RecoveryPlan
from recovery.share_groups import SHARE_GROUPS
from tests.recovery.archived_moment import HOUR_MS, ArchivedMoment, Former
from tests.recovery.coordinator_model import (
    COMPLETE_COMMIT,
    EPOCH_MAX,
    SESSION_TIMEOUT_MS,
    Batch,
    Commit,
    CommitKey,
    GroupCoordinator,
    LeaderLog,
    Refused,
    Row,
    TransactionCoordinator,
    decode_state,
    outcomes,
    records_of,
)
from tests.recovery.transaction_cluster import TOPICS, Appended, Client, Log, Transaction
from tests.recovery.written_archive import batches_in, text

APART_MS = 10_000


class Problem(NamedTuple):
    """kind: the rule of I29 that is broken"""

    kind: str
    text: str


class RecoveredMoment:
    """The restored files, and what the model's broker makes of them from `now_ms` on."""

    def __init__(self, moment: ArchivedMoment, into: Path, plan: RecoveryPlan) -> None:
        self.moment, self.cluster = moment, moment.cluster
        self.now_ms = moment.clock.now_ms() + 60_000
        metadata = read_snapshot((into / BOOTSTRAP).read_bytes(), BOOTSTRAP)
        self.next_producer_id = metadata.next_producer_id
        self.batches: dict[Place, list[Batch]] = {}
        self.epochs: dict[Place, int] = {}
        self.own: dict[Place, list[Batch]] = {}
        """What recovery wrote."""
        self.below: dict[Place, list[Row]] = {}
        """What stays in the archive and a gateway serves; what is lost of it is among it, as nobody has looked there."""
        self.logs: dict[Place, LeaderLog] = {}
        self.starts: dict[Place, int] = {}
        """Where their first segments begin."""
        self._bounds: dict[Place, int] = {}
        self._requested: dict[Place, int] = {}
        """Where the user lets logs end."""
        for topic in plan.topics:
            for partition in topic.partitions:
                place = topic.topic, partition.partition
                found = self.batches[place] = batches_in(into / f"{place[0]}-{place[1]}")
                self.epochs[place] = metadata.topics[place[0]].partitions[place[1]].leader_epoch + 1  # of the first leader
                archived = {batch.raw for batch in moment.logs[place]}
                self.own[place] = [batch for batch in found if batch[1] not in archived]
                start = found[0][0].base_offset if found else partition.next_offset
                self.starts[place] = start if place in self.cluster.data else partition.start_offset
                is_served = moment.options.mode != "full" and place in self.cluster.data
                stays = [batch for batch in moment.logs[place] if batch.base_offset < start] if is_served else []
                self.below[place] = [Row.of(read_batch_header(batch.raw), batch.raw) for batch in stays]
                self.logs[place] = LeaderLog((Row.of(*batch) for batch in found), partition.next_offset)
                self._bounds[place] = partition.next_offset
                self._requested[place] = partition.end.offset if partition.end is not None else self.cluster.logs[place].end + 1
        self.torn = getattr(plan.cut, "torn", ())
        self.plan = plan

    def _kept(self, place: Place) -> list[Batch]:
        """What is archived and not lost."""
        lost = self.moment.lost.get(place, ())
        return [
            (read_batch_header(batch.raw), batch.raw)
            for batch in self.moment.logs[place]
            if not any(first <= batch.base_offset <= last for first, last in lost)
        ]

    def goes_on(self, random: Random) -> Former:
        """Return the cluster as it goes on, with what it archives to: the archive that it came from, or an empty one."""
        moment, bounds, ended = self.moment, self._bounds, self._outcomes(self.logs)
        archived_ends = moment.archive.ends()
        ends_in_lost = any(archived_ends[place] == last + 1 for place, lost in moment.lost.items() for _, last in lost)  # with its index
        continues = (
            (moment.options.take_over or moment.options.cluster_id is not None) and not ends_in_lost and moment.archive.tells_what_is_open()
        )
        archive = moment.archive if continues else None
        starts = dict.fromkeys(self.starts, 0) if archive is not None else self.starts
        named = {(torn.producer_id, torn.producer_epoch) for torn in self.torn}
        transactions = []
        for transaction in self.cluster.transactions:
            home = self.cluster.home_of(TRANSACTIONS, transaction.transactional_id)
            there = {place: [at for at in offsets if starts[place] <= at < bounds[place]] for place, offsets in transaction.parts.items()}
            visible = {place: [at for at in offsets if ended[place].get(at)] for place, offsets in there.items()}
            is_torn = (transaction.producer_id, transaction.producer_epoch) in named
            is_over = is_torn and transaction.fate == COMMIT  # what is named, and aborted in a gap of the archive, stays so
            known = visible if any(visible.values()) or is_over else there
            parts = {place: offsets for place, offsets in known.items() if offsets}
            states = [offset for offset in transaction.states if offset < bounds[home]]
            transactions.append(replace(transaction, parts=parts, states=states, is_torn=is_torn))
        logs, ends = dict[Place, Log](), archived_ends if archive is not None else {}
        for place, log in self.logs.items():
            archived = [batch._replace(step=0) for batch in moment.logs[place]] if archive is not None else []
            new = [batch for batch in self.batches[place] if batch[0].base_offset >= ends.get(place, 0)]
            batches = archived + [Appended(0, header.base_offset, header.next_offset, header.leader_epoch, raw) for header, raw in new]
            logs[place] = Log(self.epochs[place], log.end, batches, [(0, self.epochs[place])], starts[place])
        cluster = self.cluster.recovered(random, logs, transactions, self.next_producer_id, self.now_ms)
        return Former(cluster, self.plan.cluster_id, archive, moment.lost if archive is not None else {})

    def problems(self) -> list[Problem]:
        if self.moment.options.open_transactions == "keep":
            return [*self._kept_problems()]
        found = [*self._own_markers()]
        logs = {place: log.copy() for place, log in self.logs.items()}
        coordinator = self._coordinator(logs)
        found += [Problem("unknown", f"{name} has a state that nobody can read") for name in sorted(coordinator.unknown)]
        coordinator.run(self.now_ms)
        coordinator.run(self.now_ms + HOUR_MS)
        found += [Problem("hangs", refusal) for refusal in coordinator.refusals]
        for place, log in sorted(logs.items()):
            if log.last_stable_offset != log.end:
                found.append(Problem("stuck", f"{place[0]}:{place[1]} has LSO {log.last_stable_offset} of {log.end}"))
        found += self._visible(logs)
        found += self._new_producers(coordinator)
        found += self._survivors()
        found += self._groups(logs)
        found += self._share_groups()
        return found

    def _coordinator(self, logs: dict[Place, LeaderLog]) -> TransactionCoordinator:
        coordinator = TransactionCoordinator(logs, self.next_producer_id)
        for place, batches in sorted(self.batches.items()):
            if place[0] == TRANSACTIONS:
                coordinator.load(batches, self.epochs[place])
        return coordinator

    def _kept_problems(self) -> Iterator[Problem]:
        """With open transactions kept, I29 is not promised: records are as they were archived, and the plan says what is open."""
        for place, batches in sorted(self.batches.items()):
            where = f"{place[0]}:{place[1]}"
            if place[0] not in (OFFSETS, SHARE_GROUPS) and self.own[place]:
                yield Problem("keep", f"{where} has records of the recovery's own")
            if any(header.is_control for header, _ in self.own[place]):
                yield Problem("keep", f"{where} has a marker of the recovery's own")
            own = {header.base_offset for header, _ in self.own[place]}
            start = batches[0][0].base_offset if batches else self._bounds[place]
            wanted = [raw for header, raw in self._kept(place) if start <= header.base_offset < self._bounds[place]]
            if wanted != [raw for header, raw in batches if header.base_offset not in own]:
                yield Problem("keep", f"{where} is not what was archived")
        yield from self._open_problems()
        yield from self._groups(self.logs)
        yield from self._share_groups()

    def _open_problems(self) -> Iterator[Problem]:
        """Each transaction that stays open is named, and ended by the coordinator if the plan says so."""
        assert self.plan.cut is not None
        named = {
            (each.topic, each.partition, each.producer_id): each.outcome == "ended by the coordinator"
            for each in self.plan.cut.transactions
        }
        logs = {place: log.copy() for place, log in self.logs.items()}
        self._coordinator(logs).run(self.now_ms + HOUR_MS)  # leaders know nothing of what stays in the archive
        for place, local in sorted(self.logs.items()):
            if self._is_unread(place):
                continue
            lost = self.moment.lost.get(place, ())
            read = [row for row in self.below[place] if not any(first <= row.base_offset <= last for first, last in lost)]
            ends = [row for row in self.below[place] if row in read or row.kind is not None]  # markers that are lost have ended something
            opened, *others = (LeaderLog((*below, *local.rows), local.end).opened for below in (ends, read, self.below[place]))
            may_be_open = opened.union(*others)  # an index may be left of a run that is lost
            after = LeaderLog((*ends, *logs[place].rows), logs[place].end).opened
            if opened and not any(text.startswith(f"{place[0]}:{place[1]} ends inside a transaction") for text in self.plan.endings):
                yield Problem("keep", f"{place[0]}:{place[1]} ends inside a transaction, and the plan does not say so")
            for producer_id in sorted(opened):
                is_ended = producer_id not in after
                if named.get((*place, producer_id)) is not is_ended:
                    yield Problem("keep", f"{place[0]}:{place[1]}, {producer_id} ended: {is_ended}, the plan {named}")
            for producer_id in sorted(producer_id for *at, producer_id in named if (*at,) == place and producer_id not in may_be_open):
                yield Problem("keep", f"{place[0]}:{place[1]}: nothing of {producer_id} is open, the plan {named}")

    def _is_unread(self, place: Place) -> bool:
        """The plan says that nobody knows what is open there: what tells is lost."""
        text = f"{place[0]}:{place[1]}: which transactions are open"
        return self._ends_in_lost(place) and any(each.startswith(text) for each in self.plan.endings)

    def _ends_in_lost(self, place: Place) -> bool:
        last = max((batch.base_offset for batch in self.moment.logs[place]), default=-1)
        return any(first <= last <= end for first, end in self.moment.lost.get(place, ()))

    # What recovery wrote

    def _own_markers(self) -> Iterator[Problem]:
        """A marker's epoch is above its data's (KIP-1228), and its coordinator's is not below that of the producer's last one.

        Of one that stays in the archive the leader knows nothing, and of one that is lost nobody does.
        """
        for place, batches in sorted(self.batches.items()):
            newest = max((header.leader_epoch for header, _ in batches), default=-1)
            if newest >= self.epochs[place]:
                yield Problem("epoch", f"{place[0]}:{place[1]} has a batch of {newest}, its leader begins with {self.epochs[place]}")
            written = {header.base_offset for header, _ in self.own[place]}
            last: dict[int, Row] = {}
            ended: dict[int, int] = {}
            lost = self.moment.lost.get(place, ())
            kept = [row for row in self.below[place] if not any(first <= row.base_offset <= end for first, end in lost)]
            for row in (*kept, *(Row.of(*batch) for batch in batches)):
                before = last.get(row.producer_id)
                if row.kind is not None and row.base_offset in written and before is not None:
                    where = f"{place[0]}:{place[1]} {row.base_offset}: {row.producer_id}/{row.producer_epoch}"
                    is_retry = before.kind is not None and row.producer_epoch == before.producer_epoch
                    if row.producer_epoch <= before.producer_epoch and row.producer_epoch != EPOCH_MAX and not is_retry:
                        yield Problem("marker", f"{where} ends {before.producer_epoch}")
                    if row.coordinator_epoch < ended.get(row.producer_id, -1):
                        yield Problem("marker", f"{where} of coordinator {row.coordinator_epoch} after {ended[row.producer_id]}")
                if row.producer_id >= 0:
                    last[row.producer_id] = row
                if row.kind is not None and row.base_offset >= self.starts[place]:
                    ended[row.producer_id] = row.coordinator_epoch

    # Transactions

    def _outcomes(self, logs: dict[Place, LeaderLog]) -> dict[Place, dict[int, bool | None]]:
        """Of what was archived: the same offset in a log that ends early is another record's."""
        found = {place: outcomes((*self.below[place], *log.rows)) for place, log in logs.items()}
        return {place: {offset: seen for offset, seen in ended.items() if offset < self._bounds[place]} for place, ended in found.items()}

    def _visible(self, logs: dict[Place, LeaderLog]) -> Iterator[Problem]:
        found = self._outcomes(logs)
        for transaction in self.cluster.transactions:
            seen = {place for place, offsets in transaction.parts.items() if any(found[place].get(offset) for offset in offsets)}
            seen = {place for place in seen if not self._has_lost_end(transaction, place)}
            if not seen or self._is_far_apart(transaction):
                continue
            if transaction.fate != COMMIT:
                yield Problem("phantom", f"{transaction} is visible at {sorted(seen)}")
            unseen = {place for place in transaction.parts if self._lacks(transaction, place, found[place]) and not self._is_unread(place)}
            if unseen and not self._is_named(transaction, seen, unseen):
                yield Problem("half", f"{transaction}: visible at {sorted(seen)}, not at {sorted(unseen)}")
            places = {place for place in unseen if place in self.cluster.data}
            if self.moment.options.open_transactions == "cut" and places and seen - {place for place in seen if place[0] == OFFSETS}:
                yield Problem("uncut", f"{transaction}: visible at {sorted(seen)}, not at {sorted(unseen)}")
        if self._is_of_one_moment:
            yield from (
                Problem("torn", f"all logs were archived at one moment, and the plan names {torn}") for torn in self._wrongly_torn()
            )

    @property
    def _is_of_one_moment(self) -> bool:
        moment = self.moment
        is_whole = not moment.options.to_offsets and moment.options.to_time_ms is None
        return moment.order == "equal" and is_whole and not (moment.lost or moment.foreign)

    def _wrongly_torn(self) -> Iterator[Any]:
        """Those that have all their markers."""
        unfinished = [state.transaction for state in self.cluster.states.values()]
        for torn in self.torn:
            for transaction in self.cluster.transactions:
                is_this = (transaction.producer_id, transaction.producer_epoch) == (torn.producer_id, torn.producer_epoch)
                if is_this and transaction.version == 2 and not transaction.is_torn and transaction not in unfinished:
                    yield torn

    def _has_lost_end(self, transaction: Transaction, place: Place) -> bool:
        """Its marker is in a lost run, below the local log: no plan can know what it was."""
        after = max(transaction.parts[place])
        of = (row for row in self.below[place] if row.kind is not None and row.producer_id == transaction.producer_id)
        end = next((row.base_offset for row in of if row.base_offset > after), None)
        return end is not None and any(first <= end <= last for first, last in self.moment.lost.get(place, ()))

    def _is_far_apart(self, transaction: Transaction) -> bool:
        """Of version 1, with markers further apart than what a plan takes for those of one transaction."""
        times = []
        for place, offsets in transaction.parts.items():
            rows = (Row.of(read_batch_header(batch.raw), batch.raw) for batch in self.moment.logs[place])
            ends = (row for row in rows if row.kind is not None and row.producer_id == transaction.producer_id)
            times += [row.timestamp_ms for row in ends if row.base_offset > max(offsets)][:1]
        return transaction.version == 1 and bool(times) and max(times) - min(times) > APART_MS

    def _lacks(self, transaction: Transaction, place: Place, found: dict[int, bool | None]) -> bool:
        """Some of its records there are neither visible nor named as lost by the plan, though the archive shows that it has some."""
        lost = self.moment.lost.get(place, ())
        kept = [offset for offset in transaction.parts[place] if not any(first <= offset <= last for first, last in lost)]
        if all(found.get(offset) for offset in kept):
            return False
        end = min(self._requested[place], max((batch.next_offset for batch in self.moment.logs[place]), default=0))
        return any(offset < end for offset in kept) or place in self._stated(transaction)

    def _stated(self, transaction: Transaction) -> set[Place]:
        """Its partitions, if the last of what its coordinator says of that id is about it: compaction takes the others."""
        home, key = self.cluster.home_of(TRANSACTIONS, transaction.transactional_id), flexible.i16(0) + text(transaction.transactional_id)
        archived = [batch for batch in self.batches[home] if batch[0].base_offset < self._bounds[home]]
        last = next((record for record in reversed(list(records_of(archived))) if record.key == key), None)
        if last is None or last.offset not in transaction.states or last.value is None:
            return set()
        state = decode_state(last.value)
        return state.partitions if state is not None else set()

    def _is_named(self, transaction: Transaction, seen: set[Place], unseen: set[Place]) -> bool:
        def texts(places: set[Place]) -> set[str]:
            return {f"{topic}:{number}" for topic, number in places}

        ends = {(f"{topic}:{number}", self._marker(transaction, (topic, number))) for topic, number in seen}
        return any(
            torn.producer_id == transaction.producer_id
            and torn.producer_epoch in (transaction.producer_epoch, transaction.producer_epoch + 1)
            and {*zip(torn.committed, torn.markers, strict=True)} & ends
            and {*torn.missing} & texts(unseen)
            for torn in self.torn
        )

    def _marker(self, transaction: Transaction, place: Place) -> int:
        """The offset of its end there, which is the producer's first behind its records; -1: it has none."""
        last = max(transaction.parts[place])
        rows = (*self.below[place], *self.logs[place].rows)
        ends = (row for row in rows if row.kind is not None and row.producer_id == transaction.producer_id)
        return next((row.base_offset for row in ends if row.base_offset > last), -1)

    def _new_producers(self, coordinator: TransactionCoordinator) -> Iterator[Problem]:
        """Each transactional id can be initialized, and its producer can write and commit everywhere."""
        known = {client.transactional_id for client in self.cluster.clients.values()} | coordinator.states.keys()
        now_ms = self.now_ms + HOUR_MS
        for name in sorted(known):
            version = 1 + self.moment.seed % 2
            try:
                state = coordinator.initialize(name, now_ms, version)
                producer_id, epoch = state.producer_id, state.epoch
                for place, log in sorted(coordinator.logs.items()):
                    if place in self.cluster.data:
                        coordinator.add_partition(name, producer_id, epoch, place, now_ms)
                        log.append_data(producer_id, epoch, now_ms)
                coordinator.end(name, producer_id, epoch, COMMIT, now_ms)
            except Refused as refused:
                yield Problem("blocked", f"a new producer of {name}: {refused}")
                continue
            if coordinator.states[name].status != COMPLETE_COMMIT:
                yield Problem("blocked", f"a new producer of {name}: {coordinator.refusals[-1]}")

    def _survivors(self) -> Iterator[Problem]:
        """Those that end what they had begun, or write more before: at once, or after the first check for expired producers."""
        for client in self.cluster.clients.values():
            for is_late, goes_on in product((False, True), (False, True)) if client.transaction is not None else ():
                logs = {place: log.copy() for place, log in self.logs.items()}
                for log in logs.values() if is_late else ():
                    log.expire_producers(self.now_ms)
                assert client.transaction is not None
                yield from self._survivor(client, client.transaction, logs, goes_on=goes_on)

    def _survivor(self, client: Client, transaction: Transaction, logs: dict[Place, LeaderLog], *, goes_on: bool) -> Iterator[Problem]:
        coordinator = self._coordinator(logs)
        name, producer_id, epoch = client.transactional_id, client.producer_id, client.producer_epoch
        places = [place for place in sorted(transaction.parts) if place in self.cluster.data] or self.cluster.data[:1]
        more: set[tuple[Place, int]] = set()
        try:
            for place in places if goes_on else ():
                coordinator.add_partition(name, producer_id, epoch, place, self.now_ms)
                more.add((place, logs[place].append_data(producer_id, epoch, self.now_ms)))
            coordinator.end(name, producer_id, epoch, COMMIT, self.now_ms)
        except Refused:
            return
        found = self._outcomes(logs)
        before = {(place, offset) for place, offsets in transaction.parts.items() for offset in offsets}
        seen = {(place, offset) for place, offset in before if found[place].get(offset)}
        seen |= {(place, offset) for place, offset in more if outcomes(logs[place].rows)[offset]}
        if seen and len(seen) < len(before) + len(more):
            yield Problem("survivor", f"{transaction} is ended by its producer, and {sorted(seen)} are visible, {sorted(more)} being new")

    # Groups

    def _groups(self, logs: dict[Place, LeaderLog]) -> Iterator[Problem]:
        for number in range(self.cluster.counts[OFFSETS]):
            place = OFFSETS, number
            coordinator = GroupCoordinator()
            coordinator.load(self.batches[place])
            for row in logs[place].rows[len(self.batches[place]) :]:
                coordinator.end(row.producer_id, row.kind if row.kind is not None else -1)
            expected = self._expected(place, outcomes(logs[place].rows))
            pending = {key for commits in coordinator.pending.values() for key in commits}
            if coordinator.pending and self.moment.options.open_transactions != "keep":
                yield Problem("pending", f"{place[0]}:{number}: of {sorted(coordinator.pending)}")
            yield from self._compare(coordinator, expected)
            coordinator.lose_members(self.now_ms + SESSION_TIMEOUT_MS)
            coordinator.expire(self.now_ms + HOUR_MS)
            for key in sorted(expected.keys() - coordinator.commits.keys() - pending):
                yield Problem("expired", f"{key} at the first check")
            coordinator.expire(self.now_ms + 6 * 24 * HOUR_MS)
            for key in sorted(expected.keys() - coordinator.commits.keys() - pending):
                yield Problem("expired", f"{key} within six days")

    def _compare(self, coordinator: GroupCoordinator, expected: dict[CommitKey, Commit]) -> Iterator[Problem]:
        pending = {key for commits in coordinator.pending.values() for key in commits}
        for key in sorted((expected.keys() | coordinator.commits.keys()) - pending):
            wanted, found = expected.get(key), coordinator.commits.get(key)
            log = self.logs[key.topic, key.partition]
            if wanted is None or found is None:
                yield Problem("commit", f"{key}: {found} in place of {wanted}")
                continue
            if (found.offset, found.metadata) != (min(wanted.offset, log.end), wanted.metadata):
                yield Problem("commit", f"{key}: {found} in place of {wanted}, the log ends at {log.end}")
            if found.leader_epoch > self.epochs[key.topic, key.partition]:
                yield Problem("epoch", f"{key}: {found}, its leader begins with {self.epochs[key.topic, key.partition]}")

    def _expected(self, place: Place, ended: dict[int, bool | None]) -> dict[CommitKey, Commit]:
        """The last commit of each key that was archived, came back and was not deleted; of a transaction, if its end was a COMMIT."""
        reader = GroupCoordinator()
        for header, raw in self._kept(place):
            if header.next_offset > self._bounds[place] or header.is_control:
                continue
            if not header.is_transactional or ended.get(header.base_offset):
                plain = header._replace(attributes=0)
                reader.load([(plain, raw)])
        return reader.commits

    def _share_groups(self) -> Iterator[Problem]:
        """Each has the last state that was archived, as far as the recovered log reaches."""
        names = {self.cluster.topic_ids[topic]: topic for topic in TOPICS}
        place = SHARE_GROUPS, 0
        kept = [batch for batch in self._kept(place) if batch[0].next_offset <= self._bounds[place]]
        wanted, found = share_states(kept), share_states(self.batches[place])
        for key in sorted(wanted.keys() | found.keys()):
            at = names[key.topic_id], key.partition
            end = self.logs[at].end
            if key not in wanted or key not in found:
                yield Problem("share", f"{key}: {found.get(key)} in place of {wanted.get(key)}")
                continue
            states = [(offset, state) for offset, state in delivered(wanted[key]) if offset < end]
            start = min(wanted[key].start_offset, end)
            if (found[key].start_offset, delivered(found[key])) != (start, states):
                yield Problem("share", f"{key}: {found[key]} in place of {wanted[key]}, the log ends at {end}")
            if found[key].leader_epoch > self.epochs[at]:
                yield Problem("epoch", f"{key}: {found[key]}, its leader begins with {self.epochs[at]}")


def losses(seed: int, within: Path) -> Iterator[tuple[ArchivedMoment, list[Problem]]]:
    """Yield what was archived when the cluster was lost, and what is wrong with its recovery; of some seeds, the same once more."""
    first = ArchivedMoment(seed)
    found = RecoveredMoment(first, within / "first", first.recover(within / "first"))
    yield first, found.problems()
    random = Random(f"second {seed}")
    if first.options.open_transactions != "keep" and random.random() < 0.5:
        again = ArchivedMoment(seed, found.goes_on(random))
        yield again, RecoveredMoment(again, within / "again", again.recover(within / "again")).problems()


def share_states(batches: Iterable[Batch]) -> dict[ShareKey, ShareState]:
    """The last snapshot of each; no update is written here."""
    found: dict[ShareKey, ShareState] = {}
    for record in records_of(batches):
        _, key = decode_share_key(record.key or b"", "share group")
        found[key] = decode_share_state(record.value or b"", "share group")
    return found


def delivered(state: ShareState) -> list[tuple[int, int]]:
    """Offset and state of each record from the start on."""
    return [
        (offset, batch.state)
        for batch in state.batches
        for offset in range(max(batch.first_offset, state.start_offset), batch.last_offset + 1)
    ]
