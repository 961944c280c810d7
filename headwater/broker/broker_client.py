"""The broker beside this agent, by its own protocol: archival.broker.broker_view.Broker.

A broker that does not answer is asked again after pauses, and both its silence and its return are logged once.
"""

import threading
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import structlog

from archival.broker.broker_view import CommittedEnd, Group, LeaderLog
from headwater.broker.broker_connection import BrokerAddress, BrokerApi, BrokerConnection, ConnectionClosed
from headwater.broker.client_properties import ClientProperties
from headwater.broker.consumer_groups import list_groups
from headwater_core.clock import Clock
from headwater_core.epochs import EpochHistory
from headwater_core.errors import (
    DeletionRefused,
    ForeignOwner,
    HeadwaterError,
    SourceChanged,
    TransientError,
)
from headwater_core.partition import TopicPartition, topic_id_text

_log = structlog.get_logger()

PAUSE_S, PAUSE_MAX_S = 1.0, 30.0  # before a silent broker is asked again; the pause doubles with each try
IDLE_MAX = 4  # connections that are kept open
IDLE_S = 60.0  # for so long; a broker closes them after ten minutes by default
DELETE_TIMEOUT_MS = 1  # for the followers to move their log starts too: they do so with their next fetch, for which nobody need wait
LATEST, EARLIEST = -1, -2
REQUEST_TIMED_OUT = 7
METADATA_TOPIC = "__cluster_metadata"
_CODES = {  # those that say something other than "ask again"; source: Kafka protocol guide, "Error Codes"
    29: "TOPIC_AUTHORIZATION_FAILED",
    31: "CLUSTER_AUTHORIZATION_FAILED",
    44: "POLICY_VIOLATION",
}


class _Idle(NamedTuple):
    connection: BrokerConnection
    since_s: float


class _Lease:
    """A connection for one caller.

    The broker may have closed one that was kept since its last answer: that is no silence of the broker's. So its first request is sent
    again over a new one then, unless it deletes: that might have been done, and rests on what was read over this very connection.

    connect  makes a new connection; None for one that is new itself
    """

    def __init__(self, connection: BrokerConnection, connect: Callable[[], BrokerConnection] | None) -> None:
        self.connection, self._connect = connection, connect
        self._failure: HeadwaterError | None = None

    @property
    def failure(self) -> HeadwaterError | None:
        """What made it useless."""
        return self._failure or self.connection.failure

    def ask(self, api: BrokerApi, fields: Mapping[str, Any]) -> dict[str, Any]:
        """See BrokerConnection."""
        connect, self._connect = self._connect, None
        try:
            return self.connection.ask(api, fields)
        except ConnectionClosed:
            if connect is None or api == BrokerApi.DELETE_RECORDS:
                raise
        self.connection.close()
        try:
            self.connection = connect()
        except HeadwaterError as error:
            self._failure = error
            raise
        return self.connection.ask(api, fields)


class BrokerClient:
    """Safe to use from many threads.

    cluster_id, node_id  of the broker whose log directories are here: no other one is talked to
    """

    def __init__(
        self,
        bootstrap: Sequence[BrokerAddress],
        properties: ClientProperties,
        *,
        cluster_id: Callable[[], str],
        node_id: Callable[[], int],
        clock: Clock,
        connect: Callable[[BrokerAddress, ClientProperties], BrokerConnection] = BrokerConnection,
    ) -> None:
        self._bootstrap, self._properties, self._clock, self._connect_to = tuple(bootstrap), properties, clock, connect
        self._cluster_id, self._node_id = cluster_id, node_id
        self._lock = threading.Lock()
        self._idle: list[_Idle] = []
        self._failures, self._again_s = 0, 0.0
        self._reason = ""
        self._silent_from_s = 0.0
        self._closed = False

    def close(self) -> None:
        with self._lock:
            self._closed, idle, self._idle = True, self._idle, []
        for each in idle:
            each.connection.close()

    def outage(self) -> tuple[float, str] | None:
        """Return for how many seconds it has not answered, and why; None while it answers, or before the first request."""
        with self._lock:
            return (self._clock.monotonic_s() - self._silent_from_s, self._reason) if self._reason else None

    def committed(self, places: Collection[TopicPartition]) -> Mapping[TopicPartition, CommittedEnd]:
        """See archival.broker.broker_view.Broker. The offsets are asked first, then what the names mean: a name that means the same
        topic still did so before."""
        with self._connection() as connection:
            ends = _list_offsets(connection, places, LATEST)
            topics = _topics(connection, {place.topic for place in places})
        found = {}
        for place, (code, offset, leader_epoch) in ends.items():
            topic = topics.get(place.topic)
            if code in _CODES:
                _log.warning("broker_refused", topic=place.topic, reason=_CODES[code])
            elif code == 0 and offset >= 0 and leader_epoch >= 0 and topic is not None:
                found[place] = CommittedEnd(topic, leader_epoch, offset)
        return found

    def groups(self, known: Collection[str]) -> Sequence[Group]:
        """See archival.broker.broker_view.Broker."""
        with self._connection() as connection:
            return list_groups(connection, lambda address: self._connect_to(address, self._properties), known)

    @contextmanager
    def pinned(self) -> Iterator["PinnedConnection"]:
        """See archival.broker.broker_view.Broker."""
        with self._connection() as connection:
            yield PinnedConnection(connection)

    @contextmanager
    def _connection(self) -> Iterator[_Lease]:
        """One that nobody else uses. It is kept for the next caller unless it has failed."""
        lease = self._take()
        try:
            yield lease
        finally:
            if lease.failure is None:
                self._answered(lease.connection)
            else:
                lease.connection.close()
                self._failed(lease.failure)

    def _take(self) -> _Lease:
        now_s = self._clock.monotonic_s()
        with self._lock:
            if now_s < self._again_s:
                raise TransientError(self._reason)
            old = [each for each in self._idle if now_s - each.since_s >= IDLE_S]
            self._idle = idle = [each for each in self._idle if now_s - each.since_s < IDLE_S]
            kept = idle.pop().connection if idle else None
        for each in old:
            each.connection.close()
        if kept is not None:
            return _Lease(kept, self._connect)
        try:
            return _Lease(self._connect(), None)
        except HeadwaterError as error:
            self._failed(error)
            raise

    def _answered(self, connection: BrokerConnection) -> None:
        with self._lock:
            was_silent, self._failures, self._reason = bool(self._reason), 0, ""
            is_kept = not self._closed and len(self._idle) < IDLE_MAX
            if is_kept:
                self._idle.append(_Idle(connection, self._clock.monotonic_s()))
        if not is_kept:
            connection.close()
        if was_silent:
            _log.info("broker_answered")

    def _failed(self, error: HeadwaterError) -> None:
        with self._lock:
            was_silent, self._reason = bool(self._reason), str(error)
            if not was_silent:
                self._silent_from_s = self._clock.monotonic_s()
            self._again_s = self._clock.monotonic_s() + min(PAUSE_MAX_S, PAUSE_S * 2.0 ** min(self._failures, 10))
            self._failures += 1
            others, self._idle = self._idle, []
        for each in others:
            each.connection.close()
        if not was_silent:
            (_log.warning if isinstance(error, TransientError) else _log.error)(
                "broker_unavailable",
                reason=str(error),
                consequence="archiving goes on by the broker's checkpoints, which are up to 5 s old; nothing is released",
            )

    def _connect(self) -> BrokerConnection:
        """To this node's own broker, wherever it says that it listens."""
        problem: HeadwaterError = TransientError("no broker is given")
        for address in self._bootstrap:
            try:
                return self._find(address)
            except HeadwaterError as error:
                problem = error
        raise problem

    def _find(self, address: BrokerAddress) -> BrokerConnection:
        connection = self._connect_to(address, self._properties)
        try:
            said = _metadata(connection, ())
            if said["cluster_id"] != self._cluster_id():
                raise ForeignOwner(f"broker {address} is of cluster {said['cluster_id']}, the log directories are of {self._cluster_id()}")
            own = next((BrokerAddress(each["host"], each["port"]) for each in said["brokers"] if each["node_id"] == self._node_id()), None)
            if own is None:
                raise TransientError(f"broker {address} knows no broker {self._node_id()}, whose log directories these are")
        except BaseException:
            connection.close()
            raise
        if own == address:
            return connection
        connection.close()
        return self._connect_to(own, self._properties)


class PinnedConnection:
    """See archival.broker.broker_view.PinnedBroker."""

    def __init__(self, connection: _Lease) -> None:
        self._connection = connection

    def leader_log(self, place: TopicPartition, leader_epoch: int, history: EpochHistory) -> LeaderLog:
        """The high watermark comes first: what is said of the replicas after that is not older."""
        high_watermark = self._offset(place, LATEST, leader_epoch)
        log_start = self._offset(place, EARLIEST, leader_epoch)
        fields = {"partition": place.partition, "current_leader_epoch": leader_epoch}
        asked = [start.epoch for start in history.starts]
        said = self._connection.ask(
            BrokerApi.OFFSET_FOR_LEADER_EPOCH,
            {"replica_id": -1, "topics": [{"topic": place.topic, "partitions": [{**fields, "leader_epoch": each} for each in asked]}]},
        )
        answers = [each for topic in said["topics"] for each in topic["partitions"]]
        for each in answers:
            _check(each["error_code"], place)
        if len(answers) != len(asked):
            raise SourceChanged(f"{place}: {len(answers)} answers about {len(asked)} leader epochs")
        ends = {epoch: (each["leader_epoch"], each["end_offset"]) for epoch, each in zip(asked, answers, strict=True)}
        topic_id = self.topic_id(place.topic)
        if topic_id is None:
            raise SourceChanged(f"{place}: the broker does not know the topic any more")
        return LeaderLog(topic_id, log_start, high_watermark, ends)

    def topic_id(self, topic: str) -> str | None:
        return _topics(self._connection, (topic,)).get(topic)

    def metadata_end(self) -> int:
        said = self._connection.ask(
            BrokerApi.DESCRIBE_QUORUM, {"topics": [{"topic_name": METADATA_TOPIC, "partitions": [{"partition_index": 0}]}]}
        )
        codes = [said["error_code"], *(each["error_code"] for topic in said["topics"] for each in topic["partitions"])]
        for code in codes:
            if code == 31:
                raise DeletionRefused("the user of log.client_properties may not describe the cluster, which releasing needs")
            if code:
                raise TransientError(f"the metadata quorum answered with code {code}")
        return max(int(each["high_watermark"]) for topic in said["topics"] for each in topic["partitions"])

    def delete_records(self, place: TopicPartition, end: int) -> None:
        said = self._connection.ask(
            BrokerApi.DELETE_RECORDS,
            {
                "topics": [{"name": place.topic, "partitions": [{"partition_index": place.partition, "offset": end}]}],
                "timeout": DELETE_TIMEOUT_MS,
            },
        )
        answers = [each for topic in said["topics"] for each in topic["partitions"] if each["partition_index"] == place.partition]
        for each in answers:
            if each["error_code"] != REQUEST_TIMED_OUT:  # the leader has deleted by then; its followers have not yet
                _check(each["error_code"], place)

    def _offset(self, place: TopicPartition, timestamp: int, leader_epoch: int) -> int:
        code, offset, _ = _list_offsets(self._connection, (place,), timestamp, leader_epoch).get(place, (-1, -1, -1))
        _check(code, place)
        return offset


def _check(code: int, place: TopicPartition) -> None:
    if code == 44:
        raise DeletionRefused(f"{place}: the broker deletes no records of a topic whose cleanup.policy is compact alone")
    if code in _CODES:
        raise DeletionRefused(f"{place}: the broker refuses it: {_CODES[code]}")
    if code:
        raise SourceChanged(f"{place}: the broker answered with code {code}")


def _list_offsets(
    connection: _Lease, places: Iterable[TopicPartition], timestamp: int, leader_epoch: int = -1
) -> dict[TopicPartition, tuple[int, int, int]]:
    """(error code, offset, leader epoch) of each."""
    topics: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for place in places:
        topics[place.topic].append({"partition_index": place.partition, "current_leader_epoch": leader_epoch, "timestamp": timestamp})
    said = connection.ask(
        BrokerApi.LIST_OFFSETS,
        {"replica_id": -1, "isolation_level": 0, "topics": [{"name": name, "partitions": each} for name, each in topics.items()]},
    )
    return {
        TopicPartition(topic["name"], each["partition_index"]): (each["error_code"], each["offset"], each["leader_epoch"])
        for topic in said["topics"]
        for each in topic["partitions"]
    }


def _topics(connection: _Lease, names: Iterable[str]) -> dict[str, str]:
    """The topic id of each of these that there is."""
    said = _metadata(connection, names)
    return {each["name"]: topic_id_text(each["topic_id"]) for each in said["topics"] if not each["error_code"] and each["topic_id"]}


def _metadata(connection: BrokerConnection | _Lease, names: Iterable[str]) -> dict[str, Any]:
    topics = [{"topic_id": None, "name": name} for name in names]
    return connection.ask(
        BrokerApi.METADATA, {"topics": topics, "allow_auto_topic_creation": False, "include_topic_authorized_operations": False}
    )
