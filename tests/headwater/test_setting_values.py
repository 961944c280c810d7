"""What a setting may be written as, in TOML and in the environment, and what it becomes."""

from pathlib import Path
from typing import Any

import pytest

from headwater.setting_values import key_of, parse_value, value_text
from headwater_core.errors import UsageError
from hydration.config import ReadPriority


@pytest.mark.parametrize(
    ("name", "kind", "value", "parsed"),
    [
        ("seal_timeout_s", float, "30m", 1800.0),
        ("cache_bytes", int, "20GiB", 20 << 30),
        ("cache_bytes", int, 4096, 4096),
        ("upload_bytes_per_s", int | None, "1MB", 10**6),
        ("owned", bool, True, True),
        ("owned", bool, "False", False),
        ("dirs", tuple[Path, ...], "/a, /b", (Path("/a"), Path("/b"))),
        ("dirs", tuple[Path, ...], ["/a", "/b"], (Path("/a"), Path("/b"))),
        ("data_dir", Path, "/a", Path("/a")),
        ("read_priority", ReadPriority, "local-only", ReadPriority.LOCAL_ONLY),
        ("region", str | None, "eu-1", "eu-1"),
        ("workers", int, "8", 8),
        ("ratio", float, 1, 1.0),
    ],
)
def test_a_value_is_parsed_as_its_field_has_it(name: str, kind: Any, value: object, parsed: object) -> None:
    assert parse_value(name, kind, value, "here") == parsed


@pytest.mark.parametrize(
    ("name", "kind", "value", "words"),
    [
        ("seal_timeout_s", float, 30, "a duration"),
        ("seal_timeout_s", float, "30", "not a duration"),
        ("seal_timeout_s", float, "9" * 400 + "d", "too long"),
        ("cache_bytes", int, True, "a size"),
        ("cache_bytes", int, "9" * 400, "too large"),
        ("owned", bool, "maybe", "true or false"),
        ("owned", bool, [], "true or false"),
        ("dirs", tuple[Path, ...], 3, "a list"),
        ("data_dir", Path, 3, "a path"),
        ("read_priority", ReadPriority, "local", "local"),
        ("url", str, 3, "text"),
        ("node_id", int, 1.7, "a whole number"),
        ("node_id", int, True, "a whole number"),
        ("ratio", float, "inf", "a number"),
    ],
)
def test_another_value_is_refused_and_the_place_named(name: str, kind: Any, value: object, words: str) -> None:
    with pytest.raises(UsageError, match=rf"^here: .*{words}"):
        parse_value(name, kind, value, "here")


def test_a_duration_has_no_unit_in_its_key() -> None:
    assert [key_of(name) for name in ("seal_timeout_s", "upload_bytes_per_s", "id")] == ["seal_timeout", "upload_bytes_per_s", "id"]


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("seal_timeout_s", 90.0, "1 m 30 s"),
        ("cache_bytes", 1 << 30, "1.0 GiB"),
        ("password", "secret", "(set)"),
        ("password", None, ""),
        ("dirs", (Path("/a"), Path("/b")), "/a, /b"),
        ("read_priority", ReadPriority.LOCAL_ONLY, "local-only"),
        ("owned", True, "true"),
    ],
)
def test_a_value_is_shown_as_people_write_it(name: str, value: object, text: str) -> None:
    assert value_text(name, value) == text
