"""Fixtures of all tests, the order of tests, and how Hypothesis draws its examples."""

import os
from pathlib import Path

import pytest
import structlog
from _pytest.nodeid import coerce_node_id
from hypothesis import settings

from manifests import page_limits
from tests.manifests import trees

pytest_plugins = ["tests.s3server"]

# The machine is shared, and some examples sync files: no deadline. A commit passes or fails by what is in it, so its examples are the same
# each time; new ones are drawn in the soak.
settings.register_profile("headwater", deadline=None, derandomize=True, max_examples=50)
settings.register_profile("soak", deadline=None, max_examples=2_000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "headwater"))

# kio makes Hypothesis strategies wherever that is installed, and these a table of all characters, which is kept in the working directory:
# two seconds of CPU for each agent that a test starts in a directory of its own.
os.environ.setdefault("HYPOTHESIS_STORAGE_DIRECTORY", str(Path(__file__).parents[1] / ".hypothesis"))

if os.environ.get("DEEP_TREES"):  # every manifest that a test commits is a tree of pages, three levels deep with a dozen entries
    page_limits.LIMITS = trees.DEEP


@pytest.fixture(autouse=True)
def unconfigured_log() -> None:
    """A command that ran in this process, in another test or in a fixture of a module, has set what is logged and where."""
    structlog.reset_defaults()


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Slow tests start first, so that no process is left with one at the end. Tests of one xdist_group run in one process: they share a
    Spark session, a broker, or what the simulation's seeds have shown.

    xdist 3.8 means to group them itself, by the end of a test's id, and looks for that id where pytest 9.2 no longer keeps it.
    """
    items.sort(key=lambda item: item.get_closest_marker("slow") is None)
    if config.getoption("loadgroup", default=False):
        for item in items:
            groups = {str(mark.args[0]) for mark in item.iter_markers("xdist_group")}
            if groups:
                item._id = coerce_node_id(f"{item.nodeid}@{'_'.join(sorted(groups))}")
