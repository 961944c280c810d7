"""What clients ask of the gateway, counted. Belongs to its event loop; others may read it at any time."""

from collections import Counter
from dataclasses import dataclass

from headwater.gateway.client_facts import ClientFacts
from headwater.gateway.protocol import Api
from headwater_core.durations import Durations

BOUNDS_S = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)


OTHER_API = -1  # of those that a proxy does not know


@dataclass(slots=True)
class PassedApi:
    """What a proxy has passed of one API, both ways, in bytes with what the archive added."""

    requests: int = 0
    request_bytes: int = 0
    response_bytes: int = 0


class GatewayMeter:
    """
    connections     that are open
    clients         of them, with what they say of themselves
    refused         connections that were closed at once, because there were as many as may be
    malformed       connections that were closed as they were no Kafka, or failed at TLS
    idle_closed     connections that were closed to make room for one of an address that has fewer
    unread_bytes    of responses that wait until their clients take them
    unread_dropped  responses that were given up with their connections, because all together were too long
    seconds         by API, from a request's arrival to its answer, before that is sent; a Fetch waits as long as its client allows

    And of a proxy:

    passed          by API key, or OTHER_API
    added           from a request's arrival until it is sent to its broker, plus from the response's until it is sent to the client
    archived_fetches, archived_bytes   Fetches with records of the archive, and their bytes
    gaps            offsets that neither archive nor broker has were skipped so often
    refusals        partitions of which a client was told to ask again, by the error's name
    hidden          requests that clients were not offered
    upstream_failures  connections to brokers that were not had, by node id; None: to any
    upstream_failing   brokers to which the last one was not, by node id, and why; None: to none of all
    """

    def __init__(self) -> None:
        self.clients: set[ClientFacts] = set()
        self.connections = self.refused = self.malformed = self.idle_closed = 0
        self.unread_bytes = self.unread_dropped = 0
        self.seconds = {api: Durations(BOUNDS_S) for api in Api}
        self.passed: dict[int, PassedApi] = {}
        self.added = Durations(BOUNDS_S)
        self.archived_fetches = self.archived_bytes = self.gaps = self.hidden = 0
        self.refusals: Counter[str] = Counter()
        self.upstream_failures: Counter[int | None] = Counter()
        self.upstream_failing: dict[int | None, str] = {}

    def passing(self, api_key: int) -> PassedApi:
        found = self.passed.get(api_key)
        if found is None:
            found = self.passed[api_key] = PassedApi()
        return found

    def reached(self, node_id: int | None, failure: str = "") -> None:
        """A broker was reached, or not."""
        if failure:
            self.upstream_failures[node_id] += 1
            self.upstream_failing[node_id] = failure
            return
        for answering in (node_id, None):
            self.upstream_failing.pop(answering, None)

    def answered(self, api_key: int, seconds: float) -> None:
        self.seconds[Api(api_key)].add(seconds)
