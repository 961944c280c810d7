"""`headwater demo`."""

import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from headwater.columns import Column, as_size
from headwater.options import LocalPath
from headwater.output import emit, progress, say
from headwater.units import duration_text
from headwater_core.errors import UsageError

if TYPE_CHECKING:
    from rich.console import Console

    from headwater.demo import Demo

TOPICS = (
    Column("topic", "topic"),
    Column("offsets", "offsets", numeric=True, leaves=1),
    Column("records", "records", numeric=True),
    Column("from_archive", "bucket", numeric=True),
    Column("objects", "objects", numeric=True),
    Column("archived_bytes", "archived", as_size, numeric=True),
    Column("released_bytes", "released", as_size, numeric=True),
    Column("archived_s", "sec", "{:.2f}".format, numeric=True, leaves=2),
)
COMPARISONS = (
    Column("reading", "read from"),
    Column("isolation", "isolation"),
    Column("delivered", "records delivered", numeric=True),
    Column("equal", "read back equal", numeric=True),
)


@click.command()
@click.option("--keep-running", is_flag=True, help="Keep the Kafka endpoint running afterwards, and print commands to try.")
@click.option("--dir", "directory", type=LocalPath(), help="Work in this new directory and keep it.  [default: a temporary one]")
@click.option("-o", "--output", "form", type=click.Choice(["table", "json"]), default="table", show_default=True, help="Output format.")
def demo(keep_running: bool, directory: Path | None, form: str) -> None:
    """Show on this machine, in a few seconds, what Headwater does.

    Archives a log that a real Kafka broker wrote, deletes local segments and reads the log back. Then deletes everything but the
    bucket, recovers the log and reads it again. Every record is compared with what the broker delivered. Needs no broker, no
    configuration and no network.

    \b
    Example:
      headwater demo --keep-running

    \b
    Exit codes:
      0  every record is as the broker delivered it
      4  a record differs
    """
    import tempfile

    _check_client()
    if directory is not None:
        if directory.exists():
            raise UsageError(f"{directory} already exists; name a directory that does not")
        directory.mkdir(parents=True)
        _play(directory.absolute(), keep_running, form)
    else:
        with tempfile.TemporaryDirectory(prefix="headwater-demo-") as temporary:
            _play(Path(temporary), keep_running, form)


def _check_client() -> None:
    try:
        import confluent_kafka  # noqa: F401  only to see whether it is installed
    except ImportError:
        raise UsageError("the demo needs confluent-kafka, which is not installed: pip install 'headwater[demo]'") from None


def _play(root: Path, keep_running: bool, form: str) -> None:
    import time

    from rich.console import Console
    from rich.padding import Padding

    from headwater import event_log
    from headwater.demo import Demo
    from headwater.event_log import LogFormat, LogLevel
    from headwater.options import program_options

    given = program_options()
    event_log.configure(LogLevel(given.log_level or "auto"), LogFormat(given.log_format or "auto"))
    width = None if sys.stdout.isatty() else 100
    console = Console(width=width, quiet=form != "table", highlight=False)
    stage = Demo(root, lambda title, total, sizes: progress(title, total, sizes=sizes))
    started = time.monotonic()
    console.print("[bold]Headwater[/] archives Kafka topics to object storage and restores them. Watch:\n")
    acts = []
    for act in stage.play():
        acts.append(asdict(act))
        console.print(f"  [green]✓[/] [bold]{act.title}[/] [dim]{duration_text(act.elapsed_s)}[/]")
        console.print(Padding(act.told, (0, 0, 0, 4)))
    elapsed_s = time.monotonic() - started
    if form == "json":
        import json

        click.echo(
            json.dumps({"acts": acts, "topics": [asdict(each) for each in _by_name(stage)], "elapsed_s": round(elapsed_s, 3)}, indent=1)
        )
    else:
        _conclude(console, stage, elapsed_s)
    if keep_running:
        _keep_running(stage)
    elif form == "table":
        say(f"\nTo look around in the recovered log yourself:\n\n  {_program()} demo --keep-running")


def _by_name(stage: "Demo") -> list[Any]:
    return sorted(stage.topics.values(), key=lambda each: (each.topic.startswith("__"), each.topic))


def _conclude(console: "Console", stage: "Demo", elapsed_s: float) -> None:
    """The last screen: a row for each topic, and the comparisons that prove the result."""
    console.print()
    emit("table", TOPICS, map(asdict, _by_name(stage)))
    console.print("bucket: records that were read from it, the others from the local log; sec: time to archive\n")
    emit("table", COMPARISONS, map(asdict, stage.comparisons))
    delivered, equal = (sum(getattr(each, name) for each in stage.comparisons) for name in ("delivered", "equal"))
    console.print(
        f"\n[green]✓[/] [bold]It worked:[/] {equal} of {delivered} records were read back equal to what the broker delivered, in offset, "
        f"timestamp, key, value, headers and leader epoch, before the loss and after it. {duration_text(elapsed_s)} in all."
    )


def _keep_running(stage: "Demo") -> None:
    import asyncio
    import signal

    async def serve() -> None:
        ended = asyncio.Event()
        for each in (signal.SIGTERM, signal.SIGINT):  # the loop is woken by a signal wherever it arrives; a lock could be missed or held
            asyncio.get_running_loop().add_signal_handler(each, ended.set)
        with stage.endpoint() as address:
            say(f"\nThe recovered log is served on {address}. Try, in another window of this directory:\n")
            for command in _hints(_program(), str(stage.config_file), address):
                say(f"  {command}")
            say("\nstatus shows each partition as recovered: all that was archived is there again, and a broker can start on it.")
            say("\nCtrl-C ends it.")
            await ended.wait()

    asyncio.run(serve())


def _hints(program: str, config_file: str, address: str) -> tuple[str, ...]:
    """Commands to copy, each on one line."""
    import shlex

    return (
        f"export HEADWATER_CONFIG={shlex.quote(config_file)}",
        f"{program} status",
        f"{program} status --partitions",
        f"{program} read orders.placed:0 --count 3",
        f"{program} verify --data",
        f"kcat -b {address} -L",
        f"kcat -C -b {address} -t recipes.zstd -o beginning -e",
    )


def _program() -> str:
    """How to call this program from the current directory."""
    import os
    import shlex
    import shutil

    if shutil.which("headwater"):
        return "headwater"
    return shlex.quote(min(sys.argv[0], os.path.relpath(sys.argv[0]), key=len))
