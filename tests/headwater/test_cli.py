"""The front door: quick, lazy, and with exit codes that scripts may rely on."""

import subprocess
import sys
from collections.abc import Iterator

import click
import pytest

from headwater import cli
from headwater.command_operation import INTERRUPTED
from headwater_core import errors
from headwater_core.errors import HeadwaterError

HEAVY = {
    "boto3",
    "botocore",
    "numpy",
    "pyarrow",
    "pyspark",
    "structlog",
    "kio",
    "lmdb",
    "msgspec",
    "pysyncobj",
    "rich",
    "asyncio",
    "confluent_kafka",
    "starlette",
    "uvicorn",
    "prometheus_client",
}


def every_error() -> Iterator[type[HeadwaterError]]:
    kinds = [HeadwaterError]
    while kinds:
        kind = kinds.pop()
        yield kind
        kinds.extend(kind.__subclasses__())


def test_exit_codes_are_frozen() -> None:
    codes = {kind.__name__: kind.exit_code for kind in every_error() if kind.__module__ == errors.__name__}
    assert codes == {
        "HeadwaterError": 1,
        "UsageError": 2,
        "WrongStore": 2,
        "StoreGone": 2,
        "NoEpochHistory": 3,
        "Partial": 3,
        "CorruptData": 4,
        "TruncatedData": 4,
        "VerificationFailed": 4,
        "TransientError": 5,
        "UnknownOutcome": 5,
        "PlaceTaken": 5,
        "ManifestChanged": 5,
        "SourceChanged": 5,
        "Conflict": 5,
        "NotFound": 6,
        "LogNotFound": 6,
        "Fenced": 7,
        "ForeignOwner": 7,
        "Locked": 7,
        "UploadStopped": 5,
        "Unauthorised": 8,
        "NothingExamined": 10,
        "AlreadyExists": 1,
        "DataLoss": 1,
        "DeletionRefused": 1,
        "DiskFull": 5,
        "DataDirFull": 5,
        "OffsetOutOfRange": 1,
        "Superseded": 1,
        "NeedsReplacement": 1,
        "NeedsUpgrade": 1,
        "SuspectedGap": 1,
        "UnfinishedSwap": 1,
        "UnrelatedLog": 1,
        "UnsupportedFormat": 1,
    }
    assert INTERRUPTED == 130


@pytest.mark.parametrize(
    ("raised", "code"),
    [
        (errors.Locked("another agent"), 7),
        (errors.CorruptData("photos-0", 17, "crc"), 4),
        (click.UsageError("no such option"), 2),
        (KeyboardInterrupt(), 130),
        (click.Abort(), 130),
        (PermissionError(13, "Permission denied", "/var/lib/kafka"), 8),
        (OSError(28, "No space left on device"), 1),
    ],
)
def test_what_a_verb_raises_becomes_an_exit_code_and_one_line(
    raised: BaseException, code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    @click.command()
    def failing() -> None:
        raise raised

    monkeypatch.setattr(cli.Verbs, "get_command", lambda *_: failing)
    assert cli.run(["status"]) == code
    out, err = capsys.readouterr()
    assert out == ""
    assert err
    assert "Traceback" not in err


def test_an_unknown_verb_and_an_unknown_option_are_usage_errors(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["stauts"]) == 2
    assert cli.run(["config", "show", "--frobnicate"]) == 2
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("verb", sorted(cli.VERBS))
def test_every_verb_that_is_named_is_there_and_explains_itself(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run([verb, "--help"]) == 0
    assert f"headwater {verb}" in capsys.readouterr().out


def imported_by(*arguments: str) -> set[str]:
    command = [sys.executable, "-X", "importtime", "-c", "from headwater.cli import main; main()", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr[-2000:]
    return {line.rpartition("|")[2].strip().partition(".")[0] for line in done.stderr.splitlines() if line.startswith("import time:")}


def test_help_imports_nothing_heavy() -> None:
    imported = imported_by("--help")
    assert "click" in imported
    assert not imported & HEAVY


@pytest.mark.parametrize("verb", sorted(cli.VERBS))
def test_a_verbs_help_imports_nothing_heavy_either(verb: str) -> None:
    assert not imported_by(verb, "--help") & (HEAVY - {"msgspec", "asyncio"})
