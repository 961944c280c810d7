"""Which partitions have data in the bucket, whatever its manifests say: all of them may be lost."""

from collections.abc import Iterator

from headwater_core.objectstore.store import ObjectStore
from manifests import keys

NAMES_MAX = 1000  # read of one partition before the listing starts again after it: a page of S3 has been paid for by then
_AFTER_NAMES = "z"  # sorts after every data object's name, which begins with a digit


def data_prefixes(store: ObjectStore) -> Iterator[str]:
    """The prefix of each partition's data objects, once, without reading the names of all of them."""
    prefix, names, after = "", 0, ""
    while True:
        for info in store.list(keys.DATA, start_after=after):
            folder = info.key[: info.key.rindex("/") + 1]
            if keys.parse_data(info.key) is None or keys.parse_data_prefix(folder) is None:
                continue  # in no partition's folder: after it others may lie
            if folder != prefix:
                prefix, names = folder, 0
                yield prefix
            names += 1
            if names == NAMES_MAX:
                after = prefix + _AFTER_NAMES
                break
        else:
            return
