"""An operation that may be requested of the agent: a name, its arguments, and the work as rows."""

from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any

import msgspec

from headwater.admin.operations import RunningOperation

Rows = Generator[dict[str, Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Verb:
    """
    summary    a sentence, for the description of the API
    arguments  of a request: unknown ones are refused, wrong ones by an exception of msgspec or UsageError
    rows       does it, and yields a row for each part that is done; ends soon, by TransientError, when the operation is cancelled
    sums       fields of rows that are summed up as the operation's results
    unit       what a row is about
    is_look    it changes nothing: its rows are all there is of it, and it is forgotten at its end
    is_short   it waits for no long work of others, and has threads that only such work takes
    is_local   requested over the socket alone: the token of the port lies with those who scrape metrics, and this deletes records
    """

    name: str
    summary: str
    arguments: type[msgspec.Struct]
    rows: Callable[[Any, RunningOperation], Rows]
    sums: tuple[str, ...] = ()
    unit: str = "partitions"
    is_look: bool = False
    is_short: bool = False
    is_local: bool = False
