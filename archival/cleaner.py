"""What the log cleaner of a compacted topic means for its archive. Values in, decisions out.

A log is clean below its cleaner checkpoint: no key has two records there. Runs are archived one after the other, and the cleaner
goes on meanwhile, so that runs which were clean one by one need not be clean together. A head therefore says up to where all that
it lists is clean as one (`Head.clean_to`): every run was read when the checkpoint had got there.
"""

from archival.lineage import written_epochs
from manifests.head import Entry, Head
from model.epochs import EpochHistory
from segments.log import LocalLog


def clean_below(log: LocalLog) -> int:
    """The checkpoint, the first dirty offset. One beyond the active segment's base is disbelieved, as the broker does."""
    if log.cleaned_to is None or not log.segments or log.cleaned_to > log.segments[-1].base_offset:
        return 0
    return log.cleaned_to


def clean_with(head: Head, *looks: LocalLog) -> int:
    """`Head.clean_to` once a run that was read between `looks` is listed too."""
    read = min(map(clean_below, looks))
    return min(head.clean_to, read) if holds_records(head) else read


def clean_under(history: EpochHistory, head: Head) -> int:
    """`Head.clean_to` once `history` is followed, that of a log in a newer leader epoch.

    What another leader wrote, from its first offset on, may have taken the place of what was clean. A history without the epoch
    that the head follows does not say where it left that one; only what is archived was compared with it.
    """
    newer = next((first for epoch, first in history.steps if epoch > head.leader_epoch), None)
    if newer is None:
        return head.clean_to
    return min(head.clean_to, newer if head.leader_epoch in written_epochs(history) else head.next_offset)


def is_clean(entry: Entry, clean_to: int) -> bool:
    return entry.next_offset <= clean_to


def holds_records(head: Head) -> bool:
    return any(not entry.gap for entry in head.entries)
