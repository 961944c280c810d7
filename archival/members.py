"""The partitions that one agent knows, each with its archiver while that is wanted; of those without work the last few keep theirs."""

import threading
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import wait
from contextlib import contextmanager
from dataclasses import dataclass, field

from archival.broker.broker_release import ReleaseRecord
from archival.obstacle import Obstacle
from archival.partition.archiver import PartitionArchiver
from archival.rest import Rest
from headwater_core.partition import PartitionId, TopicPartition
from headwater_core.segments.local_log import Glimpse
from headwater_core.threads import DaemonThreads

RESTING_MAX = 500  # archivers without work that keep their heads, for partitions that are rolled often
RESTING_BYTES_MAX = 4 << 20  # of the same, as compressed documents; decoded they take some ten times that
ENDED_AT_ONCE = 16  # requests for a thousand open objects take seconds so


@dataclass(slots=True)
class Member:
    """One partition: its archiver, and what is known beside it.

    archiver      None while it has nothing to do, and was dropped to make room
    users         how many steps are in hand
    rest          while its last step had nothing to do
    glimpse       how it looked from outside before a step that will have had nothing to do until something happens to the log
    glimpse_until_s  when to look at the log again, though it looks the same
    is_swept      have side files that a crash of a release left been looked for?
    obstacle      what kept its last step from archiving until the log changes; read again at `read_again_s` even so
    confirmed_s   when the bucket last said what the archiver's head says; None before it did
    released      what its broker has deleted
    warn_again_s  not to be warned of again before
    commit_waits  how often in a row its broker said that a sealed segment is not committed yet
    merge_known   is it known when to look for neighbours to merge?
    merged_to     below this offset nothing will have to be merged, unless in pages that are older; None: not looked at yet
    older_to      of those pages: below this offset nothing will have to be merged; None: they have been looked at, or there are none
    older_s       when those pages are looked at; None: that is not known yet
    """

    archiver: PartitionArchiver | None = None
    users: int = 0
    rest: Rest | None = None
    glimpse: Glimpse | None = None
    glimpse_until_s: float = 0.0
    is_swept: bool = False
    obstacle: Obstacle | None = None
    read_again_s: float = 0.0
    confirmed_s: float | None = None
    released: ReleaseRecord = field(default_factory=ReleaseRecord)
    commit_waits: int = 0
    warn_again_s: float = 0.0
    merge_known: bool = False
    merged_to: int | None = None
    older_to: int | None = 0
    older_s: float | None = None

    @property
    def last_offset(self) -> int | None:
        """Of the partition, as far as that is known here."""
        if self.archiver is not None and self.archiver.head is not None:
            return self.archiver.head.last_offset
        return self.rest.next_offset - 1 if self.rest is not None and self.rest.next_offset else None

    def forget_merges(self) -> None:
        """What is live may be others' below what was looked at."""
        self.merged_to, self.older_to, self.older_s = None, 0, None

    def drop_archiver(self) -> None:
        self.archiver, self.confirmed_s = None, None


class Members:
    """The members by their identities, and which identity each place in the log directories had when it was last looked at.

    Safe to use from many threads: its lock is held for moments.
    """

    def __init__(self, new_archiver: Callable[[PartitionId], PartitionArchiver]) -> None:
        self._new_archiver = new_archiver
        self._lock = threading.Lock()  # of all that follows
        self._members: dict[PartitionId, Member] = {}
        self._resting: OrderedDict[PartitionId, PartitionArchiver] = OrderedDict()  # that may be dropped, the one used last at the end
        self._resting_bytes = 0
        self._identities: dict[TopicPartition, PartitionId] = {}

    def known(self) -> dict[PartitionId, Member]:
        """All of them."""
        with self._lock:
            return dict(self._members)

    def of(self, partition: PartitionId) -> Member | None:
        with self._lock:
            return self._members.get(partition)

    def at(self, place: TopicPartition) -> Member | None:
        """The member whose log was there at the last look."""
        with self._lock:
            identity = self._identities.get(place)
            return self._members.get(identity) if identity is not None else None

    def identity(self, place: TopicPartition) -> PartitionId | None:
        with self._lock:
            return self._identities.get(place)

    def identify(self, partition: PartitionId) -> None:
        """It is what is at its place now."""
        with self._lock:
            self._identities[partition.topic_partition] = partition

    @contextmanager
    def in_hand(self, partition: PartitionId) -> Iterator[Member]:
        """The one member of `partition`, and its archiver, whose lock is what keeps two steps, and release, apart: kept while in use."""
        with self._lock:
            self._identities[partition.topic_partition] = partition
            member = self._members.setdefault(partition, Member())
            member.users += 1
            self._hold(partition)
        try:
            yield member
        finally:
            with self._lock:
                member.users -= 1
                if not member.users and member.rest is not None and member.archiver is not None:
                    self._let_rest(partition, member.archiver)

    def archiver(self, member: Member, partition: PartitionId) -> PartitionArchiver:
        """The one archiver of a member that is in hand."""
        with self._lock:
            member.archiver = member.archiver or self._new_archiver(partition)
            return member.archiver

    @contextmanager
    def archiver_of(self, partition: PartitionId) -> Iterator[PartitionArchiver]:
        """The one archiver of `partition`, for what needs no log; there need not be one. Where nothing else wants it, it is dropped."""
        with self._lock:
            is_new = partition not in self._members
            member = self._members.setdefault(partition, Member())
            member.users += 1
            self._hold(partition)
            had_none = member.archiver is None
            archiver = member.archiver = member.archiver or self._new_archiver(partition)
        try:
            yield archiver
        finally:
            with self._lock:
                member.users -= 1
                if not member.users and had_none and not (archiver.is_waiting or archiver.is_streaming):
                    member.drop_archiver()
                    if is_new and member.rest is None:
                        del self._members[partition]
                elif not member.users and member.rest is not None:
                    self._let_rest(partition, archiver)

    def forget(self, place: TopicPartition) -> None:
        """Its log is not there any more."""
        with self._lock:
            gone = self._identities.pop(place, None)
            dropped = self._drop(lambda partition: partition == gone)
        _give_up(dropped)

    def retain(self, places: Collection[TopicPartition]) -> set[PartitionId]:
        """Forget all that none of these places had when it was last looked at; what they had. That is less than there are places as long as
        some were not looked at: a name does not show which incarnation it is."""
        with self._lock:
            for place in [each for each in self._identities if each not in places]:
                del self._identities[place]
            present = set(self._identities.values())
            dropped = self._drop(lambda partition: partition not in present)
        _give_up(dropped)
        return present

    def end_streams(self, within_s: float) -> list[PartitionId]:
        """Have all archivers drop the objects that they hold open, several at a time. Those of which the store keeps what was sent: it
        refused to drop it, or did not answer within `within_s` seconds, or a disk holds up the archiver's step for as long."""
        with self._lock:
            open_ones = {
                each: member.archiver for each, member in self._members.items() if member.archiver and member.archiver.is_streaming
            }
        threads = DaemonThreads(ENDED_AT_ONCE, "end-streams")
        ends = {threads.submit(archiver.end): partition for partition, archiver in open_ones.items()}
        late = wait(ends, within_s).not_done
        threads.shutdown(wait=False, cancel_futures=True)
        return sorted(partition for end, partition in ends.items() if end in late or not end.result())

    def _hold(self, partition: PartitionId) -> None:
        """It must not be dropped. The caller has the lock."""
        archiver = self._resting.pop(partition, None)
        self._resting_bytes -= archiver.head_bytes if archiver is not None else 0

    def _let_rest(self, partition: PartitionId, archiver: PartitionArchiver) -> None:
        """It may be dropped, and those that have rested longest are, beyond the limits; not while an object is open, which would have to be
        begun again. The caller has the lock."""
        self._hold(partition)
        if archiver.is_streaming:
            return
        self._resting[partition] = archiver
        self._resting_bytes += archiver.head_bytes
        while self._resting and (len(self._resting) > RESTING_MAX or self._resting_bytes > RESTING_BYTES_MAX):
            longest = next(iter(self._resting))
            self._hold(longest)
            if (member := self._members.get(longest)) is not None:
                member.drop_archiver()

    def _drop(self, is_gone: Callable[[PartitionId], bool]) -> list[PartitionArchiver]:
        """The archivers that were dropped. The caller has the lock."""
        gone = [each for each, member in self._members.items() if is_gone(each) and not member.users]
        for partition in gone:
            self._hold(partition)
        return [archiver for partition in gone if (archiver := self._members.pop(partition).archiver) is not None]


def _give_up(dropped: list[PartitionArchiver]) -> None:
    """What they hold open. To be called without the lock: the store is asked."""
    for archiver in dropped:
        archiver.give_up("the partition is gone")
