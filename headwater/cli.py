"""The command line's front door. Everything heavy is imported by the verb that needs it."""

import contextlib
import importlib
import sys
from typing import Any

import click

from headwater.options import ProgramOptions, log_options
from headwater.output import ReaderGone, discard_output, open_missing_streams, say
from headwater_core.errors import HeadwaterError, Unauthorised
from headwater_core.installation import check_packages

INTERRUPTED = 130
VERBS = {  # verb: where it lives, what it does
    "demo": ("headwater.commands.demo:demo", "The whole story on this machine: archive, lose, read back, recover, compare."),
    "agent": ("headwater.commands.agent:agent", "Archive and serve until stopped."),
    "archive": ("headwater.commands.archive:archive", "One pass now over sealed segments, then exit."),
    "flush": ("headwater.commands.archive:flush", "Like archive, and the committed tail of active segments too."),
    "read": ("headwater.commands.read:read", "Print records, from the archive and the local log alike."),
    "scan": ("headwater.commands.scan:scan", "Archived topics to Parquet files, straight from the bucket."),
    "status": ("headwater.commands.status:status", "How far each partition is archived, how far behind, and why."),
    "verify": ("headwater.commands.verify:verify", "Check the archive against its manifests."),
    "recover": ("headwater.commands.recover:recover", "Rebuild log directories from nothing but the bucket."),
    "cache": ("headwater.commands.cache:cache", "Show or empty the local cache of hydrated chunks."),
    "jobs": ("headwater.commands.jobs:jobs", "Bulk work over the archive, here or on Spark: scrub, export."),
    "topics": ("headwater.commands.topics:topics", "List, show and set archived topics."),
    "config": ("headwater.commands.config:config", "Check or show the configuration."),
}
EPILOG = """\b
Exit codes:
  0  ok                 5  temporary, retry      10  nothing was examined
  1  failure            6  not found            130  interrupted
  2  usage              7  fenced or locked
  3  partial            8  unauthorised
  4  verification failed
"""


class Verbs(click.Group):
    """Knows every verb's name and one line about it; imports a verb's module when it is called."""

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
    "--config", "config_file", metavar="FILE", help="Configuration (default: $HEADWATER_CONFIG, else headwater.toml if it is there)."
)
@log_options
@click.pass_context
def headwater(ctx: click.Context, config_file: str | None, log_level: str | None, log_format: str | None) -> None:
    """Archives partitioned logs to object storage, serves them back, rebuilds them from nothing but the bucket."""
    ctx.obj = ProgramOptions(config_file, log_level, log_format)


def run(arguments: list[str] | None = None) -> int:
    """Run one verb and return the exit code. What went wrong is one line on stderr."""
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
        say("interrupted")
        return INTERRUPTED
    except HeadwaterError as error:
        say(f"headwater: {error}")
        return error.exit_code
    except OSError as error:
        say(f"headwater: {error}")
        return Unauthorised.exit_code if isinstance(error, PermissionError) else HeadwaterError.exit_code


def main() -> None:
    open_missing_streams()
    code = run()
    try:
        sys.stdout.flush()
    except (OSError, ValueError):  # reported already, or no reader is left; Python would fail with a code of its own
        discard_output()
        code = code or HeadwaterError.exit_code
    sys.exit(code)
