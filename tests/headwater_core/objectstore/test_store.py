"""Which keys every store can hold."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater_core.errors import UsageError
from headwater_core.objectstore.store import check_key


@given(st.text(alphabet="a9./=_-+\n é", max_size=12))
def test_a_key_is_components_none_of_which_leads_elsewhere(key: str) -> None:
    safe = all(re.fullmatch(r"[A-Za-z0-9._=-]+", part) and part not in (".", "..") for part in key.split("/"))
    if safe:
        assert check_key(key) == key
    else:
        with pytest.raises(UsageError):
            check_key(key)


def test_a_key_has_a_thousand_characters_at_most() -> None:
    assert check_key("a" * 1000)
    with pytest.raises(UsageError):
        check_key("a" * 1001)
