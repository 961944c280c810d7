"""A recovery in a process of its own, for tests that kill it: python -m tests.recovery.apply_once ARCHIVE TARGET [FILE_BYTES_MAX]"""

import resource
import sys
from pathlib import Path

import recovery
import tests.kill_at  # noqa: F401
from headwater_core.errors import HeadwaterError
from headwater_core.objectstore.directory import DirectoryStore
from manifests.repository import ManifestRepository


def main(archive: str, target: str, file_bytes_max: str = "") -> int:
    if file_bytes_max:
        resource.setrlimit(resource.RLIMIT_FSIZE, (int(file_bytes_max), int(file_bytes_max)))
    store = DirectoryStore(Path(archive))
    try:
        recovery.apply(recovery.plan(ManifestRepository(store), None), Path(target), store)
    except HeadwaterError as error:
        print(type(error).__name__, error)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
