"""A running cluster as its brokers would answer, with log directories as they would have them."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from headwater_core.errors import TransientError, UnsupportedFormat, UsageError
from headwater_core.partition import topic_id_text
from headwater_core.segments import checkpoints
from recovery.given_state import Acl, QuotaEntity, Resource
from recovery.held_settings import LogBounds, TopicValues
from recovery.recovered_groups import CommittedPlace
from recovery.recovery_plan import GroupCommit, Place
from recovery.running_cluster import NewTopic, RunningTopic, RunningView

CLUSTER_ID = "running-cluster"


@dataclass
class Running:
    """lost_answers: that many creations are done and not answered; refuses: topics that it does not create"""

    nodes: dict[int, str | None] = field(default_factory=lambda: {1: None})
    topics: dict[str, RunningTopic] = field(default_factory=dict)
    bounds: dict[Place, LogBounds] = field(default_factory=dict)
    settings: dict[str, dict[str, str | None]] = field(default_factory=dict)
    name: str = CLUSTER_ID
    lost_answers: int = 0
    refuses: set[str] = field(default_factory=set)
    silent: set[Place] = field(default_factory=set)
    next_producer_id: int = 0
    held_acls: set[Acl] = field(default_factory=set)
    held_quotas: dict[QuotaEntity, Mapping[str, float]] = field(default_factory=dict)
    dynamic: dict[Resource, dict[str, str | None]] = field(default_factory=dict)
    offsets: dict[CommittedPlace, int] = field(default_factory=dict)
    starts: dict[CommittedPlace, int] = field(default_factory=dict)
    has_share_groups: bool = True
    with_members: set[str] = field(default_factory=set)
    has_authorizer: bool = True

    def cluster_id(self) -> str:
        return self.name

    def view(self) -> RunningView:
        return RunningView(self.name, dict(self.nodes), dict(self.topics))

    def topic_ids(self, topics: Collection[str]) -> Mapping[str, str]:
        return {name: self.topics[name].topic_id for name in topics if name in self.topics}

    def log_bounds(self, places: Collection[Place]) -> Mapping[Place, LogBounds]:
        there = [place for place in places if place[0] in self.topics and place not in self.silent]
        return {place: self.bounds.get(place, LogBounds(0, 0)) for place in there}

    def values(self, topics: Mapping[str, Collection[str]]) -> TopicValues:
        return {topic: {name: value for name, value in self.settings.get(topic, {}).items() if name in topics[topic]} for topic in topics}

    def change(self, wanted: TopicValues) -> None:
        for topic, values in wanted.items():
            held = self.settings.setdefault(topic, {})
            held |= values
            self.settings[topic] = {name: value for name, value in held.items() if value is not None}

    def add(self, name: str, *replicas: tuple[int, ...]) -> RunningTopic:
        topic_id = topic_id_text(bytes([200 + len(self.topics)]) * 16)
        self.topics[name] = RunningTopic(topic_id, dict(enumerate(replicas)))
        return self.topics[name]

    def create_topics(self, topics: Sequence[NewTopic]) -> Mapping[str, str]:
        created = {}
        for topic in topics:
            if topic.topic in self.refuses:
                raise UsageError(f"topic {topic.topic} cannot be created: POLICY_VIOLATION")
            if topic.topic in self.topics:
                continue
            self.change({topic.topic: topic.configs})
            topic_id = self.add(topic.topic, *((node,) for node in topic.replicas)).topic_id
            if self.lost_answers:
                self.lost_answers -= 1
            else:
                created[topic.topic] = topic_id
        return created

    def pass_producer_ids(self, newest: int, most: int) -> bool:
        if newest - self.next_producer_id > most:
            return False
        self.next_producer_id = max(self.next_producer_id, newest + 1)
        return True

    def acls(self) -> Collection[Acl]:
        if not self.has_authorizer:
            raise UsageError("ACLs cannot be read: SECURITY_DISABLED")
        return set(self.held_acls)

    def create_acls(self, acls: Sequence[Acl]) -> Sequence[str]:
        self.held_acls |= set(acls)
        return [""] * len(acls)

    def quotas(self) -> Mapping[QuotaEntity, Mapping[str, float]]:
        return dict(self.held_quotas)

    def set_quotas(self, quotas: Sequence[tuple[QuotaEntity, Mapping[str, float]]]) -> Sequence[str]:
        self.held_quotas |= dict(quotas)
        return [""] * len(quotas)

    def dynamic_settings(self, resources: Collection[Resource]) -> Mapping[Resource, Mapping[str, str | None]]:
        return {resource: dict(self.dynamic.get(resource, {})) for resource in resources}

    def set_dynamic(self, resource: Resource, values: Mapping[str, str]) -> str:
        self.dynamic.setdefault(resource, {}).update(values)
        return ""

    def committed(self, groups: Collection[str]) -> Mapping[CommittedPlace, int]:
        return {place: offset for place, offset in self.offsets.items() if place.group in groups}

    def offsets_retention_ms(self) -> int:
        return 7 * 86_400_000

    def commit(self, group: str, commits: Sequence[GroupCommit]) -> Mapping[Place, str]:
        if group in self.with_members:
            return {(each.topic, each.partition): "UNKNOWN_MEMBER_ID: the group has members" for each in commits}
        self.offsets |= {CommittedPlace(group, each.topic, each.partition): each.offset for each in commits}
        return {(each.topic, each.partition): "" for each in commits}

    def shared(self, groups: Collection[str]) -> Mapping[CommittedPlace, int]:
        if not self.has_share_groups:
            raise UnsupportedFormat("broker localhost:9 does not know DESCRIBE_SHARE_GROUP_OFFSETS in version 0")
        return {place: offset for place, offset in self.starts.items() if place.group in groups}

    def share(self, group: str, commits: Sequence[GroupCommit]) -> Mapping[Place, str]:
        if group in self.with_members:
            raise UsageError(f"share group {group} cannot be given its offsets: NON_EMPTY_GROUP")
        self.starts |= {CommittedPlace(group, each.topic, each.partition): each.offset for each in commits}
        return {(each.topic, each.partition): "" for each in commits}

    def make_directories(self, log_dir: Path, *, node: int = 1, topics: Collection[str] | None = None) -> Path:
        """As a broker leaves them that has made its new partitions and was stopped."""
        log_dir.mkdir(parents=True, exist_ok=True)
        properties = checkpoints.MetaProperties(cluster_id=self.name, node_id=node, directory_id="x" * 22)
        (log_dir / checkpoints.META_PROPERTIES).write_bytes(checkpoints.encode_meta_properties(properties))
        (log_dir / ".kafka_cleanshutdown").write_text('{"version":0,"brokerEpoch":7}')
        for name, topic in self.topics.items():
            for number, replicas in topic.replicas.items():
                if node in replicas and (topics is None or name in topics):
                    directory = log_dir / f"{name}-{number}"
                    directory.mkdir(exist_ok=True)
                    (directory / f"{0:020}.log").write_bytes(b"")
                    (directory / f"{0:020}.index").write_bytes(bytes(16))
                    (directory / checkpoints.PARTITION_METADATA).write_bytes(checkpoints.encode_partition_metadata(topic.topic_id))
        return log_dir


class Silent(Running):
    """It does not answer for its groups."""

    def committed(self, groups: Collection[str]) -> Mapping[CommittedPlace, int]:
        raise TransientError("the coordinator is loading")
