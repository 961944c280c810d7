"""The entry point of the command line. Everything heavy is imported by the command that needs it."""

import contextlib
import contextvars
import importlib
import sys
from typing import Any

import click

from headwater.command_operation import INTERRUPTED, with_operation
from headwater.options import ProgramOptions, log_options
from headwater.output import ReaderGone, discard_output, open_missing_streams, say
from headwater_core.errors import HeadwaterError, Unauthorised
from headwater_core.installation import check_packages
from headwater_core.redaction import redact

VERBS = {  # command: its module and function, its line in the list
    "demo": ("headwater.commands.demo:demo", "See it work: archive a log, read it back, lose it, recover it."),
    "agent": ("headwater.commands.agent:agent", "Archive and serve until stopped."),
    "archive": ("headwater.commands.archive:archive", "Archive sealed segments once, then exit."),
    "flush": ("headwater.commands.archive:flush", "Archive active segments too, once, then exit."),
    "read": ("headwater.commands.read:read", "Print records, from the archive and the local log."),
    "scan": ("headwater.commands.scan:scan", "Write archived topics to Parquet files."),
    "status": ("headwater.commands.status:status", "Show how much of each topic is archived, its lag and its state."),
    "explain": ("headwater.commands.explain:explain", "Explain why bytes are not archived, or where an offset is read."),
    "pause": ("headwater.commands.pause:pause", "Stop archiving topics until they are resumed."),
    "resume": ("headwater.commands.pause:resume", "Archive paused topics again."),
    "operations": ("headwater.commands.operations:operations", "List, show or cancel operations requested of the agent."),
    "verify": ("headwater.commands.verify:verify", "Check the archive against its manifests."),
    "recover": ("headwater.commands.recover:recover", "Rebuild a broker's log directory from the bucket."),
    "drill": ("headwater.commands.drill:drill", "Prove that a recovery works: restore a sample, read back, compare."),
    "gc": ("headwater.commands.gc:gc", "Apply retention to the archive; delete what nothing refers to."),
    "delete-before": ("headwater.commands.gc:delete_before", "Delete a partition's archived records below an offset."),
    "cache": ("headwater.commands.cache:cache", "Show or empty the local cache of archived data."),
    "jobs": ("headwater.commands.jobs:jobs", "Check or export a large archive, on this machine or on Spark."),
    "topics": ("headwater.commands.topics:topics", "List and show archived topics; change their settings."),
    "cluster": ("headwater.commands.cluster:cluster", "Show the Kafka cluster as the archive has it: users, ACLs, quotas, groups."),
    "namespaces": ("headwater.commands.namespaces:namespaces", "Set the read priority of all topics of a namespace."),
    "config": ("headwater.commands.config:config", "Check or show the configuration; have an agent reload it."),
}
EPILOG = """\b
Exit codes:
  0  ok                   5  temporary, retry     10  nothing to examine
  1  failure              6  not found           130  interrupted
  2  usage                7  fenced or locked
  3  partial              8  unauthorised
  4  verification failed
"""


class Verbs(click.Group):
    """Knows the name of each command and one line about it. Imports a command's module when it is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in VERBS:
            return None
        check_packages()
        module, _, name = VERBS[cmd_name][0].partition(":")
        command: click.Command = getattr(importlib.import_module(module), name)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(verb, about) for verb, (_, about) in VERBS.items()])


@click.group(cls=Verbs, epilog=EPILOG, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120})
@click.version_option(package_name="headwater", message="%(prog)s %(version)s")
@click.option(
    "--config", "config_file", metavar="FILE", help="Configuration file.  [default: $HEADWATER_CONFIG, else headwater.toml if there is one]"
)
@log_options
@click.pass_context
def headwater(ctx: click.Context, config_file: str | None, log_level: str | None, log_format: str | None) -> None:
    """Archive Kafka topics to object storage, serve them to Kafka clients, and rebuild a broker's log directory from the bucket.

    `headwater COMMAND --help` explains a command. Its examples work in the demo:

    \b
      headwater demo --keep-running
    """
    ctx.obj = ProgramOptions(config_file, log_level, log_format)


def run(arguments: list[str] | None = None) -> int:
    """Run one command and return its exit code. An error is one line on stderr."""
    return contextvars.copy_context().run(_run, arguments)


def _run(arguments: list[str] | None) -> int:
    try:
        result: Any = headwater.main(arguments, prog_name="headwater", standalone_mode=False)
        return result if isinstance(result, int) else 0
    except click.exceptions.Exit as wanted:
        return wanted.exit_code
    except ReaderGone:
        return 0
    except click.ClickException as error:
        with contextlib.suppress(OSError, ValueError):
            error.show()
        return error.exit_code
    except (click.Abort, KeyboardInterrupt):
        say(with_operation("interrupted"))
        return INTERRUPTED
    except HeadwaterError as error:
        say(with_operation(f"headwater: {redact(str(error))}"))
        return error.exit_code
    except OSError as error:
        say(with_operation(f"headwater: {error}"))
        return Unauthorised.exit_code if isinstance(error, PermissionError) else HeadwaterError.exit_code


def main() -> None:
    open_missing_streams()
    code = run()
    try:
        sys.stdout.flush()
    except (OSError, ValueError):  # reported already, or no reader is left; Python would fail with a code of its own
        discard_output()
        code = code or HeadwaterError.exit_code
    try:
        sys.stderr.flush()
    except (OSError, ValueError):  # messages that nobody reads change no exit code; Python would end with 120
        discard_output(sys.stderr)
    sys.exit(code)
