"""Bounds of the scenarios, rules, and planted mistakes."""

from typing import NamedTuple


class Left(NamedTuple):
    """Bounds: how often each environment action may still happen."""

    write: int = 3
    elect: int = 2
    unclean: int = 1
    crash: int = 0
    fault: int = 0  # lost upload, lost reply, refused own success, delayed request
    claim: int = 3
    gc: int = 0
    release: int = 1
    retain: int = 0
    merge: int = 0
    trim: int = 0  # the archive's own retention lets its oldest entry go
    recreate: int = 0
    lag: int = 1  # the follower drops out of the in-sync set
    load: int = 0  # a reader loads the head
    inline: int = 0  # not spent: so many entries a head lists itself; 0: all, there are no pages
    leaf: int = 2  # not spent: so many entries, or references, a page holds
    refs: int = 0  # not spent: so many references to leaves a head lists itself; 0: all
    upgrade: int = 0  # agent A is ended, and starts as an old agent, or as a new one
    old: int = 0  # not spent: agent A begins as an old one, which knows no pages
    begun: int = 0  # not spent: so many records are archived at the beginning, each by itself (see protocol.first)
    lease: int = 0  # not spent: gc deletes what an earlier look found unreferenced
    stream: int = 0  # what follows is written while it fills: 1 while that is so
    switch: int = 0  # somebody sets or unsets `stream`
    take: int = 0  # somebody plans a recovery that takes the archive over from the cluster of both agents


RULES = {
    "pin": "DeleteRecords goes to the very broker whose history and log start were read, never where a look-up leads",
    "isr": "release only while every assigned replica is in sync (a stable condition, so the check cannot be overtaken)",
    "gapstop": "release stops below a gap whose offsets the broker still holds",
    "refill": "a gap is replaced as soon as the leader's log holds its offsets",
    "epoch": "the head keeps the highest leader epoch it has followed; a lower local epoch is behind",
    "stamp": "a claim names its broker's leader epoch; a new epoch claims again; release requires the head to name the current one",
    "diverge": "a history that lacks the head's newest epoch but has a newer one is cut, not behind",
    "revive": "a superseded entry that lies on the history again becomes live again",
    "ownkey": "a commit adds only objects whose key carries its own fence",
    "ownpage": "the same of pages: one that is left from a commit that did not come about is used again under the same fence only",
    "keepone": "the archive's own retention leaves the newest entry",
    "restart": "a cut that leaves nothing live moves the archive start back to the log start",
    "pending": "a stream is listed only by a commit on a head in which its name is pending",
    "owner": "a take-over puts another owner into the head; a broker starts where its end and leader epoch were those that were planned",
    "look": "gc remembers as unreferenced only what carries a lower fence than the one it has raised: nothing else stays unreferenced",
}
SCENARIOS = {
    "release": Left(write=2, elect=2, unclean=1, claim=2, release=1),
    "zombie": Left(write=2, elect=1, unclean=1, claim=3, release=1),
    "commit": Left(write=1, elect=1, unclean=0, claim=2, release=0, lag=0, crash=1, fault=1),
    "faults": Left(write=1, elect=0, unclean=0, claim=2, release=0, lag=0, crash=1, fault=2),
    "gc": Left(write=1, elect=1, unclean=0, claim=2, release=0, lag=0, fault=1, gc=1),
    "merge": Left(write=1, elect=1, unclean=0, claim=2, release=0, lag=0, gc=1, merge=1),
    "gap": Left(write=2, elect=1, unclean=0, claim=2, release=1, lag=1, retain=1),
    "flipflop": Left(write=2, elect=2, unclean=2, claim=2, release=1),
    "return": Left(write=1, elect=2, unclean=2, claim=3, release=0),
    "mixed": Left(write=1, elect=1, unclean=1, claim=2, release=1, crash=1, gc=1),
    "pages": Left(write=1, elect=1, unclean=1, claim=1, release=1, begun=3, inline=1),
    "pages_faults": Left(write=1, elect=0, unclean=0, claim=1, release=0, crash=1, fault=2, begun=2, inline=1),
    "pages_merge": Left(write=1, elect=1, unclean=0, claim=1, release=0, merge=1, fault=1, begun=3, inline=1),
    "pages_gap": Left(write=2, elect=1, unclean=0, claim=2, release=1, retain=1, inline=1),
    "pages_flipflop": Left(write=1, elect=2, unclean=2, claim=2, release=1, begun=3, inline=1),
    "pages_tree": Left(write=1, elect=1, unclean=1, claim=1, release=1, begun=4, inline=1, leaf=1, refs=1),
    "pages_gc": Left(write=1, elect=1, unclean=0, claim=1, release=0, fault=1, gc=1, begun=2, inline=1),
    "pages_gcs": Left(write=1, elect=1, unclean=0, claim=1, release=0, gc=2, begun=2, inline=1),
    "pages_revive": Left(write=0, elect=2, unclean=2, claim=2, release=0, gc=1, begun=3, inline=1),
    "pages_reader": Left(write=2, elect=0, unclean=0, claim=0, release=0, gc=2, merge=1, load=1, begun=2, inline=1),
    "pages_lease": Left(write=1, elect=1, unclean=0, claim=1, release=0, gc=2, merge=1, load=1, begun=2, inline=1, lease=1),
    "pages_trim": Left(write=1, elect=1, unclean=1, claim=1, release=1, lag=0, trim=3, begun=3, inline=1),
    "pages_old": Left(write=1, elect=2, unclean=0, claim=2, release=1, gc=1, begun=2, inline=1, old=1),
    "pages_claim": Left(write=0, elect=1, unclean=0, claim=2, release=0, fault=1, gc=1, crash=1, upgrade=1, begun=2, inline=1, old=1),
    "pages_upgrade": Left(write=2, elect=0, unclean=0, claim=0, release=0, gc=1, upgrade=3, begun=1, inline=1, old=1),
    "stream": Left(write=2, elect=1, unclean=1, claim=1, release=1, begun=1, stream=1),
    "stream_faults": Left(write=2, elect=0, unclean=0, claim=0, release=0, crash=1, fault=2, begun=1, stream=1),
    "stream_gc": Left(write=1, elect=1, unclean=0, claim=2, release=0, lag=0, fault=1, gc=1, begun=1, stream=1),
    "stream_switch": Left(write=2, elect=0, unclean=0, claim=0, release=1, crash=1, gc=1, switch=2, begun=1, stream=1),
    "take_over": Left(write=1, elect=1, unclean=0, claim=1, release=0, fault=1, lag=0, begun=1, take=1),
    "take_over_merge": Left(write=1, elect=0, unclean=0, claim=0, release=0, lag=0, fault=1, gc=1, merge=1, begun=2, take=1),
}


class Mutant(NamedTuple):
    what: str
    scenario: str  # that shows it
    without: str  # rules that must be absent with it


MUTANTS = {
    "as_designed_release": Mutant(
        "release as first written: read head, check lineage, then DeleteRecords by topic name", "release", "isr pin"
    ),
    "pin_without_isr": Mutant("the request goes only to the broker that was checked; in-sync set ignored", "release", "isr"),
    "isr_without_pin": Mutant("in-sync set required, but the request is routed by a leader look-up", "gap", "pin"),
    "release_across_gap": Mutant("as first written: a gap entry counts as covering, release crosses it", "gap", "gapstop"),
    "gap_not_refilled": Mutant("a gap may, but need not, be replaced by live entries", "gap", "refill"),
    "as_designed_claim": Mutant("as first written: nothing in the head recalls a newer epoch already followed", "zombie", "epoch stamp"),
    "release_unstamped": Mutant("release without the current leader epoch in the head", "flipdeep", "stamp"),
    "as_designed_behind": Mutant("as first written: a history without the head's newest epoch is behind", "flipflop", "diverge"),
    "no_revive": Mutant("superseded entries never come back", "flipflop", "revive"),
    "forget_superseded": Mutant("a cut drops the dead branch from the head at once", "flipflop", ""),
    "no_behind": Mutant("a stale broker's log is taken for the lineage", "release", ""),
    "no_cut": Mutant("dead branches are never cut", "release", ""),
    "release_no_lineage": Mutant("release compares offsets only", "release", "isr"),
    "release_from_control": Mutant("release trusts last_offset of the control log", "release", "isr"),
    "release_off_by_one": Mutant("last_offset taken for the next offset and incremented", "release", ""),
    "gc_no_raise": Mutant("gc deletes unreferenced objects without raising the fence", "gc", ""),
    "gc_any_fence": Mutant("gc raises the fence but deletes younger keys too", "gc", ""),
    "reuse_upload": Mutant("a fenced agent claims again and commits its earlier upload", "gc3", "ownkey"),
    "loser_deletes": Mutant("the loser of a commit deletes its object, having looked at the head only by version", "faults", ""),
    "refused_not_read_back": Mutant("a refused commit is repeated on the new head without reading it", "faults", ""),
    "commit_unconfirmed": Mutant("commit without confirming the upload", "faults", ""),
    "blind_put": Mutant("the head is put unconditionally", "commit", ""),
    "ignore_fence": Mutant("an agent that lost to a higher fence goes on with its own", "commit", ""),
    "fence_from_epoch": Mutant("the fence is the leader epoch", "gc", ""),
    "key_without_uid": Mutant("object keys carry base, length and fence only; an existing key is taken for one's own", "release", ""),
    "merge_deletes_first": Mutant("merge deletes the small objects before its commit", "merge", ""),
    "incarnations_mixed": Mutant("the head is found by topic name", "recreate", ""),
    "recreated_topic": Mutant("as designed AND with every fix: DeleteRecords carries no topic id", "recreate", ""),
    "release_foreign_fence": Mutant("release without its own fence in the head", "release", ""),
    "head_before_pages": Mutant("the head names a page that is written afterwards", "pages_faults", ""),
    "page_unconfirmed": Mutant("commit without confirming the page", "pages_faults", ""),
    "page_without_uid": Mutant(
        "a page's name carries its offsets and fence only; an existing one is taken for one's own", "pages_merge", ""
    ),
    "page_overwritten": Mutant("the same, and a page is put unconditionally", "pages_merge", ""),
    "loser_deletes_pages": Mutant("the loser of a commit deletes the pages it wrote", "pages_gc", ""),
    "reuse_page": Mutant("a page is used again under a later fence", "pages_gc", "ownpage"),
    "page_from_cache": Mutant("a list that was in a page before is named by that page again, not written", "pages_revive", "ownpage"),
    "gc_reads_head_only": Mutant("gc spares what the head lists itself", "pages_gc", ""),
    "gc_reads_live_only": Mutant("gc does not read the pages of superseded entries", "pages_revive", ""),
    "gc_skips_missing": Mutant("gc goes on without a page that it does not find", "pages_gcs", ""),
    "gc_skips_unreadable": Mutant("gc goes on without a page that it cannot read", "pages_gc", ""),
    "gc_young_pages": Mutant("gc deletes pages of its own and later fences too", "pages_gc", ""),
    "cut_in_head_only": Mutant("a dead branch is looked for in what the head lists itself", "pages", ""),
    "refill_in_head_only": Mutant("a gap in a page is not refilled", "pages_gap", ""),
    "release_by_reference": Mutant("what a page lists is released by its reference alone", "pages_gap", ""),
    "release_by_gap_mark": Mutant("the same, but references say where their first gap is", "pages", ""),
    "lineage_of_newest": Mutant("pages are read for lineage only when the oldest entry listed by the head is off the history", "pages", ""),
    "trim_everything": Mutant("the archive's retention takes the newest entry too", "pages_trim", "keepone"),
    "start_stays": Mutant("a cut never moves the archive start", "pages_trim", "restart"),
    "old_agent_commits": Mutant("an old agent takes what a head with pages lists itself for all", "pages_old", ""),
    "old_agent_restarts": Mutant(
        "an old agent looks at the format when it claims, not when it starts with its own fence", "pages_upgrade", ""
    ),
    "fence_by_number": Mutant(
        "an agent whose claim was refused takes another one's fence of the same number for its own", "pages_claim", ""
    ),
    "pages_without_format": Mutant("a head with pages does not say so in its format", "pages_old", ""),
    "reader_calls_it_damage": Mutant("a reader reports a page that is not found as damaged at once", "pages_reader", ""),
    "reader_reloads_once": Mutant("a reader that has loaded the head anew reports the next page that is not found", "pages_reader", ""),
    "reader_goes_on": Mutant("a reader that loads the head anew keeps what it has read of the old one", "pages_reader", ""),
    "no_lease": Mutant("gc deletes what it finds unreferenced for the first time", "pages_lease", ""),
    "as_designed_look": Mutant(
        "as first written: gc deletes what it saw unreferenced at an earlier look, whatever its fence was then", "pages_lease", "look"
    ),
    "stream_reused": Mutant("a stream is listed by an agent that was fenced and has claimed again", "stream_gc", "pending ownkey"),
    "gc_ignores_pending": Mutant("gc takes what is pending for an orphan once its own commit has raised the fence", "stream_gc", ""),
    "stream_same_name": Mutant("after a crash a stream goes on under the name that was assigned before", "stream_faults", ""),
    "stream_goes_ahead": Mutant("what follows a stream begins before that one is listed", "stream_faults", ""),
    "stream_grows_on": Mutant("a stream whose commit got no answer takes what was written since", "stream_faults", ""),
    "take_by_fence": Mutant("a take-over raises the fence and leaves the owner", "take_over", "owner"),
    "take_by_document": Mutant("a take-over changes headwater.json alone", "take_over", "owner"),
    "take_unplanned": Mutant("a broker starts whatever was archived between the plan and the take-over", "take_over", "owner"),
    "archive_above_hw": Mutant("plans up to the log end instead of the high watermark", "release", ""),
}
SCENARIOS_EXTRA = {
    "gc3": Left(write=1, elect=1, unclean=0, claim=3, release=0, lag=0, fault=1, gc=1),
    "flipdeep": Left(write=3, elect=2, unclean=2, claim=2, release=1),
    "recreate": Left(write=1, elect=0, unclean=0, claim=2, release=1, lag=0, recreate=1),
}
EXPECTED_QUIET = {"release_foreign_fence", "no_revive", "release_by_gap_mark", "lineage_of_newest"}  # implied by other rules, see README.md
