from pathlib import Path

import pytest
from structlog.testing import capture_logs

from archival import state_file
from headwater_core.files import with_checksum

CONSEQUENCE = "times begin again"


def loaded(path: Path) -> tuple[dict[str, int] | None, list[tuple[str, str, str]]]:
    with capture_logs() as logs:
        found = state_file.load(path, dict[str, int], CONSEQUENCE)
    return found, [(each["event"], each["path"], each["consequence"]) for each in logs]


@pytest.mark.parametrize("content", [with_checksum(b'{"a": 1}'), b'{"a": 1}'])
def test_a_file_is_read_as_this_version_and_an_older_one_write_it(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "state.json"
    path.write_bytes(content)
    assert loaded(path) == ({"a": 1}, [])


def test_a_file_that_is_not_there_is_no_news(tmp_path: Path) -> None:
    assert loaded(tmp_path / "absent" / "state.json") == (None, [])


@pytest.mark.parametrize("content", [b"", b"00000000\n{}", b'{"a": ""}', b"[" * 100_000, b'{"a":' * 100_000, b"\xff", b"{"])
def test_what_is_refused_is_reported_once_and_kept_aside(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "state.json"
    path.write_bytes(content)
    assert loaded(path) == (None, [("state_file_refused", str(path), CONSEQUENCE)])
    assert path.with_name("state.json.unreadable").read_bytes() == content
    assert loaded(path) == (None, [])


def test_a_file_that_cannot_be_read_stays(tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    path.mkdir()
    assert loaded(path) == (None, [("state_file_refused", str(path), CONSEQUENCE)])
    assert path.exists()
