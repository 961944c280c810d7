"""The logs of a whole Kafka cluster, read as a consumer reads them: each from its leader, batches as they are. It sends nothing but
Metadata, ListOffsets and Fetch, and creates no topic."""

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from headwater.broker.broker_connection import BrokerAddress, BrokerApi, BrokerConnection
from headwater.broker.client_properties import ClientProperties
from headwater.drill.read_path import PathBounds, split_batches
from headwater_core.errors import NotFound, TransientError, Unauthorised
from headwater_core.partition import TopicPartition, topic_id_text
from headwater_core.segments.batches import read_batch_header
from headwater_core.segments.records import decode_batch

T = TypeVar("T")

FETCH_BYTES = 4 << 20
LATEST, EARLIEST = -1, -2
_READ_COMMITTED = 1
TRIES = 3  # of a request to a leader that moves
_UNKNOWN_TOPIC = 3
_MOVED = (5, 6, 9, 72, 74, 75, 76)  # the leader is another one, or not known at the moment
_REFUSED = (29, 31)


class LogReader:
    """For one thread. headwater.drill's LiveLogs and StablePath. Raises TransientError where a broker does not answer, Unauthorised where
    it does not let us read, NotFound for what it does not have.

    name  of the read path, for people
    """

    def __init__(
        self,
        name: str,
        bootstrap: Sequence[BrokerAddress],
        properties: ClientProperties,
        connect: Callable[[BrokerAddress, ClientProperties], BrokerConnection] = BrokerConnection,
    ) -> None:
        self.name = name
        self._bootstrap, self._properties, self._connect = tuple(bootstrap), properties, connect
        self._connections: dict[BrokerAddress, BrokerConnection] = {}
        self._brokers: dict[int, BrokerAddress] = {}
        self._topic_ids: dict[str, str | None] = {}
        self._leaders: dict[TopicPartition, int] = {}
        try:
            self.cluster_id = str(self._metadata([])["cluster_id"])
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        for each in self._connections.values():
            each.close()
        self._connections.clear()

    def topic_id(self, topic: str) -> str | None:
        if topic not in self._topic_ids:
            self._learn(topic)
        return self._topic_ids[topic]

    def partitions(self, topic: str) -> int:
        """How many it has, as far as is known since it was first asked about."""
        self.topic_id(topic)
        return 1 + max((place.partition for place in self._leaders if place.topic == topic), default=-1)

    def leads(self, topic: str, partitions: int) -> bool:
        """Is there a leader of each of so many partitions, as of now?"""
        self._learn(topic)
        return all(self._leaders.get(TopicPartition(topic, number), -1) >= 0 for number in range(partitions))

    def bounds(self, place: TopicPartition) -> PathBounds:
        return PathBounds(self._offset(place, EARLIEST), self._offset(place, LATEST))

    def ends(self, places: list[TopicPartition]) -> dict[TopicPartition, int]:
        by_leader: dict[int, list[TopicPartition]] = defaultdict(list)
        for place in places:
            if self.topic_id(place.topic) is not None and self._leaders.get(place, -1) >= 0:
                by_leader[self._leaders[place]].append(place)
        found = {}
        for leader, members in by_leader.items():
            for place, (code, offset) in self._list_offsets(self._leader_connection(leader), members, LATEST).items():
                if not code and offset >= 0:
                    found[place] = offset
        return found

    def first_timestamp_ms(self, place: TopicPartition, offset: int) -> int | None:
        for batch in self.batches(place, offset, 2**63 - 1):
            header = read_batch_header(batch)
            if not header.is_control:
                times = [record.timestamp_ms for record in decode_batch(batch) if record.offset >= offset]
                if times:
                    return min(times)
        return None

    def batches(self, place: TopicPartition, first: int, end: int) -> Iterator[bytes]:
        cursor = first
        while cursor < end:
            reached = cursor
            raw, high_watermark = self._fetch(place, cursor, isolation_level=0)
            for batch in split_batches(raw, f"{self.name}, {place}", may_be_cut=True):
                header = read_batch_header(batch)
                if header.base_offset >= min(end, high_watermark):
                    return
                reached = max(reached, header.next_offset)
                if header.next_offset > cursor:
                    yield batch
            if reached == cursor:
                return  # nothing more is committed, or nothing is left there
            cursor = reached

    def stable_end(self, partition: TopicPartition, first: int) -> int:
        cursor = first
        while True:
            raw, end = self._fetch(partition, cursor, isolation_level=_READ_COMMITTED)
            batches = split_batches(raw, f"{self.name}, {partition}", may_be_cut=True)
            reached = max((read_batch_header(batch).next_offset for batch in batches), default=cursor)
            if reached <= cursor:
                return end
            cursor = reached

    # Requests

    def _fetch(self, place: TopicPartition, offset: int, *, isolation_level: int) -> tuple[bytes, int]:
        """Whole batches from `offset` on, the last one maybe cut, and where readers of that isolation level end."""
        fields = {
            "replica_id": -1,
            "max_wait": 0,
            "min_bytes": 1,
            "max_bytes": FETCH_BYTES,
            "isolation_level": isolation_level,
            "session_id": 0,
            "session_epoch": -1,
            "topics": [
                {
                    "topic": place.topic,
                    "partitions": [
                        {
                            "partition": place.partition,
                            "current_leader_epoch": -1,
                            "fetch_offset": offset,
                            "last_fetched_epoch": -1,
                            "log_start_offset": -1,
                            "partition_max_bytes": FETCH_BYTES,
                        }
                    ],
                }
            ],
            "forgotten_topics_data": [],
            "rack_id": "",
        }

        def ask(connection: BrokerConnection) -> tuple[int, tuple[bytes, int]]:
            said = connection.ask(BrokerApi.FETCH, fields)
            answers = [each for topic in said["responses"] for each in topic["partitions"]]
            if said["error_code"] or len(answers) != 1:
                return said["error_code"] or -1, (b"", 0)
            [answer] = answers
            end = answer["last_stable_offset" if isolation_level == _READ_COMMITTED else "high_watermark"]
            return answer["error_code"], (answer["records"] or b"", end)

        return self._asked(place, ask)

    def _offset(self, place: TopicPartition, timestamp: int) -> int:
        def ask(connection: BrokerConnection) -> tuple[int, int]:
            return self._list_offsets(connection, [place], timestamp).get(place, (-1, -1))

        return self._asked(place, ask)

    def _asked(self, place: TopicPartition, ask: Callable[[BrokerConnection], tuple[int, T]]) -> T:
        """What the leader answers, found again where it has moved."""
        code = 0
        for _ in range(TRIES):
            leader = self._leaders.get(place, -1)
            if leader < 0 or code:
                self._learn(place.topic)
                leader = self._leaders.get(place, -1)
            if leader < 0:
                raise NotFound(f"{self.name}: {place} has no leader, or is not there")
            code, answer = ask(self._leader_connection(leader))
            if not code:
                return answer
            if code not in _MOVED:
                break
        kind = Unauthorised if code in _REFUSED else NotFound if code == _UNKNOWN_TOPIC else TransientError
        raise kind(f"{self.name}: {place} was answered with code {code}")

    def _list_offsets(
        self, connection: BrokerConnection, places: Sequence[TopicPartition], timestamp: int
    ) -> dict[TopicPartition, tuple[int, int]]:
        topics: dict[str, list[dict[str, Any]]] = defaultdict(list)
        for place in places:
            topics[place.topic].append({"partition_index": place.partition, "current_leader_epoch": -1, "timestamp": timestamp})
        said = connection.ask(
            BrokerApi.LIST_OFFSETS,
            {"replica_id": -1, "isolation_level": 0, "topics": [{"name": name, "partitions": each} for name, each in topics.items()]},
        )
        return {
            TopicPartition(topic["name"], each["partition_index"]): (each["error_code"], each["offset"])
            for topic in said["topics"]
            for each in topic["partitions"]
        }

    def _learn(self, topic: str) -> None:
        said = self._metadata([topic])
        self._topic_ids[topic] = None
        for each in said["topics"]:
            code, name = each["error_code"], each["name"]
            if code in _REFUSED:
                raise Unauthorised(f"{self.name}: the user may not describe {topic}")
            if code and code != _UNKNOWN_TOPIC:
                raise TransientError(f"{self.name}: metadata of {topic} was answered with code {code}")
            if code or name != topic:
                continue
            self._topic_ids[topic] = topic_id_text(each["topic_id"]) if each["topic_id"] else None
            for partition in each["partitions"]:
                self._leaders[TopicPartition(topic, partition["partition_index"])] = partition["leader_id"]

    def _metadata(self, topics: Sequence[str]) -> dict[str, Any]:
        """By any broker that answers. Raises what the last one did."""
        failure: Exception = TransientError(f"{self.name}: no broker is named")
        for address in (*self._brokers.values(), *self._bootstrap):
            try:
                said = self._connection(address).ask(
                    BrokerApi.METADATA,
                    {
                        "topics": [{"topic_id": None, "name": name} for name in topics],
                        "allow_auto_topic_creation": False,
                        "include_topic_authorized_operations": False,
                    },
                )
            except TransientError as error:
                self._drop(address)
                failure = error
                continue
            self._brokers = {each["node_id"]: BrokerAddress(each["host"], each["port"]) for each in said["brokers"]}
            return said
        raise failure

    def _leader_connection(self, node_id: int) -> BrokerConnection:
        address = self._brokers.get(node_id)
        if address is None:
            raise TransientError(f"{self.name}: broker {node_id} is not known")
        return self._connection(address)

    def _connection(self, address: BrokerAddress) -> BrokerConnection:
        held = self._connections.get(address)
        if held is None or held.failure is not None:
            self._drop(address)
            held = self._connections[address] = self._connect(address, self._properties)
        return held

    def _drop(self, address: BrokerAddress) -> None:
        held = self._connections.pop(address, None)
        if held is not None:
            held.close()


@contextmanager
def open_log_reader(name: str, bootstrap: Sequence[BrokerAddress], properties: ClientProperties) -> Iterator[LogReader]:
    reader = LogReader(name, bootstrap, properties)
    try:
        yield reader
    finally:
        reader.close()
