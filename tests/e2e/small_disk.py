"""`python -m tests.e2e.small_disk DIRECTORY KIB VERBS LATER`: verbs on a disk that is too small, and others when it has grown.

It mounts a file system of KIB on DIRECTORY, so it wants a mount namespace of its own. VERBS and LATER are JSON lists of
argument lists; exit codes and outputs come back as a JSON list of [code, stdout, stderr].
"""

import json
import subprocess
import sys


def headwater(arguments: list[str]) -> tuple[int, str, str]:
    command = [sys.executable, "-c", "from headwater.cli import main; main()", *arguments]
    ran = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    return ran.returncode, ran.stdout, ran.stderr


def main(directory: str, kib: str, verbs: str, later: str) -> None:
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={kib}k", "none", directory], check=True)
    results = [headwater(arguments) for arguments in json.loads(verbs)]
    subprocess.run(["mount", "-o", "remount,size=64m", directory], check=True)
    results += [headwater(arguments) for arguments in json.loads(later)]
    json.dump(results, sys.stdout)


if __name__ == "__main__":
    main(*sys.argv[1:])
