"""PIP-17's layout: one object with its index in front and whole batches in blocks of 64 MiB (docs/formats/blocks.md)."""

from headwater_core.layouts.blocks.blocks_layout import BlocksLayout

__all__ = ["BlocksLayout"]
