"""Which partitions there are: what the log directories and the bucket listed last, joined."""

from collections.abc import Iterable, Mapping

import structlog

from headwater_core.errors import CorruptData, ForeignOwner, HeadwaterError, TransientError, UnsupportedFormat
from headwater_core.partition import PartitionId, TopicPartition
from headwater_core.segments.log_dirs import LocalPartition, LogDirs, Roster
from manifests.repository import ManifestRepository
from manifests.topic import TopicManifest
from manifests.topic_survey import survey_topics

_ARCHIVE = "archive"

log = structlog.get_logger()


class Catalogue:
    """For one thread at a time; the properties and `lost` for any. What cannot be listed now stays as it was.

    lost        topics that the bucket's last listing could not read, and why
    cluster_id  of the broker, else of the bucket; "" before the first listing and for an empty bucket
    """

    def __init__(self, dirs: LogDirs | None, repository: ManifestRepository) -> None:
        """dirs   None where there is no local log"""
        self.lost: dict[str, HeadwaterError] = {}
        self.cluster_id = ""
        self._dirs, self._repository = dirs, repository
        never = TransientError("not listed yet")
        self._unlisted: dict[object, HeadwaterError] = dict.fromkeys((*(dirs.dirs if dirs is not None else ()), _ARCHIVE), never)
        self._found: dict[TopicPartition, LocalPartition] = {}
        self._own_cluster_id = ""  # the directories'; "" while they have not been read
        self._archived: dict[str, TopicManifest] = {}

    @property
    def unlisted(self) -> HeadwaterError | None:
        """Why there may be topics that are not known: the bucket, or a log directory, could not be listed even once. None where all
        were: then a topic that is not known was not there when they were last listed."""
        return next(iter(self._unlisted.values()), None)

    @property
    def has_archive(self) -> bool:
        """Whether the bucket was listed at least once."""
        return _ARCHIVE not in self._unlisted

    @property
    def has_dirs(self) -> bool:
        """Whether each log directory was listed at least once."""
        return self._unlisted.keys() <= {_ARCHIVE}

    def list_local(self) -> Roster | HeadwaterError:
        """List the log directories; what they hold, or why that is not known. Raises nothing of ours."""
        assert self._dirs is not None
        try:
            roster = self._dirs.roster()
        except HeadwaterError as error:
            log.warning("log_dirs_not_listed", reason=str(error))
            for each in self._dirs.dirs:
                self._note_listed(each, error)
            return error
        problems = dict(roster.problems)
        for path, problem in roster.problems:
            log.warning("log_dir_not_read", directory=str(path), reason=str(problem))
        found = dict(roster.partitions)
        for key, earlier in self._found.items():
            if key not in found and (earlier.directory in problems or earlier.directory.parent in problems):
                found[key] = earlier  # a disk that is not there says nothing of what is on it
        self._found = found
        self.cluster_id = self._own_cluster_id = roster.cluster_id
        for each in self._dirs.dirs:
            self._note_listed(each, problems.get(each))
        return roster

    def list_archive(self) -> HeadwaterError | None:
        """List the bucket; why it could not be. Raises ForeignOwner when it is another cluster's than the directories."""
        try:
            manifests, lost = survey_topics(self._repository.store)
            cluster_id = self._archive_cluster(manifests)
            if self._own_cluster_id and cluster_id not in ("", self._own_cluster_id):
                raise ForeignOwner(f"the bucket is the archive of cluster {cluster_id}, not of {self._own_cluster_id}")
            archived = {each.topic: each for each in manifests}
            for each in lost:
                log.error("topic_not_listed", topic=each.topic, reason=str(each.error))
                if each.topic in self._archived:
                    archived[each.topic] = self._archived[each.topic]
            self.lost = {each.topic: each.error for each in lost}
            self._take_own(archived)
        except ForeignOwner:
            raise
        except HeadwaterError as error:
            log.warning("archive_not_listed", reason=str(error))
            self._note_listed(_ARCHIVE, error)
            return error
        self.cluster_id = self.cluster_id or cluster_id
        self._archived = archived
        self._note_listed(_ARCHIVE, None)
        return None

    def partitions(self) -> dict[tuple[str, int], PartitionId]:
        """Every partition, by topic and number. A topic that is here under another id than in the bucket is the one that is here."""
        found: dict[tuple[str, int], PartitionId] = {}
        for manifest in self._archived.values():
            found.update(((manifest.topic, number), manifest.partition_id(number)) for number in range(manifest.partitions))
        for each in self._found.values():
            found[each.partition.topic, each.partition.partition] = each.partition
        return found

    @property
    def archived(self) -> Mapping[str, TopicManifest]:
        """The topics in the bucket, by name, as last listed; not to be changed."""
        return self._archived

    def local(self, topic: str, partition: int) -> LocalPartition | None:
        """As the last listing had it; None where it is not known to be here."""
        return self._found.get(TopicPartition(topic, partition))

    def _take_own(self, archived: dict[str, TopicManifest]) -> None:
        """Where a topic is here and its name means another incarnation in the bucket, take the manifest of the one that is here."""
        for local in {(each.partition.topic, each.partition.topic_id): each.partition for each in self._found.values()}.values():
            known = archived.get(local.topic)
            if known is None or known.topic_id != local.topic_id:
                own = self._own_manifest(local)
                archived.pop(local.topic, None)
                if own is not None:
                    archived[local.topic] = own

    def _own_manifest(self, local: PartitionId) -> TopicManifest | None:
        try:
            return self._repository.load_topic(local.topic, local.topic_id)
        except (CorruptData, ForeignOwner, UnsupportedFormat) as error:
            log.error("topic_not_listed", topic=local.topic, reason=str(error))
            return None

    def _archive_cluster(self, manifests: Iterable[TopicManifest]) -> str:
        """The cluster whose archive this is; "" while it has no owner. While headwater.json is damaged, which keeps writers
        away, the topics show it."""
        try:
            owner = self._repository.owner()
            return owner.cluster_id if owner is not None else ""
        except CorruptData as error:
            log.error("archive_owner_not_read", reason=str(error))
        others = sorted({each.cluster_id for each in manifests} - {self._own_cluster_id})
        return others[0] if others else self._own_cluster_id

    def _note_listed(self, what: object, failure: HeadwaterError | None) -> None:
        if failure is None:
            self._unlisted = {each: why for each, why in self._unlisted.items() if each != what}
        elif what in self._unlisted:
            self._unlisted = {**self._unlisted, what: failure}
