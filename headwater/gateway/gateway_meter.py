"""What clients ask of the gateway, counted. Belongs to its event loop; others may read it at any time."""

from headwater.gateway.protocol import Api
from headwater_core.durations import Durations

BOUNDS_S = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)


class GatewayMeter:
    """
    connections     that are open
    refused         connections that were closed at once, because there were as many as may be
    idle_closed     connections that were closed to make room for one of an address that has fewer
    unread_bytes    of responses that wait until their clients take them
    unread_dropped  responses that were given up with their connections, because all together were too long
    seconds         by API, from a request's arrival to its answer, before that is sent; a Fetch waits as long as its client allows
    """

    def __init__(self) -> None:
        self.connections = self.refused = self.idle_closed = 0
        self.unread_bytes = self.unread_dropped = 0
        self.seconds = {api: Durations(BOUNDS_S) for api in Api}

    def answered(self, api_key: int, seconds: float) -> None:
        self.seconds[Api(api_key)].add(seconds)
