"""Paths on the command line and in settings: a URL is refused before anything is created."""

from collections.abc import Iterator

import click
import pytest

from headwater import cli
from headwater.config import PREFIX
from tests.headwater.conftest import Stage
from tests.headwater.test_help import commands

URL = "s3://lake/kafka"
TAKES_URLS = {"--quarantine"}  # a list of damage may lie in a bucket


def path_options() -> Iterator[tuple[tuple[str, ...], str]]:
    """Each option that takes a file or a directory, by its type or its metavar; with the first command that has it."""
    known = set()
    for path, command in commands(cli.headwater):
        for option in command.params if path else ():
            if not isinstance(option, click.Option) or TAKES_URLS & {*option.opts}:
                continue
            metavar = option.metavar or ""
            if (isinstance(option.type, click.Path) or "DIR" in metavar or "FILE" in metavar) and (
                option.opts[0],
                option.help,
            ) not in known:
                known.add((option.opts[0], option.help))
                yield path, option.opts[0]


OPTIONS = list(path_options())
NEEDED = {  # besides what click demands
    ("recover", "place"): ["--into", "out"],
    ("recover", "plan", "topic"): ["orders"],
    ("recover", "apply", "topic"): ["orders"],
}


def required(path: tuple[str, ...]) -> list[str]:
    """What the command needs besides the option."""
    needed = list(NEEDED.get(path, ()))
    for each in dict(commands(cli.headwater))[path].params:
        if each.required:
            needed += ["orders"] if isinstance(each, click.Argument) else [each.opts[0], "out"]
    return needed


def test_the_walk_finds_the_options_that_create_something() -> None:
    found = {(" ".join(path), option) for path, option in OPTIONS}
    assert {option for _, option in OPTIONS} >= {"--config", "--data-dir", "--log-dir", "--to", "--state", "--plan", "--brokers", "--dir"}
    assert {("scan", "--to-parquet"), ("jobs export", "--to"), ("drill", "--scratch"), ("drill", "--kafka-home")} <= found
    assert {("recover apply", "--into"), ("recover finish", "--into"), ("recover place", "--into"), ("recover place", "--log-dir")} <= found


@pytest.mark.parametrize(("path", "option"), OPTIONS, ids=lambda part: part if isinstance(part, str) else " ".join(part))
def test_a_url_is_no_path_and_creates_nothing(path: tuple[str, ...], option: str, stage: Stage) -> None:
    ran = stage.run_bare(*path, *required(path), option, URL)
    assert ran.code == 2
    assert f"'{URL}' is a URL; give a path on this machine, without s3://" in ran.err
    assert not list(stage.root.iterdir())


def test_a_url_before_the_command_and_in_the_environment_is_no_path(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    ran = [stage.run_bare("--config", URL, "status")]
    for name in ("CONFIG", "NODE_DATA_DIR", "LOG_DIRS", "LOG_CLIENT_PROPERTIES", "DRILL_DIRECTORY", "DRILL_KAFKA_HOME"):
        with monkeypatch.context() as patched:
            patched.setenv(PREFIX + name, "file:///lake")
            ran.append(stage.run_bare("status"))
    assert [each.code for each in ran] == [2] * 7
    assert all("is a URL; give a path on this machine" in each.err for each in ran)
    assert not list(stage.root.iterdir())


def test_a_path_that_resembles_a_url_is_a_path(stage: Stage) -> None:
    for name in ("s3:", "s3:/lake", "./s3://lake"):
        assert "is a URL" not in stage.run_bare("config", "show", "--set", f"node.data_dir={name}").err
