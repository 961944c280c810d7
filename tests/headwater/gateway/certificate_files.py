"""Authorities, and certificates that they have issued, made by the openssl command."""

import subprocess
from pathlib import Path
from typing import NamedTuple


class CertificateFiles(NamedTuple):
    certificate: Path
    key: Path


def an_authority(directory: Path, name: str = "authority") -> CertificateFiles:
    files = _files(directory, name)
    _openssl("req -x509 -days 2 -subj", f"/CN={name}", *_new_key(files), "-out", str(files.certificate))
    return files


def issued(directory: Path, authority: CertificateFiles, name: str = "localhost", *, days: int = 2) -> CertificateFiles:
    """A certificate of the host `name` and of 127.0.0.1. days: until it ends; less than 0: it has ended"""
    files, request = _files(directory, name), directory / f"{name}.request"
    names = directory / f"{name}.names"
    names.write_text(f"subjectAltName=DNS:{name},IP:127.0.0.1\n")
    _openssl("req -subj", f"/CN={name}", *_new_key(files), "-out", str(request))
    signed_by = ("-CA", str(authority.certificate), "-CAkey", str(authority.key), "-CAcreateserial")
    _openssl(f"x509 -req -days {days} -extfile", str(names), *signed_by, "-in", str(request), "-out", str(files.certificate))
    return files


def _files(directory: Path, name: str) -> CertificateFiles:
    return CertificateFiles(directory / f"{name}.pem", directory / f"{name}.key")


def _new_key(files: CertificateFiles) -> tuple[str, ...]:
    return "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-keyout", str(files.key)


def _openssl(command: str, *arguments: str) -> None:
    subprocess.run(["openssl", *command.split(), *arguments], check=True, capture_output=True)
