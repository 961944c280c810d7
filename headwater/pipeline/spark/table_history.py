"""The progress of an export into a table, as the table's own commits have it.

A commit of an export carries a document: in Iceberg as a property of the snapshot, in Delta as the commit's user metadata. So rows
and progress are committed together or not at all, and a table that is rolled back has the progress of its rows. Other commits
(deletes, compactions) carry no document, and old commits expire. So a property of the table mirrors the newest document and names
its commit. The mirror is used only if no remembered commit has a document, and only while nothing shows that its commit was rolled
back. It is written after the commit. A run that is killed between the two leaves the mirror of the commit before; that matters only
if the new commit expires before the next run, and then the rows show it (TableExport).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol

import msgspec
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  # its usual name in Spark code

from headwater.pipeline.export.backlog import TopicProgress
from headwater_core.errors import CorruptData, UsageError
from manifests.document import FORMAT, seal, unseal

_PROPERTY = "headwater.export"


class TableDocument(msgspec.Struct, frozen=True, kw_only=True):
    """topics: all offsets below are in the table, or were. sequence: rises with every commit of an export. The other fields must be
    equal in all runs, except commit_id."""

    format: tuple[int, int] = FORMAT
    store: str
    read_committed: bool
    columns: tuple[str, ...]
    sequence: int
    commit_id: str
    topics: tuple[TopicProgress, ...]

    def encode(self) -> str:
        return msgspec.json.format(seal(self), indent=-1).decode()


def decode_document(text: str, table: str) -> TableDocument:
    """Raises CorruptData, and UnsupportedFormat for a newer version's document."""
    return unseal(text.encode(), TableDocument, f"progress of {table}")


class Mirror(msgspec.Struct, frozen=True, kw_only=True):
    """The newest document, and the id and order of its commit. commit "": the table was created with it."""

    PROPERTY: ClassVar[str] = _PROPERTY

    commit: str
    order: int
    document: str

    @classmethod
    def of(cls, document: TableDocument, commit: "TableCommit | None") -> "Mirror":
        return cls(commit=commit.id if commit else "", order=commit.order if commit else -1, document=document.encode())

    def encode(self) -> str:
        return msgspec.json.encode(self).decode()


@dataclass(frozen=True, slots=True, kw_only=True)
class TableCommit:
    """One commit of a table. order: rises from commit to commit."""

    id: str
    order: int
    document: TableDocument | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TableCommits:
    """The commits that a table remembers. commits: those that led to its present rows, the newest first. rolled_back: the others.
    is_whole: they include the first one."""

    commits: tuple[TableCommit, ...]
    rolled_back: tuple[TableCommit, ...] = ()
    is_whole: bool

    @property
    def newest(self) -> TableCommit | None:
        return self.commits[0] if self.commits else None

    @property
    def sequence_max(self) -> int:
        return max((each.document.sequence for each in (*self.commits, *self.rolled_back) if each.document), default=0)


def newest_document(commits: TableCommits, mirror: Mirror | None, table: str) -> TableDocument | None:
    """The document of the export that filled the table; None when there is none. Raises CorruptData for a damaged one."""
    for each in commits.commits:
        if each.document:
            return each.document
    if mirror is None:
        return None
    if mirror.commit and mirror.commit not in {each.id for each in commits.commits}:
        if mirror.commit in {each.id for each in commits.rolled_back} or commits.is_whole:
            return None
        if commits.commits and commits.commits[-1].order < mirror.order:  # older than the mirror's, and not based on it
            return None
    return decode_document(mirror.document, table)


class TableHistory(Protocol):
    """One table's commits, for one table format."""

    def read(self) -> TableCommits: ...

    def mirror(self) -> Mirror | None: ...

    def keep_mirror(self, mirror: Mirror) -> None: ...

    def append(self, rows: DataFrame, document: TableDocument) -> None:
        """Append the rows in one commit that carries `document`."""
        ...


def open_history(spark: SparkSession, table: str) -> TableHistory:
    """The history of a table. Raises UsageError unless it is an Iceberg or a Delta table."""
    described = {row["col_name"]: row["data_type"] for row in spark.sql(f"DESCRIBE TABLE EXTENDED {table}").collect()}
    provider = str(described.get("Provider", "")).lower()
    if provider == "iceberg":
        return _Iceberg(spark, table)
    if provider == "delta":
        return _Delta(spark, table)
    raise UsageError(f"{table} has the format {provider or '(unknown)'}; an export needs an Iceberg or a Delta table")


class _Properties:
    """Table properties, which are the same in both formats."""

    def __init__(self, spark: SparkSession, table: str) -> None:
        self._spark, self._table = spark, table

    def mirror(self) -> Mirror | None:
        found = {row["key"]: row["value"] for row in self._spark.sql(f"SHOW TBLPROPERTIES {self._table}").collect()}
        if _PROPERTY not in found:
            return None
        try:
            return msgspec.json.decode(found[_PROPERTY], type=Mirror)
        except msgspec.DecodeError as error:
            raise CorruptData(f"property {_PROPERTY} of {self._table}", 0, str(error)) from None

    def keep_mirror(self, mirror: Mirror) -> None:
        text = mirror.encode().replace("\\", "\\\\").replace("'", "\\'")
        self._spark.sql(f"ALTER TABLE {self._table} SET TBLPROPERTIES ('{_PROPERTY}' = '{text}')")


class _Iceberg(_Properties):
    def read(self) -> TableCommits:
        self._spark.catalog.refreshTable(self._table)
        snapshots = self._spark.table(f"{self._table}.snapshots").select(
            "snapshot_id", "parent_id", F.unix_millis("committed_at").alias("at_ms"), F.col("summary")[_PROPERTY].alias("document")
        )
        known = {row["snapshot_id"]: row for row in snapshots.collect()}
        heads = self._spark.table(f"{self._table}.refs").where("name = 'main'").select("snapshot_id").collect()
        at: int | None = heads[0]["snapshot_id"] if heads else None
        path: list[int] = []
        while at is not None and at in known:
            path.append(at)
            at = known[at]["parent_id"]

        def commit(snapshot: int) -> TableCommit:
            text = known[snapshot]["document"]
            document = decode_document(text, self._table) if text else None
            return TableCommit(id=str(snapshot), order=known[snapshot]["at_ms"], document=document)

        return TableCommits(
            commits=tuple(map(commit, path)),
            rolled_back=tuple(commit(snapshot) for snapshot in sorted(known.keys() - set(path))),
            is_whole=at is None,
        )

    def append(self, rows: DataFrame, document: TableDocument) -> None:
        rows.writeTo(self._table).option(f"snapshot-property.{_PROPERTY}", document.encode()).append()


class _Delta(_Properties):
    """With txnAppId and txnVersion, an append that is repeated, or planned by two runs at once, happens once."""

    _MARK = f"{_PROPERTY}="  # other programs write user metadata, too

    def read(self) -> TableCommits:
        rows = self._spark.sql(f"DESCRIBE HISTORY {self._table}").collect()
        versions = {row["version"]: row for row in rows}
        path = delta_path([(row["version"], row["timestamp"], _restored(row["operationParameters"], row["operation"])) for row in rows])

        def commit(version: int) -> TableCommit:
            metadata = versions[version]["userMetadata"] or ""
            text = metadata.removeprefix(self._MARK) if metadata.startswith(self._MARK) else ""
            return TableCommit(id=str(version), order=version, document=decode_document(text, self._table) if text else None)

        return TableCommits(
            commits=tuple(map(commit, path)),
            rolled_back=tuple(commit(version) for version in sorted(versions.keys() - set(path))),
            is_whole=bool(path) and path[-1] == 0,
        )

    def append(self, rows: DataFrame, document: TableDocument) -> None:
        writer = rows.writeTo(self._table).option("userMetadata", self._MARK + document.encode())
        writer.option("txnAppId", _PROPERTY).option("txnVersion", str(document.sequence)).append()


def _restored(parameters: dict[str, str | None], operation: str) -> tuple[str | None, str | None] | None:
    """What a RESTORE restored: (version, time as text)."""
    return (parameters.get("version"), parameters.get("timestamp")) if operation == "RESTORE" else None


def delta_path(history: Sequence[tuple[int, object, tuple[str | None, str | None] | None]]) -> list[int]:
    """The versions that led to the present state of a Delta table, the newest first.

    history  (version, its time, what it restored); a RESTORE continues from the state of an older version
    """
    known = {version: (at, restored) for version, at, restored in history}
    path: list[int] = []
    version = max(known, default=-1)
    while version in known:
        path.append(version)
        restored = known[version][1]
        if restored is None:
            version -= 1
        elif restored[0] is not None:
            version = int(restored[0])
        else:
            before = [each for each, (at, _) in known.items() if each < version and str(at) <= str(restored[1])]
            version = max(before, default=-1)
    return path
