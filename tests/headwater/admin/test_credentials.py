"""Files of credentials that are replaced, badly and well."""

from pathlib import Path

import pytest
from structlog.testing import capture_logs

from headwater.admin import credentials
from headwater.admin.access import Tokens
from headwater.admin.config import AdminConfig
from headwater.admin.credentials import Credentials
from headwater_core.errors import UsageError


def test_a_file_that_becomes_readable_without_another_change_is_taken_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "token"
    file.write_text("a" * 20)
    found = Credentials(AdminConfig(token_file=file))
    file.write_text("b" * 30)
    with capture_logs() as logs:
        with monkeypatch.context() as forbidden:
            forbidden.setattr(credentials, "_token", _forbidden)
            for _ in range(3):
                found.reload()
        assert found.tokens == Tokens(b"a" * 20)
        for _ in range(3):
            found.reload()
    assert found.tokens == Tokens(b"b" * 30)
    assert [each["event"] for each in logs] == ["admin_credentials_refused", "admin_credentials_reloaded"]


def _forbidden(name: str, path: Path) -> bytes:
    raise UsageError(f"admin.{name}: cannot read {path}: Permission denied")
