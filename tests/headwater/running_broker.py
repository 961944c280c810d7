"""The brokers of a running cluster of the tests' own, over a real socket: a program in another process recovers into it."""

from collections.abc import Mapping
from threading import Lock
from typing import Any

from headwater.broker.broker_connection import BrokerApi
from headwater_core.partition import topic_id_bytes
from recovery.given_state import Acl, QuotaEntity
from recovery.held_settings import LogBounds
from recovery.recovery_plan import GroupCommit
from recovery.running_cluster import NewTopic
from tests.headwater.socket_broker import SocketBroker
from tests.recovery.running import Running

_TOPIC, _DELETE, _EARLIEST = 2, 1, -2
_SOURCES = {_TOPIC: 1, 4: 3, 16: 7, 32: 8}  # of a value that was set by a request, by the type of the resource
_UNKNOWN_TOPIC, _EXISTS = 3, 36

Fields = Mapping[str, Any]


class RunningBroker(SocketBroker):
    """Answers with what `cluster` has, as each of its nodes. What a request changes is changed by the time it is answered."""

    def __init__(self, cluster: Running) -> None:
        said = {
            BrokerApi.METADATA: self._metadata,
            BrokerApi.LIST_OFFSETS: self._offsets,
            BrokerApi.DESCRIBE_CONFIGS: self._settings,
            BrokerApi.INCREMENTAL_ALTER_CONFIGS: self._change,
            BrokerApi.CREATE_TOPICS: self._create,
            BrokerApi.INIT_PRODUCER_ID: self._producer_id,
            BrokerApi.DESCRIBE_ACLS: self._acls,
            BrokerApi.CREATE_ACLS: self._create_acls,
            BrokerApi.DESCRIBE_CLIENT_QUOTAS: self._quotas,
            BrokerApi.ALTER_CLIENT_QUOTAS: self._set_quotas,
            BrokerApi.FIND_COORDINATOR: self._coordinators,
            BrokerApi.OFFSET_FETCH: self._committed,
            BrokerApi.OFFSET_COMMIT: self._commit,
        }
        self._cluster, self._lock = cluster, Lock()

        def one_at_a_time(answer: Any) -> Any:
            def locked(fields: Fields) -> Fields:
                with self._lock:
                    return {"throttle_time": 0, **answer(fields)}

            return locked

        super().__init__({api: one_at_a_time(answer) for api, answer in said.items()})

    def _address(self) -> Fields:
        return {"host": self.address.host, "port": self.address.port}

    def _metadata(self, fields: Fields) -> Fields:
        wanted = fields["topics"]
        names = list(self._cluster.topics) if wanted is None else [each["name"] for each in wanted]
        return {
            "brokers": [{"node_id": node, "rack": rack, **self._address()} for node, rack in self._cluster.nodes.items()],
            "cluster_id": self._cluster.name,
            "controller_id": min(self._cluster.nodes),
            "topics": [self._topic(name) for name in names],
        }

    def _topic(self, name: str) -> Fields:
        held = self._cluster.topics.get(name)
        partitions = [
            {
                "error_code": 0,
                "partition_index": number,
                "leader_id": replicas[0],
                "leader_epoch": 0,
                "replica_nodes": list(replicas),
                "isr_nodes": list(replicas),
                "offline_replicas": [],
            }
            for number, replicas in (held.replicas.items() if held else ())
        ]
        return {
            "error_code": 0 if held else _UNKNOWN_TOPIC,
            "name": name,
            "topic_id": topic_id_bytes(held.topic_id) if held else bytes(16),
            "is_internal": False,
            "partitions": partitions,
            "topic_authorized_operations": 0,
        }

    def _offsets(self, fields: Fields) -> Fields:
        bounds = self._cluster.log_bounds(
            [(topic["name"], each["partition_index"]) for topic in fields["topics"] for each in topic["partitions"]]
        )

        def of(topic: str, each: Fields) -> Fields:
            found: LogBounds = bounds[topic, each["partition_index"]]
            offset = found.start_offset if each["timestamp"] == _EARLIEST else found.next_offset
            return {"partition_index": each["partition_index"], "error_code": 0, "timestamp": -1, "offset": offset, "leader_epoch": 0}

        return {"topics": [{"name": t["name"], "partitions": [of(t["name"], each) for each in t["partitions"]]} for t in fields["topics"]]}

    def _settings(self, fields: Fields) -> Fields:
        return {"results": [self._settings_of(each) for each in fields["resources"]]}

    def _settings_of(self, resource: Fields) -> Fields:
        kind, name, wanted = resource["resource_type"], resource["resource_name"], resource["configuration_keys"]
        held = self._cluster.settings.get(name, {}) if kind == _TOPIC else self._cluster.dynamic.get((kind, name), {})
        rest = {"read_only": False, "is_sensitive": False, "synonyms": [], "config_type": 5, "documentation": None}
        configs = [
            {"name": each, "value": value, "config_source": _SOURCES[kind], **rest}
            for each, value in held.items()
            if wanted is None or each in wanted
        ]
        return {"error_code": 0, "error_message": None, "resource_type": kind, "resource_name": name, "configs": configs}

    def _change(self, fields: Fields) -> Fields:
        for each in fields["resources"]:
            kind, name = each["resource_type"], each["resource_name"]
            values = {one["name"]: None if one["config_operation"] == _DELETE else one["value"] for one in each["configs"]}
            if kind == _TOPIC:
                self._cluster.change({name: values})
            else:
                self._cluster.set_dynamic((kind, name), {key: value for key, value in values.items() if value is not None})
        answers = ({key: each[key] for key in ("resource_type", "resource_name")} for each in fields["resources"])
        return {"responses": [{"error_code": 0, "error_message": None, **each} for each in answers]}

    def _create(self, fields: Fields) -> Fields:
        topics = [
            NewTopic(
                each["name"],
                [one["broker_ids"][0] for one in each["assignments"]],
                {one["name"]: one["value"] for one in each["configs"]},
            )
            for each in fields["topics"]
        ]
        created = self._cluster.create_topics(topics)
        return {"topics": [_created(topic.topic, created.get(topic.topic)) for topic in topics]}

    def _producer_id(self, _: Fields) -> Fields:
        self._cluster.next_producer_id += 1
        return {"error_code": 0, "producer_id": self._cluster.next_producer_id - 1, "producer_epoch": 0}

    def _acls(self, _: Fields) -> Fields:
        resources = [
            {
                "resource_type": each.resource_type,
                "resource_name": each.resource_name,
                "pattern_type": each.pattern_type,
                "acls": [
                    {
                        "principal": each.principal,
                        "host": each.host,
                        "operation": each.operation,
                        "permission_type": each.permission,
                    }
                ],
            }
            for each in sorted(self._cluster.acls())
        ]
        return {"error_code": 0, "error_message": None, "resources": resources}

    def _create_acls(self, fields: Fields) -> Fields:
        names = ("resource_type", "resource_name", "resource_pattern_type", "principal", "host", "operation", "permission_type")
        self._cluster.create_acls([Acl(*(each[name] for name in names)) for each in fields["creations"]])
        return {"results": [{"error_code": 0, "error_message": None} for _ in fields["creations"]]}

    def _quotas(self, _: Fields) -> Fields:
        entries = [
            {
                "entity": [{"entity_type": kind, "entity_name": name} for kind, name in entity],
                "values": [{"key": key, "value": value} for key, value in values.items()],
            }
            for entity, values in self._cluster.quotas().items()
        ]
        return {"error_code": 0, "error_message": None, "entries": entries}

    def _set_quotas(self, fields: Fields) -> Fields:
        def entity(each: Fields) -> QuotaEntity:
            return tuple(sorted((part["entity_type"], part["entity_name"]) for part in each["entity"]))

        self._cluster.set_quotas([(entity(each), {one["key"]: one["value"] for one in each["ops"]}) for each in fields["entries"]])
        return {"entries": [{"error_code": 0, "error_message": None, "entity": each["entity"]} for each in fields["entries"]]}

    def _coordinators(self, fields: Fields) -> Fields:
        each = {"node_id": min(self._cluster.nodes), "error_code": 0, "error_message": None, **self._address()}
        return {"coordinators": [{"key": key, **each} for key in fields["coordinator_keys"]]}

    def _committed(self, fields: Fields) -> Fields:
        def of(group: str) -> Fields:
            rest = {"committed_leader_epoch": -1, "metadata": "", "error_code": 0}
            topics = [
                {"name": place.topic, "partitions": [{"partition_index": place.partition, "committed_offset": offset, **rest}]}
                for place, offset in self._cluster.committed([group]).items()
            ]
            return {"group_id": group, "topics": topics, "error_code": 0}

        return {"groups": [of(each["group_id"]) for each in fields["groups"]]}

    def _commit(self, fields: Fields) -> Fields:
        group = fields["group_id"]
        for topic in fields["topics"]:
            for each in topic["partitions"]:
                offset, metadata = each["committed_offset"], each["committed_metadata"]
                one = GroupCommit(group=group, topic=topic["name"], partition=each["partition_index"], offset=offset, metadata=metadata)
                self._cluster.commit(group, [one])
        done = (
            (t["name"], [{"partition_index": each["partition_index"], "error_code": 0} for each in t["partitions"]])
            for t in fields["topics"]
        )
        return {"topics": [{"name": name, "partitions": partitions} for name, partitions in done]}


def _created(topic: str, topic_id: str | None) -> Fields:
    """topic_id: None where it was there before"""
    return {
        "name": topic,
        "topic_id": topic_id_bytes(topic_id) if topic_id else bytes(16),
        "error_code": 0 if topic_id else _EXISTS,
        "error_message": None,
        "topic_config_error_code": 0,
        "num_partitions": 1,
        "replication_factor": 1,
        "configs": [],
    }
