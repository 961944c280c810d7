"""The state is a function of the records, and the higher manifest version is the later truth."""

import random
import time

from hypothesis import given
from hypothesis import strategies as st

from headwater_core.control.control_records import Advanced, Claim, Node, Record, RecoveryFinished, RecoveryStarted, Retired
from headwater_core.control.state import (
    EMPTY,
    NODES_MAX,
    RECOVERIES_MAX,
    RETIRED_MAX,
    apply,
    apply_all,
    changed_sum,
    decode_state,
    encode_state,
    partition_sum,
)
from headwater_core.partition import PartitionId, topic_id_text
from tests.headwater_core.control.builders import PARTITION, TOPIC_ID, advanced, claim, records, retired, settings
from tests.headwater_core.control.local_control import LocalControl


def last_offset(*some: Record) -> int | None:
    partition = apply_all(EMPTY, some).partition(PARTITION)
    return partition.last_offset if partition else None


def test_nothing_said_is_nothing_known() -> None:
    assert EMPTY.partition(PARTITION) is None
    assert EMPTY.topic("cluster-1", TOPIC_ID) is None


def test_the_manifest_version_decides_not_the_offset_and_not_the_order() -> None:
    assert last_offset(advanced(1), advanced(2)) == 19
    assert last_offset(advanced(2), advanced(1)) == 19
    assert last_offset(advanced(2), advanced(3, last_offset=4)) == 4  # a dead branch was cut
    assert last_offset(advanced(3, last_offset=4), advanced(2)) == 4


def test_of_two_commits_of_one_version_the_later_one_counts() -> None:
    lost, after = advanced(2, commit_id="a"), advanced(2, last_offset=14, commit_id="b")
    assert last_offset(lost, after) == 14
    assert last_offset(lost, after, after) == 14
    assert last_offset(lost, advanced(2, last_offset=14)) == 19, "an agent of before names no commit"
    assert last_offset(lost, advanced(1, commit_id="c")) == 19
    state = apply_all(EMPTY, [lost])
    assert state.knows(PARTITION, 2, "a")
    assert state.knows(PARTITION, 1, "c")
    assert not state.knows(PARTITION, 2, "b")


def test_a_lost_commit_does_not_retire_what_another_agent_continues() -> None:
    assert last_offset(advanced(2, commit_id="b"), retired(2, commit_id="a")) == 19
    assert last_offset(advanced(2, commit_id="b"), retired(2, commit_id="b")) is None
    assert last_offset(advanced(2, commit_id="b"), retired(2)) is None


def test_the_sum_is_that_of_a_node_that_knows_no_commits() -> None:
    assert partition_sum(apply_all(EMPTY, [advanced(2, commit_id="a")])) == partition_sum(apply_all(EMPTY, [advanced(2)]))


def test_a_claim_says_where_the_head_stands_so_that_a_lost_announcement_is_made_good() -> None:
    state = apply_all(EMPTY, [advanced(1), claim(3, last_offset=29, fence=2, writer="agent-b"), advanced(2)])
    partition = state.partition(PARTITION)
    assert partition is not None
    assert (partition.last_offset, partition.fence, partition.owner) == (29, 2, "agent-b")


@given(st.lists(records, max_size=12))
def test_applying_again_says_nothing_new(some: list[Record]) -> None:
    for record in some:
        once = apply(EMPTY, record)
        assert apply(once, record) is once
    heads = [record for record in some if isinstance(record, Advanced | Claim | Retired)]
    state = apply_all(EMPTY, heads)
    assert apply_all(state, heads) is state


@given(st.lists(records, max_size=12), st.randoms())
def test_announcements_may_come_in_any_order(some: list[Record], rng: random.Random) -> None:
    heads = {(r.cluster_id, r.partition, r.version, isinstance(r, Retired)): r for r in some if isinstance(r, Advanced | Claim | Retired)}
    shuffled = list(heads.values())
    rng.shuffle(shuffled)
    assert apply_all(EMPTY, shuffled).digest() == apply_all(EMPTY, heads.values()).digest()


@given(st.lists(st.lists(records, max_size=6), max_size=6))
def test_the_sum_over_partitions_is_kept_up_with_every_command(commands: list[list[Record]]) -> None:
    state, kept = EMPTY, partition_sum(EMPTY)
    for command in commands:
        before, state = state, apply_all(state, command)
        kept = changed_sum(kept, before, state, command)
    assert kept == partition_sum(state) == partition_sum(decode_state(encode_state(state)))


def test_the_sum_tells_states_apart() -> None:
    some = [EMPTY, *(apply_all(EMPTY, each) for each in ([advanced(1)], [advanced(2)], [advanced(1, partition=1)], [advanced(1, fence=2)]))]
    assert len({partition_sum(state) for state in some}) == len(some)


@given(st.lists(records, max_size=12))
def test_many_at_once_come_to_the_same_as_one_after_the_other(some: list[Record]) -> None:
    one_by_one = EMPTY
    for record in some:
        one_by_one = apply(one_by_one, record)
    assert apply_all(EMPTY, some) == one_by_one


def test_a_partition_that_is_gone_leaves_with_its_topic() -> None:
    both = apply_all(EMPTY, [advanced(3), advanced(2, partition=1)])
    one = apply(both, retired(3))
    assert [partition.partition for partition, _ in one.partitions()] == [1]
    none = apply(one, retired(2, partition=1))
    assert none.clusters == {}
    assert len(list(both.partitions())) == 2
    assert none.known_version(PARTITION) == 3


def test_settings_outlive_the_partitions() -> None:
    state = apply_all(EMPTY, [settings(1, read_priority="local-only"), advanced(1), retired(1)])
    topic = state.topic("cluster-1", TOPIC_ID)
    assert topic is not None
    assert (topic.partitions, topic.revision) == ({}, 1)


def test_a_record_from_before_a_partition_went_does_not_bring_it_back() -> None:
    assert last_offset(advanced(2), retired(2), advanced(1)) is None
    assert last_offset(advanced(1), retired(2), advanced(2)) is None
    assert last_offset(retired(2), claim(2)) is None


def test_a_partition_that_another_agent_continues_or_that_comes_back_is_not_gone() -> None:
    assert last_offset(advanced(2), retired(1)) == 19
    assert last_offset(advanced(2), retired(2), claim(3)) == 29
    back = apply_all(EMPTY, [advanced(2), retired(2), claim(3)])
    assert back.retired == {}
    assert apply(back, retired(2)) is back
    assert last_offset(retired(9, topic_id=topic_id_text(bytes(16))), advanced(1)) == 9


def test_the_memory_of_what_is_gone_is_bounded() -> None:
    state = apply_all(EMPTY, (retired(1, partition=number) for number in range(RETIRED_MAX + 3)))
    assert len(state.retired) == RETIRED_MAX
    assert state.known_version(PARTITION) == 0
    assert state.known_version(PartitionId("cluster-1", TOPIC_ID, 3, "orders")) == 1


def test_a_topic_of_ten_times_the_partitions_takes_about_ten_times_the_work() -> None:
    def work_s(partitions: int) -> float:
        some = [advanced(1, partition=number) for number in range(partitions)]
        started_s = time.process_time()
        apply_all(EMPTY, some)
        return time.process_time() - started_s

    assert work_s(40_000) < 40 * max(work_s(4_000), work_s(4_000))


@given(st.lists(records, max_size=12))
def test_a_state_reads_back_and_keeps_its_digest(some: list[Record]) -> None:
    state = apply_all(EMPTY, some)
    again = decode_state(encode_state(state))
    assert again == state
    assert again.digest() == state.digest()


@given(st.lists(records, max_size=12))
def test_a_state_in_hand_does_not_change(some: list[Record]) -> None:
    states = [EMPTY]
    digests = [EMPTY.digest()]
    for record in some:
        states.append(apply(states[-1], record))
        digests.append(states[-1].digest())
    assert [state.digest() for state in states] == digests


def test_incarnations_and_clusters_do_not_mix() -> None:
    other = topic_id_text(bytes(16))
    state = apply_all(EMPTY, [advanced(5), advanced(1, topic_id=other), advanced(2, cluster_id="cluster-2")])
    known = {partition: partition_state.last_offset for partition, partition_state in state.partitions()}
    assert known == {
        PARTITION: 49,
        PartitionId("cluster-1", other, 0, "orders"): 9,
        PartitionId("cluster-2", TOPIC_ID, 0, "orders"): 19,
    }


def test_settings_are_compare_and_set() -> None:
    state = apply_all(
        EMPTY, [settings(1, read_priority="local-only"), settings(1, read_priority="lost"), settings(3, read_priority="early")]
    )
    topic = state.topic("cluster-1", TOPIC_ID)
    assert topic is not None
    assert (topic.revision, topic.settings) == (1, {"read_priority": "local-only"})
    kept = apply(state, advanced(1)).topic("cluster-1", TOPIC_ID)
    assert kept is not None
    assert kept.settings == topic.settings


def test_a_recovery_starts_once_and_finishes_once() -> None:
    some: list[Record] = [
        RecoveryFinished(recovery_id="a", at_ms=1, outcome="never started"),
        RecoveryStarted(recovery_id="a", at_ms=2, summary="orders"),
        RecoveryStarted(recovery_id="a", at_ms=3, summary="again"),
        RecoveryFinished(recovery_id="a", at_ms=4, outcome="ok"),
        RecoveryFinished(recovery_id="a", at_ms=5, outcome="again"),
    ]
    recovery = apply_all(EMPTY, some).recoveries["a"]
    assert (recovery.started_ms, recovery.summary, recovery.finished_ms, recovery.outcome) == (2, "orders", 4, "ok")


def test_recoveries_and_nodes_are_bounded() -> None:
    state = apply_all(EMPTY, (RecoveryStarted(recovery_id=str(n), at_ms=n, summary="") for n in range(RECOVERIES_MAX + 5)))
    assert next(iter(state.recoveries)) == "5"
    assert len(state.recoveries) == RECOVERIES_MAX
    assert NODES_MAX >= 1000
    state = apply_all(EMPTY, [Node(node_id="a", started_ms=2, version="2"), Node(node_id="a", started_ms=1, version="1")])
    assert state.nodes["a"].version == "2"


def test_a_local_control_log_applies_what_is_published() -> None:
    control = LocalControl()
    before = control.state()
    control.publish(advanced(1), advanced(2))
    assert before.partition(PARTITION) is None
    assert control.state() == apply_all(EMPTY, [advanced(2)])
    control.close()
