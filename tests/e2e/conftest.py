"""The stage of the verbs, here too."""

from tests.headwater.conftest import stage

__all__ = ["stage"]
