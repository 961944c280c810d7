"""Checks of the archive against its manifests: heads, objects, and objects that no head lists."""
