"""What the proxy itself requests of a broker, on its client's connection: the client's rights hold for it."""

from collections.abc import Awaitable, Callable, Iterable, Mapping

from headwater.gateway.messages import Fields, request_schema, response_schema
from headwater.gateway.primitives import NO_TAGS, skip_tags
from headwater.gateway.protocol import Api, Code
from headwater.gateway.response import Response

Ask = Callable[[int, int, bytes], Awaitable[bytes]]
"""Request of the broker: key, version and body; the response's body, from behind the correlation id on."""
_LIST_OFFSETS_VERSION, _METADATA_VERSION = 4, 10  # which brokers have since 2.8, and still had in 4.4


class BrokerRequests:
    """Raises what `ask` does."""

    def __init__(self, ask: Ask) -> None:
        self.ask = ask

    async def offsets(self, partitions: Iterable[tuple[str, int]], timestamp: int, isolation: int = 0) -> Mapping[tuple[str, int], int]:
        """As ListOffsets has them at this timestamp, by topic and partition; those that the broker does not tell are left out."""
        topics = dict[str, list[Fields]]()
        for topic, partition in partitions:
            fields = {"partition_index": partition, "current_leader_epoch": -1, "timestamp": timestamp}
            topics.setdefault(topic, []).append(fields)
        if not topics:
            return {}
        requested = [{"name": name, "partitions": of_topic} for name, of_topic in topics.items()]
        body = {"replica_id": -1, "isolation_level": isolation, "topics": requested}
        found = await self._response(Api.LIST_OFFSETS, _LIST_OFFSETS_VERSION, body)
        return {
            (topic["name"], fields["partition_index"]): fields["offset"]
            for topic in found["topics"]
            for fields in topic["partitions"]
            if fields["error_code"] == Code.NONE and fields["offset"] >= 0
        }

    async def topic_ids(self, names: Iterable[str]) -> Mapping[str, bytes]:
        """Of the topics that have these names now; those that the broker does not tell are left out."""
        topics = [{"topic_id": None, "name": name} for name in names]
        operations = {"include_topic_authorized_operations": False, "include_cluster_authorized_operations": False}
        body = {"topics": topics, "allow_auto_topic_creation": False, **operations}
        found = await self._response(Api.METADATA, _METADATA_VERSION, body)
        return {topic["name"]: topic["topic_id"] for topic in found["topics"] if topic["error_code"] == Code.NONE}

    async def _response(self, api_key: int, version: int, body: Fields) -> Fields:
        return decoded(api_key, version, await self.ask(api_key, version, encoded_request(api_key, version, body)))


def encoded_request(api_key: int, version: int, values: Fields) -> bytes:
    """A request's body."""
    request = Response()
    request_schema(api_key, version).write(request, values)
    return bytes(request.buffer)


def decoded(api_key: int, version: int, raw: bytes) -> Fields:
    """A response, from behind its correlation id on. Raises MalformedRequest, struct.error."""
    schema = response_schema(api_key, version)
    found, _ = schema.read(raw, skip_tags(raw, 0) if schema.header_version else 0)
    return found  # type: ignore[no-any-return]


def encoded(api_key: int, version: int, values: Fields) -> bytes:
    """The other way."""
    schema, response = response_schema(api_key, version), Response()
    response.buffer += NO_TAGS if schema.header_version else b""
    schema.write(response, values)
    return bytes(response.buffer)
