"""Archived topics in Spark: the data source, its streams, tables to export into."""
