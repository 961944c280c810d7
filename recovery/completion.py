"""How far the recovery in a directory is, and whether anything is left to do."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from headwater_core.counts import count_text
from headwater_core.errors import CorruptData, NotFound, VerificationFailed
from recovery import layout
from recovery.cluster_state import copied_state
from recovery.coordinator_tail import tail_rows
from recovery.layout import partition_directory, partitions, segment_files
from recovery.recovery_plan import TargetBroker
from recovery.target import Mark, broker_started, copy_name, read_mark
from recovery.target_contents import differences, foreign_files
from recovery.target_files import read_if_there

_SHOWN = 10


class RecoveryStatus(msgspec.Struct, frozen=True, kw_only=True):
    """problem: why the directory is not what a finished recovery left, or cannot become it; running: it is for a running cluster, for these
    brokers of it, which was given what goes with the topics at handed_over_ms."""

    recovery_id: str
    cluster_id: str
    topics: tuple[str, ...]
    started_ms: int
    finished_ms: int | None
    files: int
    files_placed: int
    size_bytes: int
    bytes_placed: int
    problem: str = ""
    running: bool = False
    brokers: tuple[int, ...] = ()
    handed_over_ms: int | None = None


def status(into: Path) -> RecoveryStatus | None:
    """How far the recovery in `into` is; None when none was begun there."""
    mark = read_mark(into)
    if mark is None:
        return None
    files = placed = bytes_placed = 0
    for _, _, _, entry, path in segment_files(mark.plan, into):
        is_placed = path.exists()
        files, placed, bytes_placed = files + 1, placed + is_placed, bytes_placed + entry.live_bytes * is_placed
    problem = ""
    try:
        is_finished(into, mark)
    except VerificationFailed as error:
        problem = str(error)
    return RecoveryStatus(
        recovery_id=mark.plan.recovery_id,
        cluster_id=mark.plan.cluster_id,
        topics=tuple(topic.topic for topic in mark.plan.topics),
        started_ms=mark.started_ms,
        finished_ms=mark.finished_ms,
        files=files,
        files_placed=placed,
        size_bytes=mark.plan.size_bytes,
        bytes_placed=bytes_placed,
        problem=problem,
        running=mark.plan.running is not None,
        brokers=tuple(each.node_id for each in mark.plan.brokers),
        handed_over_ms=mark.handed_over_ms,
    )


def is_finished(into: Path, mark: Mark) -> bool:
    """Is there nothing left to do? meta.properties says so, which is written when everything is verified. Its bytes must be ours, as any
    tool can format a directory. Once a broker has started there, the other files are the broker's.

    Raises VerificationFailed when meta.properties is not ours, or when files of a finished recovery are gone.
    """
    started, finished = broker_started(into, [each.directory for each in mark.plan.targets]), mark.finished_ms is not None
    if started and finished:
        return True
    identities = layout.identity_files(mark.plan, mark.directory_id)
    all_found = {name: read_if_there(into / name) for name in identities}
    foreign = [name for name, raw in all_found.items() if raw is not None and raw != identities[name]]
    name, found = next(((name, raw) for name, raw in all_found.items() if raw is None), next(iter(all_found.items())))
    if foreign:
        name = foreign[0]
        raise VerificationFailed(
            f"{into}: the recovery is {'finished' if finished else 'unfinished'}, and the directory has been formatted since: {name} "
            f"is not what recovery wrote. Remove {name} and {layout.BOOTSTRAP}, and run the same command again"
        )
    if started and found is None:
        raise VerificationFailed(f"{into}: a broker has started in an unfinished recovery; recover into a new directory")
    if not finished and not started:
        return False  # a run that is killed before its mark is finished says nothing: verify again
    if found is not None and not started and (gone := _gone(into, mark)):
        raise VerificationFailed(
            f"{into}: the recovery is finished, but gone or changed: {count_text(len(gone), 'file')}, {gone[0]} among them, and no "
            "broker has started "
            f"there. Remove {name} and run the same command again to fetch them"
        )
    return found is not None


def check_contents(into: Path, mark: Mark, *, finished: bool) -> None:
    """Raises VerificationFailed when the directory holds what the plan has no use for; of a `finished` recovery, too, when any byte is not
    as recovery left it. Says nothing of a directory in which a broker has started: the files are the broker's."""
    if broker_started(into, [each.directory for each in mark.plan.targets]):
        return
    if finished and (found := differences(into, mark)):
        name = next(iter(layout.identity_files(mark.plan, mark.directory_id)))
        raise VerificationFailed(
            f"{into}: the recovery is finished, no broker has started there, and it has not what was left in "
            f"{count_text(len(found), 'file')}: "
            f"{'; '.join(_shown(found))}. Remove {name} and what does not belong there, and run the same command again"
        )
    if not finished and (foreign := foreign_files(into, mark)):
        names = ", ".join(_shown(list(map(str, foreign))))
        raise VerificationFailed(
            f"{into} holds what this recovery does not write, nothing was fetched: {names}. Remove it and run the same command again, or "
            "recover into a new directory"
        )


def _shown(texts: Sequence[str]) -> list[str]:
    return [*texts[:_SHOWN], *([f"and {len(texts) - _SHOWN} more"] if len(texts) > _SHOWN else [])]


def _gone(into: Path, mark: Mark) -> list[Path]:
    """What a finished recovery had and the directory has not; file sizes alone."""
    if mark.plan.cluster is not None:
        path = into / copy_name(mark.plan.cluster)
        if not path.exists():
            return [path]
    return gone_files(into, mark, *mark.plan.targets)


def gone_files(into: Path, mark: Mark, *brokers: TargetBroker) -> list[Path]:
    """The same of the directories of these brokers."""
    homes = {into / each.directory for each in brokers}

    def files() -> Iterator[tuple[Path, int]]:
        for _, _, _, entry, path in segment_files(mark.plan, into):
            yield path, entry.live_bytes
        for topic, partition in partitions(mark.plan):
            directory = into / partition_directory(topic, partition)
            try:
                rows = tail_rows(mark.plan, topic, partition, directory, mark.started_ms)
            except (CorruptData, NotFound):
                continue  # a segment that is gone or damaged is named by itself, and what recovery wrote behind it cannot be derived
            beside = layout.partition_files(topic, partition, partition.log_end, mark.started_ms, rows)
            yield from ((directory / name, len(content)) for name, content in beside.items())
        bootstrap = {} if mark.plan.running else layout.bootstrap_files(mark.plan, mark.started_ms, copied_state(mark.plan, into))
        for some in (layout.checkpoint_files(mark.plan), bootstrap):
            yield from ((into / name, len(content)) for name, content in some.items())

    here = ((path, size) for path, size in files() if path.parent in homes or path.parent.parent in homes)
    return [path for path, size in here if not path.exists() or path.stat().st_size != size]
