"""What clients say of themselves in their requests: who they are, and for which group they read.

Source: Kafka 4.4, RequestHeader.json, ApiVersionsRequest.json (KIP-511) and those of groups.
"""

import struct
from contextlib import suppress
from dataclasses import dataclass

from headwater.gateway.frames import MalformedRequest
from headwater.gateway.primitives import primitive, skip_tags
from headwater.gateway.protocol import Api

HEAD_BYTES = 512  # of a request: what a client says of itself stands at its beginning
_NAMED_FROM = 3  # ApiVersions
_GROUPS = {  # the first version that is flexible; their first field is the group
    Api.OFFSET_COMMIT: 8,
    Api.JOIN_GROUP: 6,
    Api.CONSUMER_GROUP_HEARTBEAT: 0,
}


@dataclass(eq=False, slots=True)
class ClientFacts:
    """
    peer              its address and port
    listener          the address and port that it has connected to
    client_id, software_name, software_version  as it says; "": it has not
    group             whose last commit, or entry, it has sent; "": of none
    """

    peer: str = "?"
    listener: str = ""
    client_id: str = ""
    software_name: str = ""
    software_version: str = ""
    group: str = ""

    def wants(self, api_key: int) -> bool:
        """Whether such a request may say something new."""
        return not self.client_id or api_key == Api.API_VERSIONS or api_key in _GROUPS

    def note(self, head: bytes) -> None:
        """head: of a request, from its API key on, HEAD_BYTES where it has as many. What is no text is left out."""
        with suppress(MalformedRequest, UnicodeDecodeError, struct.error, IndexError):
            api_key, version = struct.unpack_from(">hh", head)
            client_id, at = primitive("string", False, True)[0](head, 8)
            self.client_id = client_id or ""
            if api_key == Api.API_VERSIONS and version >= _NAMED_FROM:
                read = primitive("string", True, False)[0]
                name, at = read(head, skip_tags(head, at))
                self.software_version, _ = read(head, at)
                self.software_name = name
            elif (flexible_from := _GROUPS.get(api_key)) is not None:
                is_flexible = version >= flexible_from
                self.group, _ = primitive("string", is_flexible, False)[0](head, skip_tags(head, at) if is_flexible else at)
