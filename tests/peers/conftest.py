"""Fixtures that several files here use."""

from tests.peers.aborts import answers

__all__ = ["answers"]
