"""Help texts: every command has an example, and every example works as it stands."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from headwater import cli
from tests.headwater.conftest import Stage

NOT_RUN = {
    "headwater agent",
    "headwater demo",
    "headwater config reload",
    "headwater operations",
    "headwater recover finish",
    "headwater recover place",
}  # they serve until they are stopped, or ask one that does
WIDTH = 80


def commands(command: click.Command, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """Every command below `command`, groups too."""
    yield path, command
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            found = command.get_command(context, name)
            assert found is not None
            yield from commands(found, (*path, name))


COMMANDS = [path for path, _ in commands(cli.headwater)]
LEAVES = [path for path, command in commands(cli.headwater) if not isinstance(command, click.Group)]


def help_of(path: tuple[str, ...], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("COLUMNS", str(WIDTH))
    assert cli.run([*path, "--help"]) == 0
    return capsys.readouterr().out


@pytest.mark.parametrize("path", COMMANDS, ids=" ".join)
def test_help_fits_a_narrow_window_and_says_everything_in_full(
    path: tuple[str, ...], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    text = help_of(path, capsys, monkeypatch)
    assert not [line for line in text.splitlines() if len(line) > WIDTH]
    assert "..." not in text.partition("Options:")[2]  # what click cuts off


def examples(text: str) -> list[str]:
    block = re.search(r"^  Examples?:\n((?:    headwater .*\n)+)", text, re.MULTILINE)
    return [line.strip() for line in block[1].splitlines()] if block else []


@pytest.mark.parametrize("path", LEAVES, ids=" ".join)
def test_every_command_has_an_example(path: tuple[str, ...], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    found = examples(help_of(path, capsys, monkeypatch))
    assert found
    assert all(shlex.split(each)[1:][: len(path)] == list(path) for each in found)


def test_every_example_works_on_the_data_of_the_demo(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    log = stage.log("pantry")
    Path("demo.toml").write_text(
        f'node.data_dir = "{stage.data_dir}"\nlog.dirs = ["{log}"]\nstore.url = "file://{stage.bucket}"\ngateway.listen = "127.0.0.1:0"\n'
        'admin.listen = ""\n'
    )
    monkeypatch.setenv("HEADWATER_CONFIG", "demo.toml")
    assert stage.run_bare("flush").code == 0
    failed = []
    for path in LEAVES:
        for example in examples(help_of(path, stage.capsys, monkeypatch)):
            if not any(example.startswith(each) for each in NOT_RUN):
                ran = stage.run_bare(*shlex.split(example)[1:])
                failed += [(example, ran.code, ran.err)] * (ran.code != 0)
    assert not failed
