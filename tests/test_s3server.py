import os
import select
import subprocess
import sys
from pathlib import Path

import pytest

from tests.s3server import running_s3_server


@pytest.mark.server
def test_it_does_not_take_the_credentials_of_another_servers_clients(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "another")
    with running_s3_server(tmp_path) as server:
        assert server.access_key == "test"
        server.bucket()


_SERVE = """
import signal, sys
from pathlib import Path
from tests.s3server import running_s3_server
with running_s3_server(Path(sys.argv[1])) as server:
    print(server.pid, flush=True)
    signal.pause()
"""


@pytest.mark.server
def test_it_ends_with_the_tests_however_they_end(tmp_path: Path) -> None:
    root = str(Path(__file__).parents[1])
    with subprocess.Popen([sys.executable, "-c", _SERVE, str(tmp_path)], cwd=root, stdout=subprocess.PIPE, text=True) as tests:
        assert tests.stdout is not None
        server = os.pidfd_open(int(tests.stdout.readline()))
        try:
            tests.kill()
            ended, _, _ = select.select([server], [], [], 60)
        finally:
            os.close(server)
    assert ended
