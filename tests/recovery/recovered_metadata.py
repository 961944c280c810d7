"""What a recovery wrote beside records, read back and compared with what the archive has of it: ids, settings, counts, users, ACLs, quotas,
checkpoints."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import recovery
from headwater_core.partition import TopicPartition
from headwater_core.segments import checkpoints
from headwater_core.segments.metadata.cluster_metadata import ClusterMetadata, PartitionMetadata, TopicMetadata
from headwater_core.segments.metadata.metadata_records import NO_LEADER, RESOURCE_BROKER, UNASSIGNED
from headwater_core.segments.metadata.metadata_snapshot import read_snapshot
from headwater_core.segments.metadata.record_schemas import ACL, QUOTA, SCRAM, TOKEN
from manifests import keys
from recovery.initial_metadata import FEATURES
from recovery.layout import BOOTSTRAP
from recovery.target import copy_name, read_mark
from tests.recovery.damaged_bucket import HEAD_EPOCH, DamagedBucket, says
from tests.recovery.hostile_documents import OTHER_TOPIC
from tests.recovery.plans import CLUSTER
from tests.recovery.written_archive import batches_in

KINDS = (SCRAM, ACL, QUOTA, TOKEN)
NEW_LEVELS = "the feature levels are those of a new cluster"
HELD = ("retention.ms", "retention.bytes")
_CHECKPOINTS = (checkpoints.HIGH_WATERMARKS, checkpoints.LOG_STARTS, checkpoints.CLEANED)

Settings = Mapping[str, str]


class RecoveredMetadata:
    """Of what `bucket` has, in `into`. said: by the plan and in the end"""

    def __init__(self, bucket: DamagedBucket, into: Path, said: str) -> None:
        mark = read_mark(into)
        assert mark is not None
        self._bucket, self._into, self._said, self._mark = bucket, into, said, mark
        self._counts = mark.plan.request.options.partition_counts
        self._found = read_snapshot((into / BOOTSTRAP).read_bytes(), BOOTSTRAP)
        self._state = self._used_snapshot()
        self._offsets = {name: checkpoints.decode_offsets((into / name).read_bytes(), where=name) for name in _CHECKPOINTS}
        self.topics = self._found.topics

    def _used_snapshot(self) -> ClusterMetadata | None:
        """The state that the plan names: the very bytes of the one snapshot that may come back."""
        used = self._mark.plan.cluster
        if used is None:
            return None
        assert used.key == self._bucket.snapshot_key()
        raw, state = self._bucket.snapshot()
        assert (self._into / copy_name(used)).read_bytes() == raw
        counts = [len(state.others[kind]) for kind in (SCRAM, ACL, QUOTA)]
        assert [used.users, used.acls, used.quotas] == counts
        return state

    # The cluster

    def check_cluster(self) -> None:
        """Users, ACLs, quotas, tokens, levels, and settings of all but topics are those of the one snapshot; topics alone have none."""
        found, state = self._found, self._state
        others = {kind: {record.raw for record in held.values()} for kind, held in found.others.items()}
        if state is None:
            assert (others, dict(found.configs)) == ({}, {})
            self._check_levels()
        else:
            assert others == {kind: {record.raw for record in state.others[kind].values()} for kind in KINDS}
            is_back = {place: place[0] != RESOURCE_BROKER or place[1] in ("", "1") for place in state.configs}
            assert found.configs == {place: settings for place, settings in state.configs.items() if is_back[place]}
            assert found.features == state.features
        assert (found.unknown, found.kept, found.config_tags, found.unread) == ((), (), {}, {})
        first_id = (state.next_producer_id if state else 0) // 1000 * 1000 + 1_000_000
        assert found.next_producer_id == first_id or (self._bucket.doubtful and found.next_producer_id > first_id)

    def _check_levels(self) -> None:
        """Those of the newest snapshot, or it is said why not."""
        if self._found.features != self._bucket.snapshot().state.features:
            assert self._found.features == FEATURES
            assert self._bucket.is_cluster_harmed
            assert NEW_LEVELS in self._said

    # The directory

    def check_directory(self) -> None:
        """It is a new cluster's, and holds these topics alone."""
        raw = (self._into / checkpoints.META_PROPERTIES).read_bytes()
        identity = checkpoints.decode_meta_properties(raw, where=checkpoints.META_PROPERTIES)
        plan = self._mark.plan
        assert identity == checkpoints.MetaProperties(cluster_id=plan.cluster_id, node_id=1, directory_id=self._mark.directory_id)
        assert identity.cluster_id != CLUSTER
        places = {TopicPartition(name, number) for name, topic in self.topics.items() for number in topic.partitions}
        assert {path.name for path in self._into.iterdir() if path.is_dir()} == {f"{each.topic}-{each.partition}" for each in places}
        assert self._offsets[checkpoints.HIGH_WATERMARKS].keys() == places
        files = {path.name for path in self._into.iterdir() if path.is_file() and not path.name.startswith(".headwater-recovery")}
        assert files == {BOOTSTRAP, checkpoints.META_PROPERTIES, *_CHECKPOINTS}

    # A topic

    def check_topic(self, name: str, expected: str | None) -> None:
        """expected: as which incarnation it comes back; None: a hostile document says which one of that name"""
        topic, lives = self.topics[name], self._bucket.lives
        if expected is None and topic.topic_id == OTHER_TOPIC:
            self._check_begun(topic)
            return
        labels = self._bucket.lives_of(name) if expected is None else [expected]
        label = next((each for each in labels if lives[each].topic_id == topic.topic_id), None)
        assert label is not None, f"{name} has the id {topic.topic_id}"
        wanted = self._state.topics[name] if self._state is not None else None
        assert wanted is None or wanted.topic_id == topic.topic_id
        self._check_count(topic, label, wanted)
        self._check_settings(topic, label, wanted)
        for number, partition in topic.partitions.items():
            self._check_partition(topic, label, number, partition, wanted)

    def _check_begun(self, topic: TopicMetadata) -> None:
        """An incarnation whose making was cut short, and which the name is given to: it has no settings, and no records."""
        assert self._bucket.holds(keys.topic_manifest(topic.name, OTHER_TOPIC))
        assert dict(topic.configs) == dict.fromkeys(HELD, "-1")
        for number in topic.partitions:
            assert not batches_in(self._into / f"{topic.name}-{number}")

    def _document(self, label: str) -> Any:
        """What the topic's manifest says; None where damage to it shows."""
        life = self._bucket.lives[label]
        key = keys.topic_manifest(life.topic, life.topic_id)
        if label in self._bucket.unreadable or not self._bucket.holds(key):
            return None
        said = says(self._bucket.store.get(key)[0])
        return said if isinstance(said, dict) else None

    def _is_archived(self, label: str, document: object) -> bool:
        """Now or earlier; else it is hostile, or none."""
        return any(says(raw) == document for raw in self._bucket.lives[label].manifests)

    def _check_count(self, topic: TopicMetadata, label: str, wanted: TopicMetadata | None) -> None:
        """As many partitions as were given, or as the manifest has, or as have heads where that cannot be read; not less than the snapshot
        has."""
        document = self._document(label)
        heads = max((number + 1 for number in self._heads(label)), default=0)
        counts = [heads] if document is None else [document["partitions"]]
        if document is not None and not self._is_archived(label, document):
            counts.append(heads)
        if topic.name in self._counts:
            counts = [self._counts[topic.name]]
        if wanted is not None:
            counts = [max(count, len(wanted.partitions)) for count in counts if isinstance(count, int)]
        assert [*topic.partitions] == [*range(len(topic.partitions))]
        assert len(topic.partitions) in counts, f"{topic.name}: {len(topic.partitions)}, not {counts}"

    def _heads(self, label: str) -> Iterator[int]:
        life = self._bucket.lives[label]
        for info in self._bucket.store.list(keys.topic_prefix(life.topic, life.topic_id)):
            if (name := keys.parse_manifest(info.key)) and name.partition is not None:
                yield name.partition

    def _check_settings(self, topic: TopicMetadata, label: str, wanted: TopicMetadata | None) -> None:
        """Those of the snapshot, or of the manifest, or none where that cannot be read; retention is held back, and what is put back is
        what the topic had before any recovery."""
        document = self._document(label)
        possible: list[Settings] = [{}] if document is None else [document["configs"]]
        if document is not None and not self._is_archived(label, document):
            possible = [{}, *([document["configs"]] if isinstance(document.get("configs"), dict) else [])]
        if wanted is not None:
            possible = [wanted.configs]
        held = {each.name: each.value for each in recovery.held_of(self._into) if each.topic_id == topic.topic_id}
        written = [
            ({**own, **dict.fromkeys(HELD, "-1")}, {each: own.get(each) for each in HELD if own.get(each) != "-1"})
            for each in possible
            for own in self._originals(label, each)
        ]
        assert (dict(topic.configs), held) in written, f"{topic.name}: {topic.configs}, {held}, not {written}"

    def _originals(self, label: str, settings: Settings) -> Iterator[Settings]:
        """As they may have been before a recovery that nobody has finished."""
        if self._bucket.lives[label].topic_id != self._bucket.lives["topic-0"].topic_id or settings.get("retention.ms") != "-1":
            yield settings
            return
        for value in self._bucket.originals:
            without = {name: each for name, each in settings.items() if name != "retention.ms"}
            yield without if value is None else {**without, "retention.ms": value}

    # A partition

    def _check_partition(
        self, topic: TopicMetadata, label: str, number: int, partition: PartitionMetadata, wanted: TopicMetadata | None
    ) -> None:
        bucket, place, directory = self._bucket, (label, number), self._into / f"{topic.name}-{number}"
        raw = (directory / checkpoints.PARTITION_METADATA).read_bytes()
        assert checkpoints.decode_partition_metadata(raw, where=str(directory)) == topic.topic_id
        on = partition.leader, partition.replicas, partition.isr, partition.last_known_elr, partition.directories
        assert on == (NO_LEADER, (1,), (1,), (1,), (UNASSIGNED,))
        if place in bucket.doubtful or label in bucket.dubious:
            return
        is_read = place in bucket.logs and place not in bucket.empty
        known = wanted.partitions.get(number) if wanted is not None else None
        assert partition.leader_epoch == max(HEAD_EPOCH if is_read else 0, known.leader_epoch if known is not None else 0)
        at = TopicPartition(topic.name, number)
        assert self._offsets[checkpoints.HIGH_WATERMARKS][at] == (self._end(label, number) if is_read else 0)
        assert not any(at in self._offsets[name] for name in (checkpoints.LOG_STARTS, checkpoints.CLEANED))
        epochs = directory / checkpoints.LEADER_EPOCHS
        starts = checkpoints.decode_epochs(epochs.read_bytes(), where=str(epochs)).starts if epochs.exists() else ()
        assert [*starts] == [(0, header.base_offset) for header, _ in batches_in(directory)[:1]]

    def _end(self, label: str, number: int) -> int:
        runs = self._bucket.logs[label, number].runs
        return runs[: self._bucket.listed.get((label, number), len(runs))][-1][0].next_offset


__all__ = ["NEW_LEVELS", "RecoveredMetadata"]
