"""What Spark says of a failure, in one line: it wraps what a task raised in hundreds, the task's own words among them."""

import re
from collections.abc import Iterator
from contextlib import contextmanager

from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException

from headwater_core import errors
from headwater_core.errors import HeadwaterError

SPARK_ERRORS = (PySparkException, Py4JError)
_RAISED = re.compile(r"^(?:\w+\.)*errors\.(\w+): (.*)$", re.MULTILINE)  # the end of a Python traceback
_LINE_MAX = 500


@contextmanager
def as_headwater_errors() -> Iterator[None]:
    """Raises Spark's errors as HeadwaterErrors: the one that a task raised, of its own class, where there is one."""
    try:
        yield
    except SPARK_ERRORS as error:
        raise named_error(str(error)) from error


def named_error(said: str) -> HeadwaterError:
    for name, message in reversed(_RAISED.findall(said)):
        kind = getattr(errors, name, None)
        if isinstance(kind, type) and issubclass(kind, HeadwaterError):
            found = kind.__new__(kind)  # its message is all that came this way
            Exception.__init__(found, message)
            return found
    lines = (line.removeprefix(": ").strip() for line in said.splitlines() if not line.startswith("An error occurred while calling"))
    return HeadwaterError(f"Spark: {next(filter(None, lines), 'failed without a word')[:_LINE_MAX]}")
