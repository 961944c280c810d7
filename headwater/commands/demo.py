"""`headwater demo`."""

import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from headwater.columns import as_size
from headwater.output import progress, say
from headwater.units import duration_text
from headwater_core.errors import UsageError

if TYPE_CHECKING:
    from rich.console import Console

    from headwater.demo import Demo


@click.command()
@click.option("--keep-running", is_flag=True, help="Leave the endpoint up afterwards, and say what to try.")
@click.option("--dir", "directory", type=click.Path(path_type=Path), help="Play in this directory, which is to be new, and keep it.")
@click.option("-o", "--output", "form", type=click.Choice(["table", "json"]), default="table", show_default=True, help="How to tell it.")
def demo(keep_running: bool, directory: Path | None, form: str) -> None:
    """Archive a log that a real Kafka broker wrote, drop it locally, read it back, lose everything, recover it, compare.

    Needs no set-up, no service and no network. Exit code 4 if anything read differs from what the broker once delivered.
    """
    import tempfile

    _check_client()
    if directory is not None:
        if directory.exists():
            raise UsageError(f"{directory} is there already; the demo wants a directory of its own")
        directory.mkdir(parents=True)
        _play(directory.absolute(), keep_running, form)
    else:
        with tempfile.TemporaryDirectory(prefix="headwater-demo-") as temporary:
            _play(Path(temporary), keep_running, form)


def _check_client() -> None:
    try:
        import confluent_kafka  # noqa: F401  only to see whether it is there
    except ImportError:
        raise UsageError("the demo reads with confluent-kafka, which is not installed: pip install 'headwater[demo]'") from None


def _play(root: Path, keep_running: bool, form: str) -> None:
    import time

    from rich.console import Console
    from rich.padding import Padding

    from headwater import logs
    from headwater.demo import Demo
    from headwater.logs import LogFormat, LogLevel
    from headwater.options import program_options

    given = program_options()
    logs.configure(LogLevel(given.log_level or "auto"), LogFormat(given.log_format or "auto"))
    width = None if sys.stdout.isatty() else 100
    console = Console(width=width, quiet=form != "table", highlight=False)
    stage = Demo(root, lambda title, total, sizes: progress(title, total, sizes=sizes))
    started = time.monotonic()
    console.print("[bold]Headwater[/] archives partitioned logs to object storage and brings them back. Watch:\n")
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
    _table(console, stage)
    console.print(f"Every record was compared in every field, twice, under both isolation levels. {duration_text(elapsed_s)} in all.")
    if keep_running:
        _keep_running(stage)


def _by_name(stage: "Demo") -> list[Any]:
    return sorted(stage.topics.values(), key=lambda each: (each.topic.startswith("__"), each.topic))


def _table(console: "Console", stage: "Demo") -> None:
    from rich import box
    from rich.table import Table

    table = Table(
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        padding=0,
        caption="bucket: records read from there, the others from the local log; sec: to archive",
        caption_justify="left",
    )
    table.add_column("topic", no_wrap=True)
    for title in ("offsets", "records", "bucket", "objects", "archived", "released", "sec"):
        table.add_column(title, justify="right", no_wrap=True)
    for each in _by_name(stage):
        counts = map(str, (each.offsets, each.records, each.from_archive, each.objects))
        sizes = (as_size(each.archived_bytes), as_size(each.released_bytes), f"{each.archived_s:.2f}")
        table.add_row(each.topic, *counts, *sizes, style="dim" if each.topic.startswith("__") else "")
    console.print(table)


def _keep_running(stage: "Demo") -> None:
    import shutil
    import signal
    import threading

    program = "headwater" if shutil.which("headwater") else sys.argv[0]
    stopped = threading.Event()
    for each in (signal.SIGTERM, signal.SIGINT):
        signal.signal(each, lambda *_: stopped.set())
    with stage.endpoint() as address:
        say(
            f"""
The recovered log is served on {address}. Try, in another window:

  kcat -b {address} -L
  kcat -b {address} -t recipes.zstd -o beginning -e
  {program} status --config {stage.config_file}
  {program} read orders.placed:0 --isolation read_committed -o jsonl --config {stage.config_file}
  {program} verify --data --config {stage.config_file}

Ctrl-C ends it."""
        )
        stopped.wait()
