"""Errors for the operator. Retries of clients do not flood the log: repeated events are counted."""

import structlog

from headwater_core.errors import HeadwaterError, NotFound, OffsetOutOfRange, TransientError

log = structlog.get_logger()


def report_failure(api: str, partition: str, error: Exception) -> None:
    """Log an error, unless it is the client's own mistake: a problem that resolves itself as a warning, all others for a person. An
    exception that is no HeadwaterError is a defect, and comes with its traceback."""
    if isinstance(error, OffsetOutOfRange | NotFound):
        return
    if isinstance(error, TransientError):
        log.warning("request_failed", api=api, partition=partition, reason=str(error))
    elif isinstance(error, HeadwaterError):
        log.error("request_failed", api=api, partition=partition, reason=str(error))
    else:
        log.error("request_failed", api=api, partition=partition, reason=repr(error), exc_info=error)
