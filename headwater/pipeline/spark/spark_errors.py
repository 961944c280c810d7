"""One line for a failure of Spark, which wraps the error of a task in hundreds of lines."""

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
    """Raises Spark's errors as HeadwaterErrors: if a task raised one, an error of the same class and message."""
    try:
        yield
    except SPARK_ERRORS as error:
        raise named_error(str(error)) from error


def named_error(text: str) -> HeadwaterError:
    for name, message in reversed(_RAISED.findall(text)):
        kind = getattr(errors, name, None)
        if isinstance(kind, type) and issubclass(kind, HeadwaterError):
            found = kind.__new__(kind)  # only its message is known here
            Exception.__init__(found, message)
            return found
    lines = (line.removeprefix(": ").strip() for line in text.splitlines() if not line.startswith("An error occurred while calling"))
    return HeadwaterError(f"Spark: {next(filter(None, lines), 'failed without a message')[:_LINE_MAX]}")
