"""Kafka clients over HTTP, a page at a time."""

import asyncio
from typing import Any

import msgspec
import pytest
from starlette.requests import Request

from headwater.admin.client_routes import clients_route
from headwater.admin.problem import ProblemError
from headwater.gateway.client_facts import ClientFacts


def asked(clients: set[ClientFacts], query: str = "") -> Any:
    scope = {"type": "http", "query_string": query.encode(), "path_params": {}, "headers": []}
    return msgspec.json.decode(asyncio.run(clients_route(clients).endpoint(Request(scope))).body)


def test_clients_are_shown_with_what_they_say_of_themselves() -> None:
    facts = ClientFacts("10.0.0.1:5", "10.0.0.2:9292", "waiter", "soup-kafka", "1.2", "cooks")
    assert asked({facts}) == {
        "clients": [
            {
                "peer": "10.0.0.1:5",
                "listener": "10.0.0.2:9292",
                "client_id": "waiter",
                "software_name": "soup-kafka",
                "software_version": "1.2",
                "group": "cooks",
            }
        ]
    }


def test_pages_have_all_clients_once() -> None:
    clients = {ClientFacts(f"10.0.0.{number}:1") for number in range(10)}
    found: list[str] = []
    after = ""
    for _ in range(4):
        page = asked(clients, f"limit=3&after={after}" if after else "limit=3")
        found += [row["peer"] for row in page["clients"]]
        after = page.get("next_after", "")
    assert found == sorted(facts.peer for facts in clients)
    assert not after


@pytest.mark.parametrize("query", ["after=%0a", "limit=0", "soup=1"])
def test_what_is_no_page_is_refused(query: str) -> None:
    with pytest.raises(ProblemError):
        asked(set(), query)
