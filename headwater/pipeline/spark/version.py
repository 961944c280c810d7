"""The oldest Spark that has what the package needs of it."""

import re

from headwater_core.errors import UsageError

OLDEST = (4, 1)  # filters and Arrow batches of Python data sources


def check_version() -> None:
    """Raises UsageError in an older Spark. Where none is installed, who imports it says so."""
    try:
        from pyspark.version import __version__
    except ModuleNotFoundError:
        return
    match = re.match(r"(\d+)\.(\d+)", __version__)
    if match and (int(match[1]), int(match[2])) < OLDEST:
        raise UsageError(f"Headwater needs Spark {'.'.join(map(str, OLDEST))} or newer, this is {__version__}")
