"""Fixtures that several files here use."""

from tests.peers.aborts import answers
from tests.peers.lenient_s3 import lenient_environ, lenient_s3

__all__ = ["answers", "lenient_environ", "lenient_s3"]
