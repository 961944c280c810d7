"""A certificate that is replaced, badly and well."""

from pathlib import Path

import pytest
from structlog.testing import capture_logs

from headwater.gateway.certificates import PortCertificate
from headwater_core.errors import UsageError
from tests.headwater.gateway.certificate_files import CertificateFiles, an_authority, issued


@pytest.fixture
def authority(tmp_path: Path) -> CertificateFiles:
    return an_authority(tmp_path)


@pytest.fixture
def files(tmp_path: Path, authority: CertificateFiles) -> CertificateFiles:
    return issued(tmp_path, authority)


def test_a_certificate_that_is_renewed_is_used_from_then_on(tmp_path: Path, files: CertificateFiles, authority: CertificateFiles) -> None:
    port = PortCertificate(*files, authority.certificate)
    before = port.context
    with capture_logs() as logs:
        port.reload()
        assert port.context is before
        issued(tmp_path, authority)
        port.reload()
        port.reload()
    assert port.context is not before
    assert [event["event"] for event in logs] == ["gateway_certificate_reloaded"]


@pytest.mark.parametrize("at", range(3))
def test_a_file_that_cannot_be_used_changes_nothing(files: CertificateFiles, authority: CertificateFiles, at: int) -> None:
    paths = (*files, authority.certificate)
    port = PortCertificate(*paths)
    before, content = port.context, paths[at].read_bytes()
    with capture_logs() as logs:
        paths[at].write_bytes(content[: len(content) // 2])
        for _ in range(3):
            port.reload()
        assert port.context is before
        paths[at].write_bytes(content)
        port.reload()
    assert port.context is not before
    assert [event["event"] for event in logs] == ["gateway_certificate_refused", "gateway_certificate_reloaded"]


def test_a_port_does_not_open_without_its_certificate(files: CertificateFiles, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"^gateway: "):
        PortCertificate(tmp_path / "none", files.key)
    with pytest.raises(UsageError, match=r"^gateway: "):
        PortCertificate(*files, tmp_path / "none")
