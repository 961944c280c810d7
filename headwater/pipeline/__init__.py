"""The archive in bulk: topics as Arrow tables and DataFrames, straight from the bucket."""
