"""The Spark session, for the tests that ask for it; they are slow, and all run in one process."""

import pytest

from tests.headwater.pipeline.spark_fixtures import spark, spark_context

__all__ = ["spark", "spark_context"]


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "spark_context" in getattr(item, "fixturenames", ()):
            item.add_marker("slow")
            item.add_marker(pytest.mark.xdist_group("spark"))
