"""PIP-76's layout: one object for what several local segments hold, written part by part while they grow (docs/formats/streaming.md)."""

from headwater_core.layouts.streaming.offload_buffer import EntryPosition, FileExtent, LedgerEntries, OfferResult, OffloadBudget
from headwater_core.layouts.streaming.offload_handle import OffloadHandle, OffloadResult
from headwater_core.layouts.streaming.stream_objects import NewStream
from headwater_core.layouts.streaming.streaming_layout import StreamingLayout
from headwater_core.layouts.streaming.streaming_offloader import StreamingOffloader

__all__ = [
    "EntryPosition",
    "FileExtent",
    "LedgerEntries",
    "NewStream",
    "OfferResult",
    "OffloadBudget",
    "OffloadHandle",
    "OffloadResult",
    "StreamingLayout",
    "StreamingOffloader",
]
