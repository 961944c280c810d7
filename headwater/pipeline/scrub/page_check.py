"""Reads every page that a head refers to: the entries that are sound, and what is wrong with the rest."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from msgspec.structs import replace

from headwater.pipeline.scrub.findings import Finding, Kind
from headwater_core.errors import ENVIRONMENT_ERRORS, HeadwaterError
from headwater_core.objectstore.store import ObjectInfo
from manifests.entry import Entry
from manifests.entry_tree import EntryBag
from manifests.head import Head
from manifests.page import page_key


@dataclass(slots=True)
class PageCheck:
    """The pages of one head. Raises TransientError when another head has replaced it meanwhile, and what the store raises.

    flat      the head with all entries that could be read at hand
    named     the keys of all pages that were referred to by something sound
    findings  a page that is damaged or missing hides what lies below it
    """

    head: Head
    findings: list[Finding] = field(default_factory=list)
    named: set[str] = field(default_factory=set)
    flat: Head = field(init=False)

    def __post_init__(self) -> None:
        entries, superseded = (tuple(self._entries(bag)) for bag in (self.head.entries, self.head.superseded))
        self.flat = replace(self.head, entries=entries, superseded=[each for each in superseded if not each.gap])

    def orphans(self, listed: Mapping[str, ObjectInfo]) -> list[ObjectInfo]:
        """Pages of `listed` that nothing refers to; none while a page is damaged, which may refer to them."""
        return [] if self.findings else [info for key, info in listed.items() if key not in self.named]

    def _entries(self, bag: EntryBag) -> list[Entry]:
        found: list[Entry] = []
        for item in bag.items:
            if isinstance(item, Entry):
                found.append(item)
                continue
            key = page_key(self.head.partition_id, item)
            self.named.add(key)
            try:
                below = bag.pages.read(item)
            except ENVIRONMENT_ERRORS:
                raise
            except HeadwaterError as error:
                problem = f"{item.entries} entries, offsets {item.base_offset} to {item.last_offset}, are hidden: {error}"
                self.findings.append(
                    Finding(kind=Kind.PAGE, topic=self.head.topic, partition=self.head.partition, key=key, problem=problem)
                )
                continue
            found += self._entries(EntryBag(below, bag.pages))
        return found
