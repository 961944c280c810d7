"""Checks of the archive against its manifests: every head, every object, what nothing lists."""
