"""What files say is followed, and what cannot be used changes nothing."""

from pathlib import Path

import pytest

from headwater_core.errors import UsageError
from headwater_core.followed_files import FollowedFiles


def numbers(path: Path) -> FollowedFiles[int]:
    def load() -> int:
        try:
            return int(path.read_text())
        except (OSError, ValueError) as error:
            raise UsageError(f"no number: {error}") from error

    return FollowedFiles([path], load)


def test_a_file_is_loaded_when_it_has_changed(tmp_path: Path) -> None:
    file = tmp_path / "number"
    file.write_text("1")
    found = numbers(file)
    assert (found.reload(), found.value) == (False, 1)
    file.write_text("22")
    assert (found.reload(), found.value) == (True, 22)
    assert not found.reload()


def test_a_file_that_cannot_be_used_is_reported_once_for_one_reason(tmp_path: Path) -> None:
    file = tmp_path / "number"
    file.write_text("1")
    found = numbers(file)
    for content in ("two", "three"):
        file.write_text(content)
        with pytest.raises(UsageError, match=content):
            found.reload()
        assert (found.reload(), found.value) == (False, 1)
    file.unlink()
    with pytest.raises(UsageError, match="No such file"):
        found.reload()
    file.write_text("22")
    assert (found.reload(), found.value) == (True, 22)


def test_a_file_that_cannot_be_used_from_the_beginning_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError):
        numbers(tmp_path / "number")
