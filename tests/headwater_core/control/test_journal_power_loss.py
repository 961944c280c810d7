"""What the control journal has acknowledged is there after a power loss, and what is torn at its end is cut off."""

from pathlib import Path
from random import Random
from typing import NamedTuple
from unittest.mock import patch

import pytest

from headwater_core.control.journal import Entry, Journal
from headwater_core.errors import TransientError
from tests.headwater_core.objectstore.volatile_disk import VolatileDisk

_SEEDS = 100
_LIVES = 4
_WRITES = 12


class State(NamedTuple):
    entries: tuple[Entry, ...]
    term: int
    voted_for: str | None


def state(journal: Journal) -> State:
    return State(tuple(journal[:]), journal.getCurrentTerm(), journal.getVotedForNodeId())  # type: ignore[arg-type]


def write(journal: Journal, random: Random, *, with_peers: bool) -> tuple[State, bool]:
    """One write of any kind: what the journal says then, and whether that must last."""
    kind = random.choice(("add", "add", "add", "vote", "take back", "compact", "sync"))
    count = len(journal)
    match kind:
        case "add":
            last = journal[-1][1] if count else random.randrange(100)
            journal.add(random.randbytes(random.choice((0, 5, 300))), last + 1, journal.getCurrentTerm())  # type: ignore[operator]
        case "vote":
            journal.setCurrentTerm(journal.getCurrentTerm() + random.randrange(2), random.choice((None, "a:1", "b:1")))
        case "take back":
            journal.deleteEntriesFrom(random.randrange(count + 1))
            if len(journal) < count:
                journal._take_back()  # as before an entry that contradicts
        case "compact":
            journal.deleteEntriesTo(random.randrange(count + 1))
        case "sync":
            journal.sync()
    return state(journal), with_peers or kind in ("vote", "compact", "sync")


def torn(before: bytes, after: bytes, random: Random) -> bytes:
    """Of what was appended and not synced: a part, zeros in place of the rest, or nothing."""
    if not after.startswith(before):
        return before
    end = random.randrange(len(before), len(after) + 1)
    return after[:end] + random.choice((b"", bytes(len(after) - end)))


def outlives(seed: int, root: Path, *, with_peers: bool) -> bool:
    """After every power loss the journal is in a state that it was in since the last acknowledged write."""
    random = Random(seed)
    path = root / "0"
    path.mkdir()
    possible = [State((), 0, None)]
    for life in range(1, _LIVES + 1):
        disk = VolatileDisk(path)
        sync_fails = random.choice((0.0, 0.1))
        with disk.watching():
            journal = Journal(path / "journal", with_peers=with_peers)
            if state(journal) not in possible:
                return False
            possible = [state(journal)]
            disk.fails = lambda _, random=random, likely=sync_fails: random.random() < likely  # type: ignore[misc]
            for _ in range(random.randrange(_WRITES)):
                try:
                    now, lasts = write(journal, random, with_peers=with_peers)
                except TransientError:
                    possible.append(_on_file(path / "journal", root / f"{life}-tried"))
                    break
                possible = [now] if lasts else [*possible, now]
            journal._destroy()
        found = disk.after_power_loss(root / str(life))
        left = torn((found / "journal").read_bytes(), (path / "journal").read_bytes(), random)
        (found / "journal").write_bytes(left)
        path = found
    return True


def _on_file(path: Path, copy: Path) -> State:
    """A write that failed may be on disk all the same."""
    copy.write_bytes(path.read_bytes())
    journal = Journal(copy)
    said = state(journal)
    journal._destroy()
    return said


@pytest.mark.parametrize("with_peers", [False, True], ids=["alone", "with peers"])
def test_no_acknowledged_write_is_lost_with_the_power(with_peers: bool, tmp_path: Path) -> None:
    for seed in range(_SEEDS):
        (root := tmp_path / str(seed)).mkdir()
        assert outlives(seed, root, with_peers=with_peers), f"seed {seed}"


def test_a_vote_that_is_not_synced_is_noticed(tmp_path: Path) -> None:
    with patch.object(Journal, "sync", lambda _: None):
        for seed in range(_SEEDS):
            (root := tmp_path / str(seed)).mkdir()
            if not outlives(seed, root, with_peers=True):
                return
    pytest.fail("not noticed")
