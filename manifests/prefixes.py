"""Which partitions have data in the bucket, whatever its manifests say: all of them may be lost."""

from collections.abc import Iterator
from itertools import chain

from headwater_core.objectstore.store import ObjectStore
from manifests import keys

NAMES_MAX = 1000  # read of one partition before the listing starts again after it: a page of S3 has been paid for by then
_AFTER_NAMES = "z"  # sorts after every data object's name, and every fence, which begin with a digit


def data_prefixes(store: ObjectStore) -> Iterator[str]:
    """The prefix of each partition's data objects, once, without reading the names of all of them; that of a partition which only has
    objects that were written while they filled, too."""
    found = set[str]()
    for prefix in chain.from_iterable(_prefixes(store, root) for root in keys.ROOTS):
        if prefix not in found:
            found.add(prefix)
            yield prefix


def _prefixes(store: ObjectStore, root: str) -> Iterator[str]:
    prefix, names, after = "", 0, ""
    while True:
        for info in store.list(root, start_after=after):
            home = keys.home(info.key)
            if keys.parse_object(info.key) is None or keys.parse_data_prefix(home) is None:
                continue  # in no partition's folder: after it others may lie
            if home != prefix:
                prefix, names = home, 0
                yield prefix
            names += 1
            if names == NAMES_MAX:
                after = root + prefix.removeprefix(keys.DATA) + _AFTER_NAMES
                break
        else:
            return
