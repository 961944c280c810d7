"""Who clients say they are, whatever they send."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.gateway.client_facts import HEAD_BYTES, ClientFacts
from headwater.gateway.protocol import Api
from tests.headwater.gateway.raw import a_request


def noted(*frames: bytes) -> ClientFacts:
    facts = ClientFacts()
    for frame in frames:
        facts.note(frame[4 : 4 + HEAD_BYTES])
    return facts


@pytest.mark.parametrize("version", [0, 2, 3, 4])
def test_a_client_names_itself(version: int) -> None:
    named = {"client_software_name": "soup-kafka", "client_software_version": "1.2"} if version >= 3 else {}
    facts = noted(a_request(Api.API_VERSIONS, version, named, client_id="waiter"))
    assert facts.client_id == "waiter"
    assert (facts.software_name, facts.software_version) == (("soup-kafka", "1.2") if version >= 3 else ("", ""))


COMMIT = {"group_id": "cooks", "generation_id_or_member_epoch": 1, "member_id": "", "topics": []}
JOIN = {"group_id": "cooks", "session_timeout": 1, "rebalance_timeout": 1, "member_id": "", "protocol_type": "consumer", "protocols": []}


@pytest.mark.parametrize("version", [2, 7, 8])
def test_a_commit_names_its_group(version: int) -> None:
    assert noted(a_request(Api.OFFSET_COMMIT, version, COMMIT)).group == "cooks"


@pytest.mark.parametrize("version", [4, 5, 6, 9])
def test_who_joins_a_group_names_it(version: int) -> None:
    assert noted(a_request(Api.JOIN_GROUP, version, JOIN)).group == "cooks"


def test_what_others_send_changes_nothing_but_the_client_id() -> None:
    frame = a_request(Api.METADATA, 1, {"topics": []}, client_id="other")
    facts = noted(a_request(Api.OFFSET_COMMIT, 2, COMMIT), frame)
    assert (facts.group, facts.client_id) == ("cooks", "other")


@given(st.binary(max_size=64), st.sampled_from([0, 3, 8, 11, 18, 68]), st.integers(0, 12))
def test_nonsense_is_left_out(body: bytes, api_key: int, version: int) -> None:
    facts = ClientFacts()
    facts.note(api_key.to_bytes(2, "big") + version.to_bytes(2, "big") + body)
    assert all(isinstance(each, str) for each in (facts.group, facts.client_id, facts.software_name, facts.software_version))
