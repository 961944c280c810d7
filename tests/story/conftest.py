"""The stage of the verbs, for whole stories."""

from tests.headwater.conftest import stage

__all__ = ["stage"]
