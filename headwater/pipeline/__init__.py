"""The archive in bulk: topics as Arrow tables and DataFrames, straight from the bucket."""

from headwater_core.installation import check_packages

check_packages()  # here, because everything passes here first: a user's import, and what a Spark worker unpickles
