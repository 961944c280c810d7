"""Files that are no certificate, no key of it, and no authorities are refused; test_tls_socket.py shows what clients get."""

from pathlib import Path

import pytest

from headwater_core.certificates import server_context
from headwater_core.errors import UsageError
from tests.headwater.gateway.certificate_files import CertificateFiles, an_authority


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> CertificateFiles:
    return an_authority(tmp_path_factory.mktemp("certificates"))


def test_a_file_that_is_not_there_is_named(files: CertificateFiles, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"^gateway: .*/none and .* are not a certificate and its key"):
        server_context("gateway", tmp_path / "none", files.key)
    with pytest.raises(UsageError, match=r"^gateway: .*/none has no certificates of authorities"):
        server_context("gateway", *files, tmp_path / "none")


def test_the_key_of_another_certificate_is_refused(files: CertificateFiles, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="are not a certificate and its key"):
        server_context("gateway", files.certificate, an_authority(tmp_path).key)


@pytest.mark.parametrize("content", ["", "no certificate\n"])
def test_a_file_without_authorities_is_refused(files: CertificateFiles, tmp_path: Path, content: str) -> None:
    (tmp_path / "empty").write_text(content)
    with pytest.raises(UsageError, match="has no certificates of authorities"):
        server_context("gateway", *files, tmp_path / "empty")
    with pytest.raises(UsageError, match="has no certificates of authorities"):
        server_context("gateway", *files, files.key)
