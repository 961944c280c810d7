"""All groups of a cluster are listed, or the listing fails."""

import struct
from collections.abc import Iterator

import pytest

from archival.broker.broker_view import Group
from headwater.broker.broker_connection import BrokerApi
from headwater.broker.consumer_groups import subscribed_topics
from headwater_core.errors import HeadwaterError, TransientError, Unauthorised, UnsupportedFormat
from headwater_core.partition import TopicPartition
from tests.headwater.coordinators import Cluster, Coordinator, subscription
from tests.headwater.socket_broker import ALL

SOUP, BREAD = TopicPartition("soup", 0), TopicPartition("bread", 1)
CODES = [(30, Unauthorised), (29, Unauthorised), (31, Unauthorised), (14, TransientError), (16, TransientError), (-1, TransientError)]


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with Coordinator() as own, Coordinator() as other:
        yield Cluster(own, other)


def test_groups_of_each_type_are_found_at_any_broker(cluster: Cluster) -> None:
    own, other = cluster.own, cluster.other
    own.groups = {"mail": ("Classic", "Stable", "consumer"), "bills": ("Consumer", "Reconciling", "consumer")}
    own.commits = {"mail": {SOUP: 12}, "bills": {SOUP: 31, BREAD: -1}}
    own.metadata = {"mail": [subscription("soup"), subscription("soup", "bread")]}
    own.subscribed, own.assigned = {"bills": ["soup"], "share": ["tea"]}, {"bills": ["bread"], "share": ["soup"]}
    other.groups = {"share": ("Share", "Stable", "share"), "app": ("Streams", "Stable", "streams"), "simple": ("Classic", "Empty", "")}
    other.groups |= {"workers": ("Classic", "Stable", "connect")}
    other.commits = {"share": {SOUP: 7, BREAD: -1}, "app": {BREAD: 4}, "simple": {SOUP: 3}}
    other.subscribed, other.assigned = own.subscribed, own.assigned
    other.sources = {"app": ["bread"]}
    assert cluster.listing() == {
        "mail": Group("mail", True, {SOUP: 12}, frozenset({"soup", "bread"})),
        "bills": Group("bills", True, {SOUP: 31}, frozenset({"soup", "bread"})),
        "share": Group("share", True, {SOUP: 7}, frozenset({"soup", "tea"})),
        "app": Group("app", True, {BREAD: 4}, frozenset({"bread", "repartition"})),
        "simple": Group("simple", False, {SOUP: 3}),
        "workers": Group("workers", True, {}),
    }


@pytest.mark.parametrize(("few", "requests"), [(10_000, [100, 200, 400, 400, 100]), (150, [100, 200, 100, 200, 100, 200, 100, 200])])
def test_many_groups_take_few_requests_as_long_as_their_commits_are_few(
    few: int, requests: list[int], cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headwater.broker.consumer_groups.COMMITS_FEW", few)
    names = [f"group-{number}" for number in range(1200)]
    cluster.own.groups = dict.fromkeys(names, ("Classic", "Empty", "consumer"))
    cluster.own.commits = {name: {SOUP: number} for number, name in enumerate(names)}
    assert {name: group.commits[SOUP] for name, group in cluster.listing().items()} == {name: at for at, name in enumerate(names)}
    assert [len(fields["groups"]) for api, fields in cluster.own.asked if api == BrokerApi.OFFSET_FETCH] == requests


def test_what_members_read_is_unknown_while_they_join(cluster: Cluster) -> None:
    own = cluster.own
    own.groups = {
        "joins": ("Classic", "PreparingRebalance", "consumer"),
        "other-client": ("Classic", "Stable", "consumer"),
        "pattern": ("Consumer", "Assigning", "consumer"),
        "app": ("Streams", "NotReady", "streams"),
    }
    own.metadata = {"joins": [b""], "other-client": [subscription("soup"), b"\0\0\0\0\0\1\0\xff"]}
    own.pattern, own.sources = {"pattern": "so.*"}, {"app": None}
    assert {name: group.topics for name, group in cluster.listing().items()} == dict.fromkeys(own.groups)
    own.assigned = {"pattern": ["soup"]}
    assert cluster.listing()["pattern"].topics == frozenset({"soup"})


def test_a_pattern_that_nothing_is_assigned_for_is_unknown_beside_any_other_member(cluster: Cluster) -> None:
    own = cluster.own
    own.groups = dict.fromkeys(("names", "patterns"), ("Consumer", "Reconciling", "consumer"))
    own.subscribed, own.pattern = {"names": ["soup"]}, {"patterns": "so.*"}
    own.assigned = {"names": ["soup"], "patterns": ["soup"]}
    own.joining = {"names": ["br.*"], "patterns": ["br.*"]}
    assert {name: group.topics for name, group in cluster.listing().items()} == dict.fromkeys(own.groups)
    own.joining = {"patterns": ["so.*"]}  # a spare member: it shares what is assigned for the pattern
    assert {group.topics for group in cluster.listing().values()} == {frozenset({"soup"})}


def test_a_broker_that_names_no_types_has_classic_groups() -> None:
    with Coordinator(ALL) as own, Coordinator(ALL) as other:
        cluster = Cluster(own, other)
        own.groups, own.commits = {"mail": ("", "Empty", "consumer")}, {"mail": {SOUP: 12}}
        assert cluster.listing() == {"mail": Group("mail", False, {SOUP: 12})}


def test_a_type_that_nobody_knows_fails_the_listing(cluster: Cluster) -> None:
    cluster.other.groups = {"new": ("Quantum", "Empty", "")}
    with pytest.raises(TransientError, match="groups of type quantum"):
        cluster.listing()


def test_share_groups_whose_offsets_a_broker_does_not_tell_fail_the_listing() -> None:
    old: dict[BrokerApi, int] = {**ALL}
    del old[BrokerApi.DESCRIBE_SHARE_GROUP_OFFSETS]
    old[BrokerApi.LIST_GROUPS] = 5
    with Coordinator(old) as own, Coordinator(old) as other:
        cluster = Cluster(own, other)
        assert cluster.listing() == {}
        own.groups = {"share": ("Share", "Empty", "share")}
        with pytest.raises(UnsupportedFormat, match="DESCRIBE_SHARE_GROUP_OFFSETS"):
            cluster.listing()


@pytest.mark.parametrize(("code", "kind"), CODES)
@pytest.mark.parametrize("group_type", ["Classic", "Consumer", "Share", "Streams"])
def test_any_error_fails_the_listing(cluster: Cluster, code: int, kind: type[HeadwaterError], group_type: str) -> None:
    own, other = cluster.own, cluster.other
    own.groups, own.commits = {"mail": ("Classic", "Empty", "consumer")}, {"mail": {SOUP: 12}}
    other.groups, other.commits = {"bills": (group_type, "Stable", "consumer")}, {"bills": {SOUP: 31}}
    other.metadata, other.sources = {"bills": [subscription("soup")]}, {"bills": ["soup"]}
    assert len(cluster.listing()) == 2
    other.list_code = code
    with pytest.raises(kind):
        cluster.listing()
    other.list_code, other.group_code = 0, {"bills": code}
    with pytest.raises(kind):
        cluster.listing()
    other.group_code, other.partition_code = {}, code
    with pytest.raises(kind):
        cluster.listing()
    other.partition_code, other.described_code = 0, {"bills": code}
    with pytest.raises(kind):
        cluster.listing()
    other.described_code, cluster.offsets_code = {}, code
    with pytest.raises(kind):
        cluster.listing()


def test_an_answer_about_other_groups_is_none(cluster: Cluster) -> None:
    cluster.own.groups = {"mail": ("Classic", "Empty", "consumer"), "bills": ("Classic", "Empty", "consumer")}
    cluster.own.answers[BrokerApi.OFFSET_FETCH] = lambda _: {"groups": [{"group_id": "mail", "topics": [], "error_code": 0}]}
    with pytest.raises(TransientError, match="answered for other groups"):
        cluster.listing()


def test_a_broker_that_is_away_fails_the_listing(cluster: Cluster) -> None:
    cluster.other.close()
    with pytest.raises(TransientError):
        cluster.listing()


def test_a_partition_without_a_leader_fails_the_listing(cluster: Cluster) -> None:
    cluster.leaders = [(7, 3), (-1, 5)]
    with pytest.raises(TransientError, match="has no leader"):
        cluster.listing()
    cluster.leaders = [(7, 3), (9, 5)]
    with pytest.raises(TransientError, match="broker 9 leads a partition"):
        cluster.listing()


def test_an_election_during_the_listing_fails_it(cluster: Cluster) -> None:
    cluster.changes_leaders = True
    with pytest.raises(TransientError, match="changed their leaders"):
        cluster.listing()


def test_a_cluster_that_never_had_a_group_has_none(cluster: Cluster) -> None:
    cluster.offsets_code = 3
    assert cluster.listing() == {}


def test_a_group_that_was_known_is_gone_only_where_its_coordinator_says_so(cluster: Cluster) -> None:
    cluster.other.group_code = {"mail": 69}
    assert cluster.listing("mail") == {}
    cluster.other.group_code, cluster.other.commits = {}, {"mail": {SOUP: 12}}
    with pytest.raises(TransientError, match="which no broker has listed"):
        cluster.listing("mail")
    cluster.other.commits, cluster.coordinator_code = {}, 15
    with pytest.raises(TransientError, match="group mail has no coordinator"):
        cluster.listing("mail")


def test_a_subscription_cut_anywhere_is_unknown() -> None:
    whole = subscription("soup", "bread")
    assert subscribed_topics(whole) == frozenset({"soup", "bread"})
    names = len(whole) - 8
    assert [size for size in range(names) if subscribed_topics(whole[:size]) is not None] == []
    assert subscribed_topics(whole[:names]) == frozenset({"soup", "bread"})  # later fields are not read
    assert subscribed_topics(struct.pack(">hi", 1, -1)) is None
