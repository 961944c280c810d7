"""Archived records as Arrow batches: what to read, where it lies, reading and decoding it."""
