"""The Kafka clients that are connected, over HTTP: who they say they are."""

from collections.abc import Collection

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from headwater.admin.parameters import known, number, text
from headwater.admin.status_page import LIMIT, LIMIT_MAX
from headwater.gateway.client_facts import ClientFacts

_AFTER = r"[0-9A-Za-z.:%?_ -]{1,200}"


class ClientRow(msgspec.Struct, frozen=True, kw_only=True):
    """Has what ClientFacts does; "" is what a client has not said."""

    peer: str
    listener: str
    client_id: str
    software_name: str
    software_version: str
    group: str


class ClientPage(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """clients: by peer; next_after: the value of `after` for the next page; absent on the last one"""

    clients: list[ClientRow]
    next_after: str | msgspec.UnsetType = msgspec.UNSET


def client_page(clients: Collection[ClientFacts], *, after: str, limit: int) -> ClientPage:
    """Return the clients whose peers and listeners come after `after`."""
    rows = sorted((msgspec.convert(facts, ClientRow, from_attributes=True) for facts in clients), key=_key)
    rows = [row for row in rows if _key(row) > after][: limit + 1]
    return ClientPage(clients=rows[:limit], next_after=_key(rows[limit - 1]) if len(rows) > limit else msgspec.UNSET)


def _key(row: ClientRow) -> str:
    return f"{row.peer} {row.listener}"


def clients_route(clients: set[ClientFacts]) -> Route:
    """clients: those that are connected, as they come and go in another thread"""

    async def list_clients(request: Request) -> Response:
        known(request, "limit", "after")
        after = text(request, "after", _AFTER, "the next_after of another page") or ""
        page = client_page(list(clients), after=after, limit=number(request, "limit", LIMIT, LIMIT_MAX))
        return Response(msgspec.json.encode(page), media_type="application/json")

    return Route("/v1/clients", list_clients)
