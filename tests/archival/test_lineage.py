import pytest

from archival.plan.lineage import (
    Behind,
    CutAt,
    Ok,
    branches_at,
    clip_epochs,
    ends_at,
    epoch_in,
    is_proven,
    lies_on,
    resumes_at,
    verdict,
    written_epochs,
)
from headwater_core.epochs import EpochHistory
from manifests.entry_tree import EntryTree
from tests.manifests.builders import a_gap, a_head, an_entry

HISTORY = EpochHistory.of([(2, 10), (4, 47)])


@pytest.mark.parametrize(
    ("epoch", "offset", "lies"),
    [(2, 10, True), (2, 46, True), (2, 47, False), (4, 47, True), (4, 46, True), (3, 46, False), (3, 47, False), (4, 10**9, True)],
)
def test_a_record_lies_where_its_epoch_wrote(epoch: int, offset: int, lies: bool) -> None:
    assert lies_on(HISTORY, epoch, offset) is lies


@pytest.mark.parametrize(("epoch", "lies"), [(0, True), (2, True), (3, False)])
def test_below_the_history_only_a_newer_epoch_is_dead(epoch: int, lies: bool) -> None:
    assert lies_on(HISTORY, epoch, 9) is lies


def test_nothing_lies_on_an_empty_history() -> None:
    assert not lies_on(EpochHistory(), 0, 0)
    assert branches_at(EpochHistory(), EntryTree((an_entry(0, 9),))) == 0


def test_an_epoch_without_data_hands_its_offset_on() -> None:
    history = EpochHistory.of([(0, 0), (1, 20), (2, 20)])
    assert lies_on(history, 2, 20)
    assert not lies_on(history, 1, 20)
    assert ends_at(history, 0, 5) == 20


def test_an_epoch_of_which_a_follower_fetched_the_compacted_rest_began_before_that() -> None:
    """It learned of the epoch by the first batch that compaction had left of it; then it became the leader."""
    history = EpochHistory.of([(0, 0), (1, 4845), (2, 14915)])
    entries = EntryTree((an_entry(0, 2069), an_entry(2070, 4559, epochs=((1, 2070),)), an_entry(4560, 14914, epochs=((1, 4560),))))
    assert branches_at(history, entries) is None
    assert lies_on(EpochHistory.of([(0, 3000), (1, 4845)]), 1, 2070)  # retention has taken the beginning


def test_a_branch_begins_where_the_newer_epoch_does() -> None:
    assert branches_at(HISTORY, EntryTree((an_entry(10, 136, epochs=((2, 10),)),))) == 47


def test_a_branch_begins_in_the_right_one_of_many_entries() -> None:
    entries = (an_entry(0, 29, epochs=((0, 0), (2, 10))), an_entry(30, 59, epochs=((2, 30),)), an_entry(60, 99, epochs=((3, 60),)))
    assert branches_at(HISTORY, EntryTree(entries)) == 47
    assert branches_at(HISTORY, EntryTree(entries[:1])) is None


def test_a_gap_before_the_next_epoch_is_no_branch() -> None:
    """Compaction took the first records of epoch 4; its next one proves all before it."""
    assert branches_at(HISTORY, EntryTree((an_entry(10, 80, epochs=((2, 10), (4, 60))),))) is None
    assert branches_at(HISTORY, EntryTree((an_entry(10, 30, epochs=((2, 10),)), an_entry(31, 80, epochs=((2, 31), (4, 60)))))) is None


def test_what_follows_in_another_entry_proves_nothing() -> None:
    """It was archived from a log that no longer had what came before, and so could not know it for a dead branch."""
    assert branches_at(HISTORY, EntryTree((an_entry(10, 55, epochs=((2, 10),)), an_entry(56, 80, epochs=((4, 60),))))) == 47
    assert branches_at(HISTORY, EntryTree((an_entry(10, 46, epochs=((2, 10),)), an_entry(47, 80, epochs=((4, 60),))))) is None


def test_a_gap_before_a_dead_epoch_proves_nothing() -> None:
    assert branches_at(HISTORY, EntryTree((an_entry(10, 80, epochs=((2, 10), (3, 60))),))) == 47


def test_what_lies_on_the_history_after_a_dead_run_is_where_it_resumes() -> None:
    dead, proven = an_entry(10, 55, epochs=((2, 10),)), an_entry(56, 80, epochs=((4, 60),))
    assert resumes_at(HISTORY, EntryTree((dead, proven)), 47) == 56
    assert resumes_at(HISTORY, EntryTree((dead, proven, an_entry(81, 90, epochs=((3, 81),)))), 47) is None
    assert resumes_at(EpochHistory.of([(4, 61)]), EntryTree((dead, proven)), 47) is None


def test_a_gap_has_no_epoch_to_be_wrong() -> None:
    assert branches_at(HISTORY, EntryTree((a_gap(0, 99),))) is None


def test_a_log_behind_what_the_head_has_followed_says_nothing() -> None:
    head = a_head(an_entry(0, 9, epochs=((0, 0),)), leader_epoch=5)
    assert isinstance(verdict(HISTORY, 4, head), Behind)
    assert verdict(HISTORY, 5, head) == Ok()


def test_a_log_older_than_a_live_record_is_behind() -> None:
    head = a_head(an_entry(0, 9, epochs=((5, 0),)), leader_epoch=-1)
    assert isinstance(verdict(HISTORY, 4, head), Behind)


def test_a_history_without_the_newest_archived_epoch_but_with_a_newer_one_is_a_branch_not_behind() -> None:
    head = a_head(an_entry(0, 136, epochs=((0, 0), (2, 10), (3, 90))), leader_epoch=3)
    assert verdict(HISTORY, 4, head) == CutAt(47)


def test_an_archive_without_entries_follows_anyone_who_is_not_behind() -> None:
    assert verdict(EpochHistory(), -1, a_head()) == Ok()


def test_where_only_not_newer_can_be_said_nothing_is_proven() -> None:
    entry = an_entry(0, 19, epochs=((1, 0),))
    assert branches_at(EpochHistory.of([(3, 20)]), EntryTree((entry,))) is None
    assert not is_proven(EpochHistory.of([(3, 20)]), EntryTree((entry,)), 20)
    assert is_proven(EpochHistory.of([(1, 5), (3, 20)]), EntryTree((entry,)), 20)
    assert not is_proven(EpochHistory.of([(1, 5), (3, 20)]), EntryTree((entry,)), 5)


def test_an_epoch_whose_offset_went_to_the_next_wrote_nothing() -> None:
    assert written_epochs(EpochHistory.of([(0, 0), (1, 20), (2, 20), (5, 30)])) == {0, 2, 5}
    assert written_epochs(EpochHistory()) == frozenset()


def test_the_epoch_of_an_archived_offset() -> None:
    entries = (an_entry(0, 9, epochs=((0, 0), (1, 5))), a_gap(10, 19), an_entry(20, 29, epochs=((3, 22),)))
    assert [epoch_in(EntryTree(entries), offset) for offset in (0, 4, 5, 9, 15, 20, 22, 29, 30)] == [0, 0, 1, 1, None, None, 3, 3, None]


def test_epochs_are_clipped_to_a_range() -> None:
    epochs = EpochHistory.of([(0, 0), (2, 10), (4, 47)]).starts
    assert clip_epochs(epochs, 0, 9) == ((0, 0),)
    assert clip_epochs(epochs, 20, 50) == ((2, 20), (4, 47))
    assert clip_epochs(epochs, 47, 99) == ((4, 47),)
