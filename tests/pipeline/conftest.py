"""The Spark session, for the tests that ask for it."""

from tests.pipeline.spark import spark, spark_context

__all__ = ["spark", "spark_context"]
