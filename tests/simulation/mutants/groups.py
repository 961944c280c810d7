"""Mistakes about consumer groups that releases wait for. Those about their listings are in tests/archival/test_groups_at_random.py."""

from collections.abc import Collection, Sequence
from contextlib import ExitStack

from archival.broker.broker_view import Group, GroupOffset
from archival.broker.lagging_groups import GroupListing
from headwater_core.errors import HeadwaterError
from headwater_core.partition import TopicPartition
from tests.simulation.mutants.mutant import mutant, patch_in
from tests.simulation.requests import AnsweringBroker


@mutant("a look-up that fails means that there is no group", theme="groups", noted=1)
def no_answer_is_no_group(stack: ExitStack) -> None:
    real = AnsweringBroker.groups

    def groups(self: AnsweringBroker, known: Collection[str]) -> Sequence[Group]:
        try:
            return real(self, known)
        except HeadwaterError:
            return []

    patch_in(stack, AnsweringBroker, "groups", groups)


@mutant("the group that has read most decides", theme="groups", noted=3)
def the_quickest_group_decides(stack: ExitStack) -> None:
    def lowest(self: GroupListing, partition: TopicPartition, ignore_after_s: float) -> GroupOffset | None:
        offsets = [
            GroupOffset(group.name, offset)
            for group, idle_s in self.groups
            if idle_s < ignore_after_s and (offset := group.unread_from(partition)) is not None
        ]
        return max(offsets, key=lambda found: found.offset, default=None)

    patch_in(stack, GroupListing, "lowest", lowest)


@mutant("a group without members is gone", theme="groups", noted=3)
def without_members_is_gone(stack: ExitStack) -> None:
    real = GroupListing.lowest

    def lowest(self: GroupListing, partition: TopicPartition, ignore_after_s: float) -> GroupOffset | None:
        return real(GroupListing(self.number, [each for each in self.groups if each.group.has_members]), partition, ignore_after_s)

    patch_in(stack, GroupListing, "lowest", lowest)


@mutant("a group that has committed nothing here needs nothing", theme="groups", noted=32)
def no_commit_is_no_need(stack: ExitStack) -> None:
    patch_in(stack, Group, "unread_from", lambda self, partition: self.commits.get(partition))


@mutant("a group whose subscription is not known reads what it has committed", theme="groups", noted=32)
def unknown_subscription_is_none(stack: ExitStack) -> None:
    real = Group.unread_from

    def unread_from(self: Group, partition: TopicPartition) -> int | None:
        return real(self if self.topics is not None else self._replace(topics=frozenset()), partition)

    patch_in(stack, Group, "unread_from", unread_from)
