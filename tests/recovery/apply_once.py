"""A recovery in a process of its own, for tests that kill it, or have two at a time: python -m tests.recovery.apply_once ARCHIVE TARGET
[options]"""

import argparse
import os
import resource
import sys
from pathlib import Path

import structlog

import recovery
import tests.kill_at  # noqa: F401
from headwater_core import milestones
from headwater_core.errors import HeadwaterError
from headwater_core.objectstore.directory import DirectoryStore
from manifests.repository import ManifestRepository
from recovery.plan_document import decode_plan
from tests.headwater_core.manual_clock import ManualClock


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("archive", type=Path)
    parser.add_argument("target", type=Path)
    parser.add_argument("--plan", type=Path, help="a plan of its own, of everything, when there is none")
    parser.add_argument("--directory-id", default="A" * 21 + "Q")
    parser.add_argument("--at-ms", type=int, default=1_700_000_000_000)
    parser.add_argument("--host", help="which machine it believes to be on")
    parser.add_argument("--moved", action="store_true")
    parser.add_argument("--file-bytes-max", type=int, default=resource.RLIM_INFINITY)
    options = parser.parse_args()
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    resource.setrlimit(resource.RLIMIT_FSIZE, (options.file_bytes_max, options.file_bytes_max))
    held_at, does = os.environ.get("HOLD_AT", "").partition(":")[0], milestones.observer

    def tell(name: str) -> None:
        if name == held_at:
            print(name, flush=True)
        does(name)

    milestones.observer = tell  # says that it waits, before it waits
    store = DirectoryStore(options.archive)
    try:
        plan = decode_plan(options.plan.read_bytes()) if options.plan else recovery.plan(ManifestRepository(store), None)
        report = recovery.apply(
            plan,
            options.target,
            store,
            clock=ManualClock(options.at_ms),
            new_id=lambda: options.directory_id,
            host=options.host,
            moved=options.moved,
        )
    except HeadwaterError as error:
        print(type(error).__name__, error)
        return error.exit_code
    print("again" if report.again else "resumed" if report.resumed else "begun")
    return 0


if __name__ == "__main__":
    sys.exit(main())
