"""A broker's log directories, read-only."""

from headwater_core.segments.local_log import Glimpse
from headwater_core.segments.log_dirs.log_directory import parse_directory_name
from headwater_core.segments.log_dirs.log_dirs import Listing, LogDirs, Roster, Survey
from headwater_core.segments.log_dirs.partition_directory import LocalPartition

__all__ = ["Glimpse", "Listing", "LocalPartition", "LogDirs", "Roster", "Survey", "parse_directory_name"]
