"""What the broker beside an agent says of its partitions when it is asked, and what it is asked to do."""

from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from itertools import pairwise
from typing import NamedTuple, Protocol

from headwater_core.epochs import EpochHistory
from headwater_core.partition import TopicPartition


class CommittedEnd(NamedTuple):
    """How far a partition is committed, as its leader says, in the leader epoch in which it says so."""

    topic_id: str
    leader_epoch: int
    high_watermark: int


class GroupOffset(NamedTuple):
    """A group, and the first offset of a partition that it has not read."""

    group: str
    offset: int


class Group(NamedTuple):
    """A classic, consumer, share or streams group, as its coordinator describes it.

    commits  the offset that it would read next after a restart, by partition
    topics   to which its members subscribe; None where its coordinator does not know, as while the group rebalances
    """

    name: str
    has_members: bool
    commits: Mapping[TopicPartition, int]
    topics: frozenset[str] | None = frozenset()

    def unread_from(self, partition: TopicPartition) -> int | None:
        """Return the first offset that it has not read; None where it does not read `partition`.

        A group that reads the topic and has no commit here may begin at the first offset: only its members know their auto.offset.reset.
        A topic is read where members subscribe to it, or where another partition of it has a commit. While its
        members' subscription is not known, it may be any: they may have subscribed to another one just now.
        """
        if partition in self.commits:
            return self.commits[partition]
        if self.topics is None and self.has_members:
            return 0
        topics = {committed.topic for committed in self.commits}
        return 0 if partition.topic in topics | (self.topics or frozenset()) else None


class LeaderLog(NamedTuple):
    """The log of a partition's leader, as it describes it. All of it was true under one leader epoch, the one that was asked for.

    ends  for each leader epoch that was asked for: the newest one up to it that wrote something, and the offset where that one ends
    """

    topic_id: str
    log_start: int
    high_watermark: int
    ends: Mapping[int, tuple[int, int]]

    def confirms(self, history: EpochHistory) -> bool:
        """Is `history`, whose epochs were asked for, the leader's own?"""
        starts = history.starts
        for (epoch, _), (_, end) in pairwise(starts):
            if self.ends.get(epoch) != (epoch, end):
                return False
        newest, end = self.ends.get(starts[-1].epoch, (-1, -1)) if starts else (-1, -1)
        return bool(starts) and newest == starts[-1].epoch and end >= max(starts[-1].first_offset, self.high_watermark)


class PinnedBroker(Protocol):
    """One connection to one broker. Every method raises TransientError when it does not answer, Unauthorised, and SourceChanged when it is
    not the partition's leader, or not in the leader epoch that was named."""

    def leader_log(self, place: TopicPartition, leader_epoch: int, history: EpochHistory) -> LeaderLog:
        """What it says of the log it leads in `leader_epoch`, of the epochs in `history` among others."""
        ...

    def topic_id(self, topic: str) -> str | None:
        """Which topic the name means now."""
        ...

    def metadata_end(self) -> int:
        """How far the cluster's metadata log is committed: what it says below this offset has happened."""
        ...

    def delete_records(self, place: TopicPartition, end: int) -> None:
        """Delete all records below offset `end`: here now, at the followers soon. Raises DeletionRefused when the topic's policy does not
        allow that."""
        ...


class Broker(Protocol):
    """The broker beside this agent. Safe to use from many threads."""

    def committed(self, places: Collection[TopicPartition]) -> Mapping[TopicPartition, CommittedEnd]:
        """Of those that it leads. One request for all of them. Raises TransientError when it does not answer, and Unauthorised."""
        ...

    def groups(self, known: Collection[str]) -> Sequence[Group]:
        """List all groups of the cluster, those in `known` among them unless they were deleted. Raises TransientError and Unauthorised
        where one of them, or one broker, cannot be read: a part of them is no answer."""
        ...

    def pinned(self) -> AbstractContextManager[PinnedBroker]:
        """A connection that no other caller uses in the meantime."""
        ...
