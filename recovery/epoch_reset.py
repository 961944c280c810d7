"""Leader epochs of a log that continues in a new topic: that topic begins at epoch 0, so no batch may claim a later one.

A consumer that has seen an epoch, in a batch or in a committed offset, waits without end for a leader of an earlier one
(docs/formats/kafka-recovery.md, *Into a running cluster*). The epoch's four bytes lie before what a batch's CRC covers.
"""

import mmap
import os
from contextlib import suppress
from pathlib import Path

from headwater_core.files import disk_errors
from headwater_core.segments.batch_walk import headers
from headwater_core.segments.batches import check_batch

EPOCH = slice(12, 16)  # of a batch: base offset (8) and length (4) come before


def reset_epochs(path: Path) -> int:
    """Let every batch of this segment have leader epoch 0, durably; return how many were changed. Every CRC is verified on the way. May be
    repeated after any interruption: nothing else is changed, and what a crash left half done is done then.

    Raises CorruptData, TruncatedData for a file that is not whole sound batches, and what `disk_errors` makes of errors.
    """
    changed = 0
    with disk_errors(path), path.open("r+b") as file:
        size = os.fstat(file.fileno()).st_size
        if not size:  # nothing can be mapped
            return 0
        content = mmap.mmap(file.fileno(), size)
        try:
            view = memoryview(content)
            for position, header in headers(file, 0, size, where=str(path)):
                check_batch(view, position, where=str(path))
                if header.leader_epoch:
                    view[position + EPOCH.start : position + EPOCH.stop] = bytes(4)
                    changed += 1
            view.release()
            content.flush()
        finally:
            with suppress(BufferError):  # the traceback of an error still has parts of it
                content.close()
        os.fsync(file.fileno())
    return changed
