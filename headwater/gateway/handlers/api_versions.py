"""ApiVersions (key 18), versions 0 to 4: which requests are answered, in which versions.

v3 flexible; the client's name and version (KIP-511)
v4 features whose lowest version is 0 (KIP-1022)

The response header is that of v0 in every version, so that every client can read it. A newer request gets UNSUPPORTED_VERSION in v0, with
the ranges, and its client asks again.

Not here: features; v5, which names cluster and node (KIP-1242).
"""

from collections.abc import Mapping

from headwater.gateway.messages import Fields
from headwater.gateway.protocol import Api, Code

VERSIONS = range(5)


def respond(offered: Mapping[Api, range], error: Code = Code.NONE) -> Fields:
    return {
        "error_code": error,
        "api_keys": [{"api_key": api, "min_version": each.start, "max_version": each.stop - 1} for api, each in offered.items()],
    }
