"""Runs in memory, scanned."""

import io

from headwater_core.segments.run_scan import OpenTransaction, RunScan, scan_run


def scanned(raw: bytes, *, start: int = 0, end_offset: int | None = None, open_before: tuple[OpenTransaction, ...] = ()) -> RunScan:
    found = scan_run(io.BytesIO(raw), start=start, end=len(raw), open_before=open_before, end_offset=end_offset, where="test")
    assert found is not None
    return found
