"""Names that two patterns share."""

import fnmatch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.pattern_overlap import common_name

PATTERNS = st.lists(st.sampled_from(["a", "b", ".", "*", "?", "[ab]", "[!a]"]), min_size=1, max_size=6).map("".join)


@pytest.mark.parametrize(
    ("one", "other", "name"),
    [
        ("a*", "*b", "ab"),
        ("team.*", "*.orders", "team.orders"),
        ("*", "*", "x"),
        ("soup", "so?p", "soup"),
        ("soup", "stew", None),
        ("a?", "?b?", None),
        ("[ab]*", "[bc]*", "b"),
        ("a*b*c", "*bb*", "abbc"),
    ],
)
def test_a_short_name_that_both_match(one: str, other: str, name: str | None) -> None:
    assert common_name(one, other) == common_name(other, one) == name


@given(PATTERNS, PATTERNS, st.text("ab.x", min_size=1, max_size=6))
def test_where_there_is_one_of_these_letters_it_is_found_and_what_is_found_matches(one: str, other: str, name: str) -> None:
    found = common_name(one, other)
    if found is None:
        assert not (fnmatch.fnmatchcase(name, one) and fnmatch.fnmatchcase(name, other))
    else:
        assert fnmatch.fnmatchcase(found, one)
        assert fnmatch.fnmatchcase(found, other)
