"""The journal gives back what was added, or says that it cannot."""

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headwater_core.control.journal import Journal
from headwater_core.errors import CorruptData, TransientError


def entries(journal: Journal) -> list[tuple[bytes, int, int]]:
    return [journal[at] for at in range(len(journal))]  # type: ignore[misc]


def a_journal(path: Path, count: int = 10) -> Journal:
    journal = Journal(path)
    journal.setCurrentTerm(3, "lone")
    for number in range(1, count + 1):
        journal.add(b"command %d" % number, number, 3)
    journal.setRaftCommitIndex(count)
    journal.onOneSecondTimer()
    journal.sync()
    return journal


def test_what_is_written_reads_back(tmp_path: Path) -> None:
    first = a_journal(tmp_path / "journal")
    again = Journal(tmp_path / "journal")
    assert entries(again) == entries(first) == [(b"command %d" % n, n, 3) for n in range(1, 11)]
    assert (again.getCurrentTerm(), again.getVotedForNodeId(), again.getRaftCommitIndex()) == (3, "lone", 10)
    assert not again.torn


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["add", "same", "from", "settle", "to", "clear", "vote", "commit", "second", "reopen"]), st.integers(0, 8)
        ),
        max_size=30,
    )
)
def test_it_behaves_as_a_list_does_across_any_reopening(tmp_path: Path, steps: list[tuple[str, int]]) -> None:
    path = tmp_path / "journal"
    path.unlink(missing_ok=True)
    journal = Journal(path)
    model: list[tuple[bytes, int, int]] = []
    withdrawn: list[tuple[bytes, int, int]] = []
    term, commit = 0, 1
    for step, number in steps:
        at = min(number, len(model))
        match step:
            case "add":
                index = model[-1][1] + 1 if model else number + 1
                journal.add(b"x" * number, index, term)
                model.append((b"x" * number, index, term))
                withdrawn = withdrawn[1:] if withdrawn[:1] == model[-1:] else []
            case "same":
                if withdrawn:
                    model.append(withdrawn.pop(0))
                    journal.add(*model[-1])
            case "from":
                journal.deleteEntriesFrom(at)
                withdrawn = model[at:] + withdrawn
                del model[at:]
            case "settle":
                journal.settle()
                model, withdrawn = model + withdrawn, []
            case "to":
                journal.settle()
                model, withdrawn = model + withdrawn, []
                journal.deleteEntriesTo(at)
                del model[:at]
            case "clear":
                journal.clear()
                model.clear()
                withdrawn.clear()
            case "vote":
                term += number
                journal.setCurrentTerm(term, f"node-{number}")
            case "commit":
                commit = number
                journal.setRaftCommitIndex(number)
            case "second":
                journal.onOneSecondTimer()
            case "reopen":
                journal.onOneSecondTimer()
                journal._destroy()
                journal = Journal(path)
                model, withdrawn = model + withdrawn, []  # nothing was taken back yet
        assert entries(journal) == model
        assert (journal.getCurrentTerm(), journal.getRaftCommitIndex()) == (term, commit)
    journal._destroy()


def test_what_a_leader_sends_again_is_never_taken_back(tmp_path: Path) -> None:
    """The library deletes what follows the place where a message begins, and adds what the message holds, a part of the same."""
    path = tmp_path / "journal"
    journal = a_journal(path)
    before, size = entries(journal), path.stat().st_size
    journal.deleteEntriesFrom(4)
    journal.add(*before[4])
    assert entries(Journal(path)) == before  # as after a crash, here and now
    journal.settle()
    assert (entries(journal), path.stat().st_size, journal.lost) == (before, size, None)


@pytest.mark.parametrize(("applied", "lost"), [(5, None), (6, 6), (10, 6)])
def test_what_a_leader_contradicts_is_taken_back_and_missed_where_it_was_applied(tmp_path: Path, applied: int, lost: int | None) -> None:
    path = tmp_path / "journal"
    journal = a_journal(path)
    journal.applied = lambda: applied
    journal.deleteEntriesFrom(4)
    journal.add(b"command 5", 5, 3)
    journal.add(b"another", 6, 4)
    journal.settle()
    assert entries(journal)[4:] == entries(Journal(path))[4:] == [(b"command 5", 5, 3), (b"another", 6, 4)]
    assert journal.lost == lost


@pytest.mark.parametrize(("index", "term", "left"), [(6, 2, 10), (6, 3, 5), (10, 3, 9), (11, 3, 10), (1, 3, 10), (0, 3, 10)])
def test_what_contradicts_the_leaders_log_goes_before_the_leader_sends_its_own(tmp_path: Path, index: int, term: int, left: int) -> None:
    journal = Journal(tmp_path / "journal")
    for number in range(1, 11):
        journal.add(b"an entry", number, 2)
    journal.contradict(index, term)
    assert len(journal) == left
    journal.settle()
    journal.flush()
    journal._destroy()
    assert entries(Journal(tmp_path / "journal")) == [(b"an entry", number, 2) for number in range(1, left + 1)]


def test_every_flipped_bit_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    written = entries(a_journal(path))
    raw = path.read_bytes()
    for position in range(len(raw)):
        changed = bytearray(raw)
        changed[position] ^= 1 << position % 8
        path.write_bytes(changed)
        try:
            journal = Journal(path)
        except CorruptData:
            continue
        assert journal.torn, position  # a length that now reaches beyond the end
        assert entries(journal) == written[: len(journal)]
        journal._destroy()


def test_a_torn_end_is_cut_off_and_said(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    journal = a_journal(path, 3)
    whole = path.stat().st_size
    journal.add(b"command 4", 4, 3)
    raw = path.read_bytes()
    for length in range(whole + 1, len(raw)):
        path.write_bytes(raw[:length])
        torn = Journal(path)
        assert torn.torn
        assert len(torn) == 3
        torn.add(b"command 4", 4, 3)
        again = Journal(path)
        assert not again.torn
        assert len(again) == 4
        torn._destroy()
        again._destroy()


@pytest.mark.parametrize(
    "left",
    [
        lambda raw: raw + bytes(64),
        lambda raw: raw + bytes(3),
        lambda raw: raw + b"\xff" * 100,
        lambda raw: raw[:-10] + bytes(10),
        lambda raw: raw[:-1] + bytes([raw[-1] ^ 1]),
    ],
)
def test_whatever_a_power_loss_leaves_after_the_last_whole_frame_is_cut_off(left: Callable[[bytes], bytes], tmp_path: Path) -> None:
    path = tmp_path / "journal"
    journal = a_journal(path, 3)
    journal.add(b"the last command", 4, 3)
    journal._destroy()
    path.write_bytes(left(path.read_bytes()))
    torn = Journal(path)
    assert torn.torn
    assert entries(torn)[:3] == [(b"command %d" % n, n, 3) for n in range(1, 4)]
    index = len(torn) + 1
    torn.add(b"after", index, 3)
    again = Journal(path)
    assert not again.torn
    assert entries(again)[-1] == (b"after", index, 3)


def test_damage_with_a_whole_frame_after_it_is_no_torn_end(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    a_journal(path, 5)._destroy()
    raw = bytearray(path.read_bytes())
    at = raw.index(b"command 3") - 17 - 8
    for position in range(at, at + 8 + 17 + 9):  # length, checksum, kind, numbers, command: whatever is hit
        changed = bytearray(raw)
        changed[position] ^= 0x41
        path.write_bytes(changed)
        with pytest.raises(CorruptData, match="follow"):
            Journal(path)


def test_salvage_keeps_what_lies_before_the_damage_and_every_promise_after_it(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    journal = a_journal(path, 5)
    journal.setCurrentTerm(9, "peer-2")
    journal.setCurrentTerm(8, "peer-1")
    journal._destroy()
    path.write_bytes(path.read_bytes().replace(b"command 3", b"COMMAND 3"))
    salvaged = Journal(path, salvage=True)
    assert [command for command, _, _ in entries(salvaged)] == [b"command 1", b"command 2"]
    assert (salvaged.getCurrentTerm(), salvaged.getVotedForNodeId()) == (9, "peer-2")
    assert salvaged.torn


def test_a_compaction_that_cannot_open_its_new_file_keeps_the_old_one_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "journal"
    journal = a_journal(path)
    held = os.fstat(journal._fd)
    opened = os.open

    def fails(name: str | Path, flags: int, *rest: int) -> int:
        if flags & os.O_RDWR and Path(name) == path:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return opened(name, flags, *rest)

    with monkeypatch.context() as patched:
        patched.setattr(os, "open", fails)
        with pytest.raises(TransientError, match="Too many open files"):
            journal.deleteEntriesTo(5)
    assert os.path.samestat(os.fstat(journal._fd), held)  # its number is still its own


@pytest.mark.parametrize("content", [b"", b"HW", b"PYSYNCOBJ" + bytes(100)])
def test_other_files_are_refused(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "journal").write_bytes(content)
    with pytest.raises(CorruptData):
        Journal(tmp_path / "journal")


def test_compaction_keeps_what_it_does_not_cover(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    journal = a_journal(path, 100)
    size = path.stat().st_size
    journal.deleteEntriesTo(98)
    assert path.stat().st_size < size / 5
    journal.add(b"after", 101, 3)
    again = Journal(path)
    assert entries(again) == [(b"command 99", 99, 3), (b"command 100", 100, 3), (b"after", 101, 3)]
    assert (again.getCurrentTerm(), again.getVotedForNodeId(), again.getRaftCommitIndex()) == (3, "lone", 100)
