"""A running cluster by its brokers' own protocol, from a broker of the tests' own."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pytest

from headwater.broker.broker_connection import ADMIN_VERSIONS, BrokerApi
from headwater.broker.client_properties import load_client_properties
from headwater.broker.running_admin import PARTITIONS_MAX, RunningKafkaAdmin
from headwater_core.errors import HeadwaterError, TransientError, Unauthorised, UnsupportedFormat, UsageError
from recovery.given_state import Acl
from recovery.recovered_groups import CommittedPlace
from recovery.recovery_plan import GroupCommit
from recovery.running_cluster import NewTopic, RunningTopic
from tests.headwater.socket_broker import ALL, SocketBroker

PROPERTIES = load_client_properties(None)
ID, TEXT = bytes(range(16)), "AAECAwQFBgcICQoLDA0ODw"


@pytest.fixture(autouse=True)
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    found: list[float] = []
    monkeypatch.setattr(RunningKafkaAdmin, "_sleep", staticmethod(found.append))
    return found


@contextmanager
def cluster_of(
    answers: Mapping[BrokerApi, Callable[[Mapping[str, Any]], Any]], **how: Any
) -> Iterator[tuple[RunningKafkaAdmin, SocketBroker]]:
    with SocketBroker(answers, **how) as broker:
        broker.answers.setdefault(BrokerApi.METADATA, lambda _: metadata(broker))
        broker.answers.setdefault(BrokerApi.FIND_COORDINATOR, lambda fields: coordinators(broker, fields))
        with RunningKafkaAdmin([broker.address], PROPERTIES) as cluster:
            yield cluster, broker


def metadata(broker: SocketBroker) -> Mapping[str, Any]:
    partitions = [
        {
            "error_code": 0,
            "partition_index": number,
            "leader_id": 1,
            "leader_epoch": 5,
            "replica_nodes": [1, 2],
            "isr_nodes": [1],
            "offline_replicas": [],
        }
        for number in range(2)
    ]
    topic = {"error_code": 0, "name": "orders", "topic_id": ID, "is_internal": False, "partitions": partitions}
    return {
        "throttle_time": 0,
        "brokers": [{"node_id": 1, "host": broker.address.host, "port": broker.address.port, "rack": "a"}],
        "cluster_id": "kitchen",
        "controller_id": 1,
        "topics": [{**topic, "topic_authorized_operations": 0}],
    }


def coordinators(broker: SocketBroker, fields: Mapping[str, Any], code: int = 0) -> Mapping[str, Any]:
    each = {"node_id": 1, "host": broker.address.host, "port": broker.address.port, "error_code": code, "error_message": None}
    return {"throttle_time": 0, "coordinators": [{"key": key, **each} for key in fields["coordinator_keys"]]}


def test_what_there_is() -> None:
    with cluster_of({}) as (cluster, broker):
        view = cluster.view()
        [asked] = [fields for api, fields in broker.asked if api is BrokerApi.METADATA]
    assert asked["topics"] is None
    assert (view.cluster_id, view.racks) == ("kitchen", {1: "a"})
    assert view.topics == {"orders": RunningTopic(TEXT, {0: (1, 2), 1: (1, 2)})}


def created(codes: Mapping[str, int]) -> Callable[[Mapping[str, Any]], Mapping[str, Any]]:
    def answer(fields: Mapping[str, Any]) -> Mapping[str, Any]:
        topics = [
            {
                "name": each["name"],
                "topic_id": ID,
                "error_code": codes.get(each["name"], 0),
                "error_message": "no",
                "topic_config_error_code": 0,
                "num_partitions": 1,
                "replication_factor": 1,
                "configs": [],
            }
            for each in fields["topics"]
        ]
        return {"throttle_time": 0, "topics": topics}

    return answer


def test_topics_are_created_on_the_planned_brokers_a_part_of_them_at_a_time() -> None:
    topics = [NewTopic("a", [2, 3], {"retention.ms": "-1"}), NewTopic("b", [1] * PARTITIONS_MAX, {})]
    with cluster_of({BrokerApi.CREATE_TOPICS: created({})}) as (cluster, broker):
        assert cluster.create_topics(topics) == {"a": TEXT, "b": TEXT}
        asked = [fields["topics"] for api, fields in broker.asked if api is BrokerApi.CREATE_TOPICS]
    assert [[each["name"] for each in some] for some in asked] == [["a"], ["b"]]
    [first] = asked[0]
    assert [(each["partition_index"], list(each["broker_ids"])) for each in first["assignments"]] == [(0, [2]), (1, [3])]
    assert [(each["name"], each["value"]) for each in first["configs"]] == [("retention.ms", "-1")]


@pytest.mark.parametrize("code", [36, 7, 41])
def test_one_that_is_there_or_was_not_answered_in_time_has_no_id_yet(code: int) -> None:
    with cluster_of({BrokerApi.CREATE_TOPICS: created({"a": code})}) as (cluster, _):
        assert cluster.create_topics([NewTopic("a", [1], {}), NewTopic("b", [1], {})]) == {"b": TEXT}


@pytest.mark.parametrize(("code", "error"), [(29, Unauthorised), (40, UsageError), (44, UsageError), (39, UsageError), (5, TransientError)])
def test_a_refusal_names_the_topic(code: int, error: type[HeadwaterError]) -> None:
    with cluster_of({BrokerApi.CREATE_TOPICS: created({"a": code})}) as (cluster, _), pytest.raises(error, match=r"topic a .*: no"):
        cluster.create_topics([NewTopic("a", [1], {})])


def test_producer_ids_are_taken_until_they_lie_above(pauses: list[float]) -> None:
    given = iter([(14, -1), (0, 1000), *((0, number) for number in range(1001, 2000))])

    def give(_: object) -> Mapping[str, Any]:
        code, producer_id = next(given)
        return {"throttle_time": 0, "error_code": code, "producer_id": producer_id, "producer_epoch": 0}

    with cluster_of({BrokerApi.INIT_PRODUCER_ID: give}) as (cluster, broker):
        assert cluster.pass_producer_ids(1004, most=10)
        assert len(pauses) == 1  # for the broker's next block
        assert not cluster.pass_producer_ids(5000, most=10)
        asked = [api for api, _ in broker.asked if api is BrokerApi.INIT_PRODUCER_ID]
    assert len(asked) == 1 + 6 + 1


ALLOWED = Acl(2, "orders", 3, "User:chef", "*", 3, 3)


def described(code: int) -> Mapping[str, Any]:
    acl = {"principal": "User:chef", "host": "*", "operation": 3, "permission_type": 3}
    resources = [{"resource_type": 2, "resource_name": "orders", "pattern_type": 3, "acls": [acl]}]
    return {"throttle_time": 0, "error_code": code, "error_message": None, "resources": [] if code else resources}


def test_acls_are_read_and_created() -> None:
    code = 0

    def create(fields: Mapping[str, Any]) -> Mapping[str, Any]:
        results = [{"error_code": each["resource_type"] == 4 and 31, "error_message": None} for each in fields["creations"]]
        return {"throttle_time": 0, "results": results}

    with cluster_of({BrokerApi.DESCRIBE_ACLS: lambda _: described(code), BrokerApi.CREATE_ACLS: create}) as (cluster, broker):
        assert cluster.acls() == {ALLOWED}
        assert cluster.create_acls([ALLOWED, ALLOWED._replace(resource_type=4)]) == ["", "CLUSTER_AUTHORIZATION_FAILED"]
        [asked] = [fields["creations"][0] for api, fields in broker.asked if api is BrokerApi.CREATE_ACLS]
        code = 54
        with pytest.raises(UsageError, match="the brokers have no authorizer"):
            cluster.acls()
    assert (asked["resource_name"], asked["principal"], asked["permission_type"]) == ("orders", "User:chef", 3)


def test_quotas_are_read_and_set() -> None:
    entity = [{"entity_type": "user", "entity_name": "chef"}, {"entity_type": "client-id", "entity_name": None}]
    entry = {"entity": entity, "values": [{"key": "producer_byte_rate", "value": 5.5}]}

    def alter(fields: Mapping[str, Any]) -> Mapping[str, Any]:
        answers = [{"error_code": 42, "error_message": "bad", "entity": each["entity"]} for each in fields["entries"]]
        return {"throttle_time": 0, "entries": answers}

    answers: dict[BrokerApi, Any] = {
        BrokerApi.DESCRIBE_CLIENT_QUOTAS: lambda _: {"throttle_time": 0, "error_code": 0, "error_message": None, "entries": [entry]},
        BrokerApi.ALTER_CLIENT_QUOTAS: alter,
    }
    with cluster_of(answers) as (cluster, _):
        held = cluster.quotas()
        assert held == {(("client-id", None), ("user", "chef")): {"producer_byte_rate": 5.5}}
        assert cluster.set_quotas(list(held.items())) == ["INVALID_REQUEST: bad"]


def test_only_what_a_request_has_set_counts_as_set() -> None:
    def config(name: str, source: int) -> Mapping[str, Any]:
        rest = {"read_only": False, "is_sensitive": False, "synonyms": [], "config_type": 5, "documentation": None}
        return {"name": name, "value": "1", "config_source": source, **rest}

    said = {"error_code": 0, "error_message": None, "resource_type": 4, "resource_name": "", "configs": [config("a", 3), config("b", 5)]}
    with cluster_of({BrokerApi.DESCRIBE_CONFIGS: lambda _: {"throttle_time": 0, "results": [said]}}) as (cluster, _):
        assert cluster.dynamic_settings([(4, "")]) == {(4, ""): {"a": "1"}}


def fetched(fields: Mapping[str, Any]) -> Mapping[str, Any]:
    def of(group: str) -> Mapping[str, Any]:
        partition = {
            "partition_index": 0,
            "committed_offset": 7 if group == "cooks" else -1,
            "committed_leader_epoch": -1,
            "metadata": "",
            "error_code": 0,
        }
        code = 69 if group == "new" else 0
        return {"group_id": group, "topics": [{"name": "orders", "partitions": [partition]}], "error_code": code}

    return {"throttle_time": 0, "groups": [of(each["group_id"]) for each in fields["groups"]]}


def test_what_groups_have_committed_comes_from_their_coordinators_once_there_are_any(pauses: list[float]) -> None:
    codes = iter([15, 14, 0])
    with cluster_of({BrokerApi.OFFSET_FETCH: fetched}) as (cluster, broker):
        broker.answers[BrokerApi.FIND_COORDINATOR] = lambda fields: coordinators(broker, fields, next(codes))
        assert cluster.committed(["cooks", "hosts", "new"]) == {CommittedPlace("cooks", "orders", 0): 7}
    assert len(pauses) == 2


def test_a_check_of_expiry_has_passed_when_what_expires_at_once_is_gone(pauses: list[float]) -> None:
    held = iter([7, 7, -1])

    def commit(fields: Mapping[str, Any]) -> Mapping[str, Any]:
        [topic] = fields["topics"]
        code = 14 if not pauses else 0
        return {"throttle_time": 0, "topics": [{"name": topic["name"], "partitions": [{"partition_index": 0, "error_code": code}]}]}

    def found(fields: Mapping[str, Any]) -> Mapping[str, Any]:
        answer = fetched(fields)
        answer["groups"][0]["topics"][0]["partitions"][0]["committed_offset"] = next(held)
        return answer

    with cluster_of({BrokerApi.OFFSET_COMMIT: commit, BrokerApi.OFFSET_FETCH: found}) as (cluster, broker):
        cluster.pass_expiry_check(["cooks"], "orders")
        [*_, asked] = [fields for api, fields in broker.asked if api is BrokerApi.OFFSET_COMMIT]
        assert (asked["group_id"], asked["retention_time"]) == ("cooks", 1)
        assert len(pauses) == 3
        held = iter([7] * 1000)
        with pytest.raises(TransientError, match="no check of expiry"):
            cluster.pass_expiry_check(["cooks"], "orders")


def initialized(*codes: int) -> Callable[[Mapping[str, Any]], Mapping[str, Any]]:
    """The last code is answered for good."""
    waiting = list(codes)

    def answer(fields: Mapping[str, Any]) -> Mapping[str, Any]:
        assert fields["producer_id"] == -1
        code = waiting.pop(0) if waiting[1:] else waiting[0]
        return {"throttle_time": 0, "error_code": code, "producer_id": 7, "producer_epoch": 0}

    return answer


@pytest.mark.parametrize(
    ("codes", "why"), [((0,), ""), ((51, 14, 0), ""), ((51,), "CONCURRENT_TRANSACTIONS: its coordinator waits"), ((47,), "code 47")]
)
def test_a_transactional_id_begins_again_or_says_why_not(codes: tuple[int, ...], why: str, pauses: list[float]) -> None:
    with cluster_of({BrokerApi.INIT_PRODUCER_ID: initialized(*codes)}) as (cluster, broker):
        done = cluster.initialize(["payer"])
        assert {fields["key_type"] for api, fields in broker.asked if api is BrokerApi.FIND_COORDINATOR} == {1}
    assert list(done) == ["payer"]
    assert done["payer"].startswith(why)
    assert bool(done["payer"]) == bool(why)


def test_a_coordinator_of_transactions_that_is_away_is_no_answer() -> None:
    with cluster_of({BrokerApi.INIT_PRODUCER_ID: initialized(16)}) as (cluster, _), pytest.raises(TransientError, match="payer"):
        cluster.initialize(["payer"])


def test_offsets_are_committed_without_a_member_and_without_an_epoch() -> None:
    def commit(fields: Mapping[str, Any]) -> Mapping[str, Any]:
        partitions = [{"partition_index": each["partition_index"], "error_code": 25} for each in fields["topics"][0]["partitions"][1:]]
        done = [{"partition_index": 0, "error_code": 0}, *partitions]
        return {"throttle_time": 0, "topics": [{"name": "orders", "partitions": done}]}

    commits = [GroupCommit(group="cooks", topic="orders", partition=number, offset=5 + number, metadata="m\0") for number in range(2)]
    with cluster_of({BrokerApi.OFFSET_COMMIT: commit}) as (cluster, broker):
        done = cluster.commit("cooks", commits)
        [asked] = [fields for api, fields in broker.asked if api is BrokerApi.OFFSET_COMMIT]
    assert done["orders", 0] == ""
    assert done["orders", 1].startswith("UNKNOWN_MEMBER_ID: the group has members")
    assert (asked["generation_id_or_member_epoch"], asked["member_id"]) == (-1, "")
    [topic] = asked["topics"]
    assert [(each["committed_offset"], each["committed_leader_epoch"], each["committed_metadata"]) for each in topic["partitions"]] == [
        (5, -1, "m\0"),
        (6, -1, "m\0"),
    ]


def test_share_groups_are_read_and_set_by_their_coordinators() -> None:
    def described(fields: Mapping[str, Any]) -> Mapping[str, Any]:
        def of(group: str) -> Mapping[str, Any]:
            said = {"leader_epoch": 0, "error_code": 0, "error_message": None}
            partitions = [{"partition_index": number, "start_offset": start, **said} for number, start in enumerate((7, -1))]
            topics = [{"topic_name": "orders", "topic_id": ID, "partitions": partitions}]
            return {
                "group_id": group,
                "topics": topics if group != "new" else [],
                "error_code": 69 * (group == "new"),
                "error_message": None,
            }

        return {"throttle_time": 0, "groups": [of(each["group_id"]) for each in fields["groups"]]}

    def altered(fields: Mapping[str, Any]) -> Mapping[str, Any]:
        code = 68 if fields["group_id"] == "busy" else 0
        done = [
            {"partition_index": each["partition_index"], "error_code": 0, "error_message": None}
            for each in fields["topics"][0]["partitions"]
        ]
        topics = [] if code else [{"topic_name": "orders", "topic_id": ID, "partitions": done}]
        return {"throttle_time": 0, "error_code": code, "error_message": None, "responses": topics}

    answers = {BrokerApi.DESCRIBE_SHARE_GROUP_OFFSETS: described, BrokerApi.ALTER_SHARE_GROUP_OFFSETS: altered}
    commits = [GroupCommit(group="cooks", topic="orders", partition=number, offset=5 + number, shared=True) for number in range(2)]
    with cluster_of(answers) as (cluster, broker):
        assert cluster.shared(["cooks", "new"]) == {CommittedPlace("cooks", "orders", 0): 7}
        assert cluster.share("cooks", commits) == {("orders", 0): "", ("orders", 1): ""}
        [asked] = [fields for api, fields in broker.asked if api is BrokerApi.ALTER_SHARE_GROUP_OFFSETS]
        assert [each["start_offset"] for each in asked["topics"][0]["partitions"]] == [5, 6]
        with pytest.raises(UsageError, match="share group busy cannot be given its offsets: NON_EMPTY_GROUP: the group has members"):
            cluster.share("busy", commits)


def test_a_broker_may_lack_a_request_as_long_as_nobody_sends_it() -> None:
    known = {api: version for api, version in ALL.items() if api not in ADMIN_VERSIONS}
    with cluster_of({}, knows=known) as (cluster, _):
        assert cluster.cluster_id() == "kitchen"
        with pytest.raises(UnsupportedFormat, match="does not know DESCRIBE_ACLS"):
            cluster.acls()
        assert cluster.cluster_id() == "kitchen"  # the connection is as good as before
