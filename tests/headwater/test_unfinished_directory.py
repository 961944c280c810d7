"""A recovered directory that somebody opens to look at it, before `recover finish`, stays as it is: bytes, names and times."""

from pathlib import Path

import pytest

from tests.headwater.conftest import Stage
from tests.headwater.test_verbs import objects

COMMANDS = [
    ("flush",),  # into an archive of its own: it has become another cluster's
    ("read", "bills", "--from", "earliest"),
    ("read", "bills:0", "--read-priority", "local-only"),
    ("status",),
    ("status", "--partitions"),
    ("explain", "bills:0"),
    ("verify", "--data"),
    ("topics", "list"),
    ("config", "check"),
]


def contents(directory: Path) -> dict[str, tuple[int, int, int, bytes]]:
    """Of every file and directory: mode, inode, modification time, and what is in it."""
    found = {}
    for path in sorted(directory.rglob("*")):
        status = path.stat()
        found[str(path.relative_to(directory))] = (
            status.st_mode,
            status.st_ino,
            status.st_mtime_ns,
            b"" if path.is_dir() else path.read_bytes(),
        )
    return found


@pytest.fixture
def recovered(stage: Stage) -> Path:
    assert stage.run("flush", log=stage.log("kitchen")).code == 0
    assert objects(stage, ".log")
    into = stage.root / "recovered"
    applied = stage.run("recover", "apply", "topic", "--all", "--into", str(into), "--data-dir", str(stage.root / "other"))
    assert applied.code == 0, applied.err
    return into


def test_what_looks_at_a_recovered_directory_writes_nothing_into_it(recovered: Path, stage: Stage) -> None:
    before = contents(recovered)
    own = "--data-dir", str(stage.root / "looking"), "--store", f"file://{stage.root / 'second'}"
    for command in COMMANDS:
        ran = stage.run(*command, *own, log=recovered)
        assert ran.code == 0, (command, ran.err)
        assert contents(recovered) == before, command


@pytest.mark.parametrize("form", ["text", "jsonl"])
def test_its_state_can_be_asked_for_without_a_change(recovered: Path, stage: Stage, form: str) -> None:
    before = contents(recovered)
    assert stage.run_bare("recover", "status", "--into", str(recovered), *(("-o", form) if form == "jsonl" else ())).code == 0
    assert contents(recovered) == before
