"""The files of a control node, brought into a state that the library can start from, whatever happened to them."""

import shutil
from pathlib import Path
from typing import cast

import structlog

from headwater_core.control.journal import Entry, Journal, begin_again
from headwater_core.control.snapshot import read_snapshot
from headwater_core.control.state import EMPTY, ControlState
from headwater_core.errors import CorruptData
from headwater_core.files import disk_errors, rename_synced, replace_file

log = structlog.get_logger()


class ControlFiles:
    """Journal, snapshot, and the marker that says that a rebuild is needed; all in `data_dir`/control."""

    def __init__(self, data_dir: Path) -> None:
        self.directory = data_dir / "control"
        self.journal = self.directory / "journal"
        self.snapshot = self.directory / "snapshot"
        self.rebuild_marker = self.directory / "needs-rebuild"

    def open(self, *, with_peers: bool) -> tuple[Journal, ControlState]:
        """What is damaged is kept aside as *.damaged, and the rest is used: a snapshot outlives its journal, and a journal keeps
        what lies before its damage.
        """
        with disk_errors(self.directory):
            self.directory.mkdir(parents=True, exist_ok=True)
            for path in (self.journal, self.snapshot):
                path.exists()  # raises when it may not be read
        state, before, last = self._read_snapshot()
        journal = self._open_journal(with_peers)
        try:
            self._reconcile(journal, before, last)
        except CorruptData as error:
            log.error("control_file_set_aside", path=str(self.journal), reason=str(error))
            replace_file(self.rebuild_marker, b"")
            promised = journal.getCurrentTerm(), journal.getVotedForNodeId()
            journal._destroy()
            self._renew_journal(*promised)
            journal = Journal(self.journal, with_peers=with_peers)
            self._begin_with(journal, before, last)
        except BaseException:
            journal._destroy()
            raise
        return journal, state

    def begin_again(self, term: int, voted_for: str | None) -> None:
        """Without the journal and the snapshot, which are kept aside. What was promised to peers still holds."""
        replace_file(self.rebuild_marker, b"")
        with disk_errors(self.directory):
            if self.snapshot.exists():
                rename_synced(self.snapshot, self.snapshot.with_name("snapshot.damaged"))
        self._renew_journal(term, voted_for)

    def _renew_journal(self, term: int, voted_for: str | None) -> None:
        with disk_errors(self.journal):
            shutil.copyfile(self.journal, self.journal.with_name("journal.damaged"))
        begin_again(self.journal, term, voted_for)

    def _read_snapshot(self) -> tuple[ControlState, Entry | None, Entry | None]:
        if not self.snapshot.exists():
            return EMPTY, None, None
        try:
            return read_snapshot(self.snapshot)
        except CorruptData as error:
            self._set_aside(self.snapshot, error)
            return EMPTY, None, None

    def _open_journal(self, with_peers: bool) -> Journal:
        if not self.journal.exists():
            replace_file(self.rebuild_marker, b"")
        try:
            journal = Journal(self.journal, with_peers=with_peers)
        except CorruptData as error:
            try:
                with disk_errors(self.journal):
                    shutil.copyfile(self.journal, self.journal.with_name("journal.damaged"))
                replace_file(self.rebuild_marker, b"")
                journal = Journal(self.journal, with_peers=with_peers, salvage=True)
                log.error("control_journal_cut", path=str(self.journal), reason=str(error))
            except CorruptData:
                self._set_aside(self.journal, error)
                journal = Journal(self.journal, with_peers=with_peers)
        if journal.torn:
            replace_file(self.rebuild_marker, b"")
        return journal

    def _set_aside(self, path: Path, why: CorruptData) -> None:
        log.error("control_file_set_aside", path=str(path), reason=str(why))
        replace_file(self.rebuild_marker, b"")
        with disk_errors(path):
            rename_synced(path, path.with_name(path.name + ".damaged"))

    def _reconcile(self, journal: Journal, before: Entry | None, last: Entry | None) -> None:
        """Let the journal begin with the snapshot's two entries.

        After a crash between snapshot and compaction it begins earlier; the library would then drop all of it, the
        entries after the snapshot included.
        """
        entries = cast("list[Entry]", journal[:])
        if before is None:
            if entries and entries[0][1] != 1:
                raise CorruptData(str(self.journal), 0, f"begins at entry {entries[0][1]}, and there is no snapshot")
        elif before in entries and entries[entries.index(before) + 1 :][:1] == [last]:
            if entries[0] != before:
                journal.deleteEntriesTo(entries.index(before))
        elif entries:
            raise CorruptData(str(self.journal), 0, "does not contain what the snapshot ends with")
        else:
            self._begin_with(journal, before, last)

    @staticmethod
    def _begin_with(journal: Journal, before: Entry | None, last: Entry | None) -> None:
        """Let an empty journal continue from a snapshot, whose two entries the library looks for there."""
        if before is not None and last is not None:
            journal.add(*before)
            journal.add(*last)
            if journal.getCurrentTerm() < last[2]:
                journal.setCurrentTerm(last[2], None)
            journal.setRaftCommitIndex(last[1])
            journal.sync()
