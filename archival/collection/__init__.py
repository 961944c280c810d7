"""Trimming an archive, and deleting what nothing refers to any more."""
