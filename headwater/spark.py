"""Archived topics in Spark: `format("headwater")`, where Spark does not find it by itself (docs/spark.md)."""

from typing import TYPE_CHECKING

try:
    from headwater.pipeline.spark.data_source import HeadwaterSource
except ModuleNotFoundError as error:
    message = f'headwater.spark needs {error.name}, which is not installed: pip install "headwater[spark]"'
    raise ModuleNotFoundError(message, name=error.name) from None

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["HeadwaterSource", "register"]


def register(spark: "SparkSession") -> None:
    """Make `format("headwater")` known to this session. Repeating it does no harm."""
    spark.dataSource.register(HeadwaterSource)
