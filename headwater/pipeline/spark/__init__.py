"""Archived topics in Spark: the data source, its streams, tables to export into."""

from headwater.pipeline.spark.version import check_version

check_version()  # before any module of the package imports what an older Spark lacks
