"""`python -m tests.archival.archive_once LOGS BUCKET [MERGE]`: archive and release everything, as a process that a test can kill.

With a third argument what is small is merged then.
"""

import sys
from dataclasses import replace
from pathlib import Path
from uuid import uuid4

import tests.kill_at  # noqa: F401
from archival.partition.archiver import PartitionArchiver
from headwater_core.objectstore.directory import DirectoryStore
from tests.archival.builders import EVERYTHING, Agent, run

MERGES = replace(EVERYTHING, merge_bytes=40 << 10, merge_span_ms=1 << 50)


class Process(Agent):
    def _new_uid(self) -> str:
        return uuid4().hex


def main(logs: Path, bucket: Path, merges: bool) -> None:
    agent = Process(logs, DirectoryStore(bucket))
    for log in agent.logs.partitions():
        archiver: PartitionArchiver = agent.archiver_of(log.partition)
        run(archiver, EVERYTHING)
        agent.releaser.release(archiver)
        while merges and archiver.merge(MERGES).merged:
            pass


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), len(sys.argv) > 3)
