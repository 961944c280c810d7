"""A place to run verbs in: a broker's log directory, a bucket, a data directory."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from headwater import cli
from tests.fixtures import private_copy


@dataclass(frozen=True, slots=True)
class Ran:
    """What one verb came to."""

    code: int
    out: str
    err: str

    @property
    def rows(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.out.splitlines()]


@dataclass(frozen=True, slots=True)
class Stage:
    root: Path
    capsys: pytest.CaptureFixture[str]

    @property
    def bucket(self) -> Path:
        return self.root / "bucket"

    @property
    def data_dir(self) -> Path:
        return self.root / "state"

    def log(self, name: str) -> Path:
        return private_copy(name, self.root)

    def run(self, *arguments: str, log: Path | None = None) -> Ran:
        """`headwater ARGUMENTS` with the stage's directories, where the arguments do not name others."""
        places = {"--data-dir": str(self.data_dir), "--store": f"file://{self.bucket}", "--log-dir": str(log) if log else None}
        named = [part for option, place in places.items() if place and option not in arguments for part in (option, place)]
        return self.run_bare(*arguments, *named, "--set", "gateway.listen=127.0.0.1:0", "--set", "admin.listen=")

    def run_bare(self, *arguments: str) -> Ran:
        """`headwater ARGUMENTS`."""
        self.capsys.readouterr()
        code = cli.run(list(arguments))
        out, err = self.capsys.readouterr()
        return Ran(code, out, err)


@pytest.fixture
def stage(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Stage:
    monkeypatch.chdir(tmp_path)  # no headwater.toml of anybody's
    return Stage(tmp_path, capsys)
