"""What docs/operations.md tells to put into cron and systemd is accepted by them, and by us."""

import configparser
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from headwater.commands.archive import flush

PAGE = (Path(__file__).parents[1] / "docs" / "operations.md").read_text("utf-8")
CRON_FIELD = re.compile(r"(\*|\d+)(/\d+)?")


def blocks(kind: str) -> list[str]:
    return re.findall(rf"```{kind}\n(.*?)```", PAGE, re.DOTALL)


def check_arguments(command: list[str]) -> None:
    """`headwater` takes them. Raises what is wrong with them."""
    at = command.index("flush")
    assert command[at - 3 : at - 1] == ["headwater", "--config"]
    flush.make_context("flush", command[at + 1 :])


def test_the_crontab_line_has_five_times_and_a_command_that_we_know() -> None:
    (line,) = blocks("crontab")
    fields = line.split(maxsplit=5)
    assert all(CRON_FIELD.fullmatch(each) for each in fields[:5])
    assert "%" not in fields[5]  # cron would cut the line there
    command = shlex.split(fields[5].partition("2>&1")[0])
    assert command[:2] == ["flock", "-n"]
    check_arguments(command)


def test_the_units_parse_and_systemd_takes_them(tmp_path: Path) -> None:
    service, timer = blocks("ini")
    parsed = configparser.ConfigParser(interpolation=None)
    parsed.optionxform = str  # type: ignore[assignment, method-assign]
    parsed.read_string(service)
    assert parsed["Service"]["Type"] == "oneshot"
    check_arguments(shlex.split(parsed["Service"]["ExecStart"]))
    parsed.read_string(timer)
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        pytest.skip("systemd-analyze is not here; the units parse")
    (tmp_path / "headwater-flush.service").write_text(service.replace("User=kafka", "User=root"))
    (tmp_path / "headwater-flush.timer").write_text(timer)
    said = subprocess.run(
        [analyze, "verify", "--man=no", tmp_path / "headwater-flush.timer"], capture_output=True, text=True, check=False, timeout=60
    )
    assert (said.returncode, [line for line in said.stderr.splitlines() if "headwater-flush" in line]) == (0, [])
    calendar = parsed["Timer"]["OnCalendar"]
    assert subprocess.run([analyze, "calendar", calendar], capture_output=True, check=False, timeout=60).returncode == 0
