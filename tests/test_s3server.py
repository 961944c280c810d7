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
