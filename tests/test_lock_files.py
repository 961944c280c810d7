"""Everything that `make` installs is pinned with its hashes, and so is what builds it (docs/decisions/0006-two-lock-files.md)."""

import re
from pathlib import Path

ROOT = Path(__file__).parent.parent


def locked(name: str) -> dict[str, frozenset[str]]:
    """The hashes, by package with its version and marker."""
    pins = re.split(r"\n(?=\S)", (ROOT / name).read_text().strip())
    return {pin.split(" \\")[0]: frozenset(re.findall(r"--hash=(\S+)", pin)) for pin in pins}


def test_every_pin_has_hashes() -> None:
    for name in ("requirements.lock", "requirements-test.lock", "requirements-build.lock"):
        assert all("==" in pin and hashes for pin, hashes in locked(name).items())


def test_one_version_builds_here_and_in_tests() -> None:
    assert locked("requirements-build.lock").items() <= locked("requirements-test.lock").items()


def test_no_installation_fetches_what_builds_it() -> None:
    """In an isolated build pip fetches the newest setuptools, without a hash."""
    makefile = (ROOT / "Makefile").read_text()
    [flags] = re.findall(r"^BUILD := (.*)$", makefile, re.MULTILINE)
    installs = re.findall(r"pip install .*", makefile)
    assert "--no-build-isolation" in flags.split()
    assert len(installs) == 4
    assert all("$(BUILD)" in line or "--only-binary :all:" in line for line in installs)
    assert all("--require-hashes" in line or "--no-deps --editable ." in line for line in installs)
