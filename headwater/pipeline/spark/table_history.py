"""How far an export into a table has come, as the table's own commits say.

A commit of an export carries a document: in Iceberg as a property of the snapshot, in Delta as the commit's user metadata. That is
the fence: rows and progress are there together or not at all, and a table that is rolled back has the progress of the rows it has.
Commits of others (deletes, compactions) carry none, and old ones expire, so a property of the table mirrors the newest document, with
the commit it came with. The mirror counts only where no commit that is remembered has a document, and only while nothing shows that
its commit was rolled back. It is written after the commit; a run that is killed between the two leaves the mirror of the commit
before, which matters only should that commit expire before the next run, and then rows show it (TableExport).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol

import msgspec
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  # as everybody who reads Spark code knows it

from headwater.pipeline.export.backlog import TopicProgress
from headwater_core.errors import CorruptData, UsageError
from manifests.document import FORMAT, seal, unseal

_PROPERTY = "headwater.export"


class TableDocument(msgspec.Struct, frozen=True, kw_only=True):
    """topics: everything below is in the table, or was. sequence: rises with every commit of an export. The rest is what all runs
    must agree on."""

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
    """Raises CorruptData, and UnsupportedFormat for a newer version's."""
    return unseal(text.encode(), TableDocument, f"progress of {table}")


class Mirror(msgspec.Struct, frozen=True, kw_only=True):
    """The newest document, and the commit that it came with: its id, and its place in the order of commits. commit "": the table was made
    with it.
    """

    PROPERTY: ClassVar[str] = _PROPERTY

    commit: str
    order: int
    document: str

    @classmethod
    def of(cls, document: TableDocument, commit: "Commit | None") -> "Mirror":
        return cls(commit=commit.id if commit else "", order=commit.order if commit else -1, document=document.encode())

    def encode(self) -> str:
        return msgspec.json.encode(self).decode()


@dataclass(frozen=True, slots=True, kw_only=True)
class Commit:
    """One commit of a table. order: rises from commit to commit."""

    id: str
    order: int
    document: TableDocument | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Commits:
    """What a table remembers. commits: those that led to what it holds now, the newest first. rolled_back: the others.
    is_whole: they reach back to the first one."""

    commits: tuple[Commit, ...]
    rolled_back: tuple[Commit, ...] = ()
    is_whole: bool

    @property
    def newest(self) -> Commit | None:
        return self.commits[0] if self.commits else None

    @property
    def sequence_max(self) -> int:
        return max((each.document.sequence for each in (*self.commits, *self.rolled_back) if each.document), default=0)


def newest_document(commits: Commits, mirror: Mirror | None, table: str) -> TableDocument | None:
    """What the table says of the export that filled it; None when it says nothing. Raises CorruptData for what is damaged."""
    for each in commits.commits:
        if each.document:
            return each.document
    if mirror is None:
        return None
    if mirror.commit and mirror.commit not in {each.id for each in commits.commits}:
        if mirror.commit in {each.id for each in commits.rolled_back} or commits.is_whole:
            return None
        if commits.commits and commits.commits[-1].order < mirror.order:  # older than the mirror's, and no descendant of it
            return None
    return decode_document(mirror.document, table)


class TableHistory(Protocol):
    """One table's commits, in the way of its format."""

    def read(self) -> Commits: ...

    def mirror(self) -> Mirror | None: ...

    def keep_mirror(self, mirror: Mirror) -> None: ...

    def append(self, rows: DataFrame, document: TableDocument) -> None:
        """In one commit that carries `document`."""
        ...


def open_history(spark: SparkSession, table: str) -> TableHistory:
    """Raises UsageError for a table of another format than Iceberg's and Delta's."""
    described = {row["col_name"]: row["data_type"] for row in spark.sql(f"DESCRIBE TABLE EXTENDED {table}").collect()}
    provider = str(described.get("Provider", "")).lower()
    if provider == "iceberg":
        return _Iceberg(spark, table)
    if provider == "delta":
        return _Delta(spark, table)
    raise UsageError(f"{table} is a table of {provider or 'no format that Spark tells'}; an export needs one of Iceberg's or Delta's")


class _Properties:
    """Table properties, which both formats keep alike."""

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
    def read(self) -> Commits:
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

        def commit(snapshot: int) -> Commit:
            text = known[snapshot]["document"]
            document = decode_document(text, self._table) if text else None
            return Commit(id=str(snapshot), order=known[snapshot]["at_ms"], document=document)

        return Commits(
            commits=tuple(map(commit, path)),
            rolled_back=tuple(commit(snapshot) for snapshot in sorted(known.keys() - set(path))),
            is_whole=at is None,
        )

    def append(self, rows: DataFrame, document: TableDocument) -> None:
        rows.writeTo(self._table).option(f"snapshot-property.{_PROPERTY}", document.encode()).append()


class _Delta(_Properties):
    """txnAppId and txnVersion make an append that is repeated, or planned by two runs at once, happen once."""

    _MARK = f"{_PROPERTY}="  # user metadata may be anybody's

    def read(self) -> Commits:
        rows = self._spark.sql(f"DESCRIBE HISTORY {self._table}").collect()
        versions = {row["version"]: row for row in rows}
        path = delta_path([(row["version"], row["timestamp"], _restored(row["operationParameters"], row["operation"])) for row in rows])

        def commit(version: int) -> Commit:
            said = versions[version]["userMetadata"] or ""
            text = said.removeprefix(self._MARK) if said.startswith(self._MARK) else ""
            return Commit(id=str(version), order=version, document=decode_document(text, self._table) if text else None)

        return Commits(
            commits=tuple(map(commit, path)),
            rolled_back=tuple(commit(version) for version in sorted(versions.keys() - set(path))),
            is_whole=bool(path) and path[-1] == 0,
        )

    def append(self, rows: DataFrame, document: TableDocument) -> None:
        writer = rows.writeTo(self._table).option("userMetadata", self._MARK + document.encode())
        writer.option("txnAppId", _PROPERTY).option("txnVersion", str(document.sequence)).append()


def _restored(parameters: dict[str, str | None], operation: str) -> tuple[str | None, str | None] | None:
    """What a RESTORE went back to: (version, time as text)."""
    return (parameters.get("version"), parameters.get("timestamp")) if operation == "RESTORE" else None


def delta_path(history: Sequence[tuple[int, object, tuple[str | None, str | None] | None]]) -> list[int]:
    """The versions that led to what a Delta table holds now, the newest first.

    history  (version, its time, what it restored): a RESTORE goes on with the state of an older version
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
