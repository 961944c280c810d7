"""Every way to damage a bucket that the matrix has: one thing each, to something that nothing was done to yet."""

import gzip
import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from random import Random

from msgspec.structs import replace as replace_fields

from headwater_core.errors import HeadwaterError
from headwater_core.layouts import open_layout
from headwater_core.objectstore.digest import digest_of
from manifests import keys
from manifests.cluster_list import decode_cluster_list
from manifests.cluster_snapshot import SnapshotFacts, pack_snapshot
from manifests.topic import Owner, TopicManifest, decode_current, decode_owner, encode_current, encode_owner, encode_topic
from tests.recovery.damaged_bucket import RECORD, ArchivedSnapshot, DamagedBucket, says
from tests.recovery.hostile_documents import OTHER_TOPIC, WORDS, entry_words, page_first_words, poisoned, resealed
from tests.recovery.plans import CLUSTER

Way = Callable[[DamagedBucket], bool]
"""Does it; False when there was nothing to do it to."""

WAYS: dict[str, Way] = {}


def way(do: Way) -> Way:
    WAYS[do.__name__] = do
    return do


# Data objects, and what lies beside them


@way
def data_changed(bucket: DamagedBucket) -> bool:
    """An object that holds the run's own bytes, or a part of them."""
    _, entry = bucket.run()
    key, _ = bucket.random.choice(open_layout(entry.layout).data_objects(entry))
    raw = bucket.take(key)
    if raw is None:
        return False
    changed = bucket.changed(raw)
    bucket.put(key, changed)
    bucket.harmed.add(entry.key)
    is_wrapped = entry.layout in ("blocks", "streaming")  # not every byte of it is of the run
    if not is_wrapped or changed is None or len(changed) < len(raw) or not any(changed):
        bucket.lose(entry)
    return True


@way
def data_swapped(bucket: DamagedBucket) -> bool:
    """Two objects, each in the other's place."""
    (_, one), (_, other) = bucket.run(), bucket.run()
    if not _swap(bucket, one.key, other.key):
        return False
    bucket.lose(one)
    bucket.lose(other)
    return True


@way
def data_extra(bucket: DamagedBucket) -> bool:
    """What no head lists: an upload that was not finished, or a copy by another hand."""
    place, entry = bucket.run()
    base = bucket.random.choice((entry.base_offset, entry.next_offset + 1000))
    key = keys.data(bucket.logs[place].identity, base, base + 5, bucket.random.randint(1, 9), _uid(bucket.random))
    copy = bucket.store.get(entry.key)[0] if bucket.holds(entry.key) else b""
    bucket.put(key, bucket.random.choice((b"", b"rubbish", bucket.random.randbytes(200), copy)))
    return True


@way
def beside_changed(bucket: DamagedBucket) -> bool:
    """What a layout has beside them: an index, or what says where the run lies."""
    place, entry = bucket.run()
    data = {key for key, _ in open_layout(entry.layout).data_objects(entry)}
    others = [key for key in bucket.logs[place].objects[entry.key] if key not in data]
    raw = bucket.take(key := bucket.random.choice(others)) if others else None
    if raw is None:
        return False
    bucket.put(key, bucket.changed(raw))
    bucket.harmed.add(entry.key)
    return True


@way
def index_changed(bucket: DamagedBucket) -> bool:
    """Nothing that is recovered rests on it: these runs have no transactions."""
    _, entry = bucket.run()
    raw = bucket.take(entry.index_key) if entry.index_key and entry.layout == "segment" else None
    if raw is not None:
        bucket.put(entry.index_key, bucket.changed(raw))
        bucket.harmed.add(entry.key)
    return raw is not None


@way
def index_swapped(bucket: DamagedBucket) -> bool:
    (_, one), (_, other) = bucket.run(), bucket.run()
    if {one.layout, other.layout} != {"segment"} or not _swap(bucket, one.index_key, other.index_key):
        return False
    bucket.harmed |= {one.key, other.key}
    return True


@way
def index_extra(bucket: DamagedBucket) -> bool:
    """Of an object that is not there, or beside one that has none of that name."""
    place, entry = bucket.run()
    data = keys.data(bucket.logs[place].identity, entry.base_offset, entry.last_offset, 1, _uid(bucket.random))
    bucket.put(keys.index(data), bucket.random.randbytes(50))
    return True


# Pages


@way
def page_changed(bucket: DamagedBucket) -> bool:
    found = bucket.page()
    raw = bucket.take(found[2]) if found else None
    if found is None or raw is None:
        return False
    place, ref, key = found
    bucket.touch(bucket.logs[place].head_key)
    bucket.put(key, bucket.changed(raw))
    bucket.lose_page(place, ref)
    return True


@way
def page_swapped(bucket: DamagedBucket) -> bool:
    one, other = bucket.page(), bucket.page()
    if one is None or other is None or not _swap(bucket, one[2], other[2]):
        return False
    for place, ref, _ in (one, other):
        bucket.lose_page(place, ref)
    bucket.touch(*(bucket.logs[place].head_key for place, _, _ in (one, other)))
    return True


@way
def page_extra(bucket: DamagedBucket) -> bool:
    """As failed commits leave them."""
    found = bucket.page()
    if found is None or not bucket.holds(found[2]):
        return False
    place, ref, key = found
    name = keys.page(bucket.logs[place].identity, ref.base_offset, ref.last_offset, ref.level, ref.fence, _uid(bucket.random))
    bucket.put(name, bucket.random.choice((bucket.store.get(key)[0], b"rubbish", b"")))
    return True


@way
def page_hostile(bucket: DamagedBucket) -> bool:
    """The head lists its very bytes."""
    found, random = bucket.page(), bucket.random
    if found is None or bucket.is_touched(found[2]):
        return False
    place, ref, key = found
    log = bucket.logs[place]
    raw, head = bucket.take(key), bucket.take(log.head_key)
    assert raw is not None
    assert head is not None
    first, *items = [json.loads(line) for line in gzip.decompress(raw).splitlines()]
    listed = random.choice(items)
    words = page_first_words(first, random) if "level" in listed or random.random() < 0.4 else entry_words(listed, random)
    where, what, value = random.choice(words)
    where[what] = value
    lines = b"\n".join(json.dumps(each).encode() for each in (first, *items))
    packed = random.choice((gzip.compress(lines + b"\n"), gzip.compress(lines)[:-9], gzip.compress(b"[" * 100_000), b"\x1f\x8b"))
    body = json.loads(head)
    for each in body["pages"]:
        if each["uid"] == ref.uid:
            each["size_bytes"], each["digest"] = len(packed), digest_of(packed)
    bucket.put(key, packed)
    bucket.put(log.head_key, resealed(body))
    bucket.doubtful.add(place)
    bucket.uncertain[place] = {*bucket.listed_on(place, ref)}
    return True


# Heads


@way
def head_changed(bucket: DamagedBucket) -> bool:
    place = bucket.place()
    key = bucket.logs[place].head_key
    raw = bucket.take(key)
    if raw is None:
        return False
    changed = bucket.changed(raw)
    if changed is None or says(changed) != says(raw):
        bucket.put(key, changed)
        bucket.empty.add(place)
    return True


@way
def head_swapped(bucket: DamagedBucket) -> bool:
    """Each in the other's place: another partition's, another topic's, or another incarnation's."""
    one, other = bucket.place(), bucket.place()
    if not _swap(bucket, bucket.logs[one].head_key, bucket.logs[other].head_key):
        return False
    bucket.empty |= {one, other}
    return True


@way
def head_extra(bucket: DamagedBucket) -> bool:
    """Of a partition that there never was."""
    label = bucket.label()
    life = bucket.lives[label]
    count = life.partitions + bucket.random.randint(0, 2)
    source = bucket.logs[label, 0]
    key = keys.head(replace(source.identity, partition=count))
    bucket.put(key, bucket.random.choice((source.heads[-1][0], b"rubbish")))
    bucket.miscounted.add(label)
    return True


@way
def head_older(bucket: DamagedBucket) -> bool:
    place = bucket.place()
    log = bucket.logs[place]
    if len(log.heads) < 2 or bucket.take(log.head_key) is None:
        return False
    raw, listed = bucket.random.choice(log.heads[:-1])
    bucket.put(log.head_key, raw)
    bucket.listed[place] = listed
    return True


@way
def head_hostile(bucket: DamagedBucket) -> bool:
    place = bucket.place()
    key = bucket.logs[place].head_key
    raw = bucket.take(key)
    if raw is None:
        return False
    bucket.put(key, poisoned(raw, bucket.random, WORDS["head"]))
    bucket.doubtful.add(place)
    return True


# Topics


def _topic_key(bucket: DamagedBucket, label: str) -> str:
    life = bucket.lives[label]
    return keys.topic_manifest(life.topic, life.topic_id)


def _topic_put(bucket: DamagedBucket, make: Callable[[str, bytes], bytes | None]) -> bool:
    label = bucket.label()
    raw = bucket.take(key := _topic_key(bucket, label))
    if raw is None:
        return False
    changed = make(label, raw)
    if changed is None or says(changed) != says(raw):
        bucket.put(key, changed)
        bucket.unreadable.add(label)
    return True


@way
def topic_changed(bucket: DamagedBucket) -> bool:
    return _topic_put(bucket, lambda _, raw: bucket.changed(raw))


@way
def topic_swapped(bucket: DamagedBucket) -> bool:
    """Another topic's manifest in its place, or another incarnation's."""

    def other(label: str, _: bytes) -> bytes:
        return bucket.lives[bucket.random.choice(sorted(bucket.lives.keys() - {label}))].manifests[-1]

    return _topic_put(bucket, other)


@way
def topic_older(bucket: DamagedBucket) -> bool:
    label = bucket.label()
    versions = bucket.lives[label].manifests
    if len(versions) < 2 or bucket.take(_topic_key(bucket, label)) is None:
        return False
    bucket.put(_topic_key(bucket, label), versions[0])
    bucket.miscounted.add(label)  # it had fewer partitions then
    return True


@way
def topic_hostile(bucket: DamagedBucket) -> bool:
    label = bucket.label()
    raw = bucket.take(key := _topic_key(bucket, label))
    if raw is None:
        return False
    bucket.put(key, poisoned(raw, bucket.random, WORDS["topic"]))
    bucket.dubious.add(label)
    return True


@way
def topic_extra(bucket: DamagedBucket) -> bool:
    """Of an incarnation whose making was cut short, or of a topic whose was."""
    name = bucket.random.choice((*sorted(bucket.names), "another"))
    manifest = TopicManifest(cluster_id=CLUSTER, topic=name, topic_id=OTHER_TOPIC, partitions=2)
    bucket.put(keys.topic_manifest(name, OTHER_TOPIC), encode_topic(manifest))
    return True


@way
def twin_topic(bucket: DamagedBucket) -> bool:
    """A topic by another name that has the same id: no broker could serve both."""
    name = bucket.random.choice(sorted(bucket.names))
    life, documents = bucket.lives[name], (keys.current(name), _topic_key(bucket, name), keys.current("twin"))
    twin = TopicManifest(cluster_id=CLUSTER, topic="twin", topic_id=life.topic_id, partitions=1, configs={})
    if bucket.is_touched(*documents) or any(bucket.is_touched(bucket.logs[place].head_key) for place in bucket.places(name)):
        return False
    bucket.repository.ensure_topic(twin)
    bucket.touch(*documents, bucket.logs[name, 0].head_key)
    bucket.said.append(("twin:",))
    return True


@way
def current_changed(bucket: DamagedBucket) -> bool:
    name = bucket.random.choice(sorted(bucket.names))
    return _current_put(bucket, name, bucket.changed)


@way
def current_swapped(bucket: DamagedBucket) -> bool:
    name = bucket.random.choice(sorted(bucket.names))
    other = bucket.random.choice(sorted(bucket.names.keys() - {name}))
    return _current_put(bucket, name, lambda _: bucket.currents[other][-1])


def _current_put(bucket: DamagedBucket, name: str, make: Callable[[bytes], bytes | None]) -> bool:
    raw = bucket.take(key := keys.current(name))
    if raw is None:
        return False
    changed = make(raw)
    if changed is None or says(changed) != says(raw):
        bucket.put(key, changed)
        bucket.nameless.add(name)
        bucket.said.append((f"{name}:",))
    return True


@way
def current_older(bucket: DamagedBucket) -> bool:
    """The name means what it meant before."""
    names = [name for name, versions in bucket.currents.items() if len(versions) > 1]
    if not names or bucket.take(key := keys.current(name := bucket.random.choice(names))) is None:
        return False
    bucket.put(key, bucket.currents[name][0])
    bucket.outdated.add(name)
    bucket.said.append((bucket.lives[name].topic_id, f"{name}:"))
    return True


@way
def current_hostile(bucket: DamagedBucket) -> bool:
    name = bucket.random.choice(sorted(bucket.names))
    raw = bucket.take(key := keys.current(name))
    if raw is None:
        return False
    bucket.put(key, poisoned(raw, bucket.random, WORDS["current"]))
    bucket.dubious.add(name)
    return True


@way
def name_given_to_nothing(bucket: DamagedBucket) -> bool:
    """An incarnation that is not in the archive."""
    name = bucket.random.choice(sorted(bucket.names))
    raw = bucket.take(key := keys.current(name))
    if raw is None:
        return False
    bucket.put(key, encode_current(replace_fields(decode_current(raw, name), topic_id=OTHER_TOPIC)))
    bucket.dubious.add(name)
    return True


@way
def incarnation_extra(bucket: DamagedBucket) -> bool:
    """Heads and all, copied under another id."""
    name = bucket.random.choice(sorted(bucket.names))
    life = bucket.lives[name]
    if bucket.is_touched(mark := f"another {name}"):
        return False
    bucket.touch(mark)
    for info in list(bucket.store.list(keys.topic_prefix(name, life.topic_id))):
        copy = info.key.replace(life.topic_id, OTHER_TOPIC)
        bucket.put(copy, bucket.store.get(info.key)[0])
    if any(info.key.endswith("/manifest.json") for info in bucket.store.list(keys.topic_prefix(name, OTHER_TOPIC))):
        bucket.copied.add(name)
        bucket.said.append((OTHER_TOPIC, f"{name}:"))
    return True


@way
def key_hostile(bucket: DamagedBucket) -> bool:
    """Below meta/, and of nothing that is there."""
    name = bucket.random.choice(("...x/evil.json", "..evil/" + "x" * 300 + "/topic.json", "topic-0/evil", "x/y/z/w/manifest.json"))
    key = f"meta/{name}"
    if bucket.is_touched(key):
        return False
    bucket.touch(key)
    bucket.put(key, bucket.random.choice((b"", b"rubbish", bucket.currents["topic-0"][-1])))
    bucket.said.append((key[:100],))
    return True


# The bucket, and the cluster


@way
def owner_changed(bucket: DamagedBucket) -> bool:
    raw = bucket.take(keys.OWNER)
    if raw is None:
        return False
    changed = bucket.changed(raw)
    bucket.put(keys.OWNER, changed)
    if changed is None or says(changed) != says(raw):
        bucket.said.append((keys.OWNER,))
    return True


@way
def owner_older(bucket: DamagedBucket) -> bool:
    """Of before the archive was taken over, or of another archive."""
    if bucket.take(keys.OWNER) is None:
        return False
    bucket.put(keys.OWNER, encode_owner(Owner(cluster_id="a-cluster-of-before")))
    bucket.said.append((keys.OWNER,))
    return True


@way
def owner_hostile(bucket: DamagedBucket) -> bool:
    raw = bucket.take(keys.OWNER)
    if raw is None:
        return False
    poison = poisoned(raw, bucket.random, WORDS["owner"])
    bucket.put(keys.OWNER, poison)
    with suppress(HeadwaterError):
        if decode_owner(poison).cluster_id == CLUSTER:
            return True  # nothing that is read of it is otherwise
    bucket.said.append((keys.OWNER,))
    return True


def _cluster_put(bucket: DamagedBucket, key: str, changed: bytes | None) -> bool:
    if bucket.take(key) is None:
        return False
    bucket.put(key, changed)
    bucket.is_cluster_harmed = True
    return True


@way
def list_changed(bucket: DamagedBucket) -> bool:
    changed = bucket.changed(bucket.lists[-1])
    if not _cluster_put(bucket, keys.CLUSTER_LIST, changed):
        return False
    if changed is None or says(changed) != says(bucket.lists[-1]):
        bucket.is_list_lost = True
        bucket.cluster_said.append((keys.CLUSTER_LIST,))
    return True


@way
def list_older(bucket: DamagedBucket) -> bool:
    if bucket.take(keys.CLUSTER_LIST) is None:
        return False
    bucket.put(keys.CLUSTER_LIST, bucket.lists[0])
    bucket.is_list_older = True
    return True


@way
def list_hostile(bucket: DamagedBucket) -> bool:
    poison = poisoned(bucket.lists[-1], bucket.random, WORDS["list"])
    if not _cluster_put(bucket, keys.CLUSTER_LIST, poison):
        return False
    try:
        listed, before = decode_cluster_list(poison), decode_cluster_list(bucket.lists[-1])
    except HeadwaterError:
        bucket.is_list_lost = True
    else:
        if (listed.cluster_id, listed.newest.name) == (before.cluster_id, before.newest.name):
            return True  # nothing that is read of it is otherwise
    bucket.cluster_said.append((keys.CLUSTER_LIST,))
    return True


@way
def list_of_another_cluster(bucket: DamagedBucket) -> bool:
    body = json.loads(bucket.lists[-1])
    if not _cluster_put(bucket, keys.CLUSTER_LIST, resealed(body | {"cluster_id": "another"})):
        return False
    bucket.cluster_said.append((keys.CLUSTER_LIST,))
    return True


def _snapshots(bucket: DamagedBucket) -> list[str]:
    return [info.key for info in bucket.store.list(keys.CLUSTER) if keys.parse_cluster_snapshot(info.key)]


@way
def snapshot_changed(bucket: DamagedBucket) -> bool:
    key = bucket.random.choice(_snapshots(bucket))
    return not bucket.is_touched(key) and _cluster_put(bucket, key, bucket.changed(bucket.store.get(key)[0]))


@way
def snapshots_swapped(bucket: DamagedBucket) -> bool:
    names = _snapshots(bucket)
    bucket.is_cluster_harmed |= (done := len(names) == 2 and _swap(bucket, *names))
    return done


@way
def snapshot_extra(bucket: DamagedBucket) -> bool:
    """A later one, that is not listed."""
    raw = bucket.store.get(sorted(_snapshots(bucket))[-1])[0] if _snapshots(bucket) else b""
    bucket.put(f"cluster/0000000009/{300:020}-{2:010}-{_uid(bucket.random)}.checkpoint.gz", bucket.random.choice((raw, b"rubbish")))
    bucket.cluster_said.append(("not listed: ", "cluster/"))
    if bucket.is_touched(keys.CLUSTER_LIST):
        bucket.is_cluster_harmed = True
    return True


@way
def snapshot_hostile(bucket: DamagedBucket) -> bool:
    """The list has its very bytes: of another cluster, or with what no controller writes."""
    listed = json.loads(bucket.lists[-1])
    newest = listed["snapshots"][-1]
    key = next((key for key in _snapshots(bucket) if newest["uid"] in key), "")
    if not key or bucket.is_touched(key, keys.CLUSTER_LIST):
        return False
    bucket.touch(key, keys.CLUSTER_LIST)
    state, random = bucket.state(3), bucket.random
    topic = state.topics["topic-0"]
    number, partition = next(iter(topic.partitions.items()))
    what = random.choice(("epoch", "twins", "partitions", "cluster", "hole"))
    if what == "epoch":
        topic = replace(topic, partitions={number: replace(partition, leader_epoch=random.choice((2**31 - 1, 2**31 - 3, -1)))})
    elif what == "twins":
        topic = replace(topic, topic_id=state.topics["topic-1"].topic_id)
    elif what == "partitions":
        topic = replace(topic, partitions=dict.fromkeys(range(40), partition))
    elif what == "hole":
        topic = replace(topic, partitions={2**31 - 1: partition})
    facts = SnapshotFacts(
        cluster_id="another" if what == "cluster" else CLUSTER,
        number=newest["number"],
        end_offset=newest["end_offset"],
        end_epoch=newest["end_epoch"],
        uid=newest["uid"],
        has_secrets=True,
    )
    state = replace(state, topics={**state.topics, "topic-0": topic})
    packed = pack_snapshot(state, facts)
    newest["size_bytes"], newest["digest"] = len(packed), digest_of(packed)
    bucket.put(key, packed)
    bucket.put(keys.CLUSTER_LIST, resealed(listed))
    if what == "cluster":
        bucket.foreign = ArchivedSnapshot(packed, state)
        bucket.cluster_said.append((key,))
    else:  # nothing tells it from what the archiver writes
        bucket.snapshots[key] = ArchivedSnapshot(packed, state)
    bucket.is_cluster_harmed = True
    bucket.is_cluster_hostile = True
    return True


@way
def record_changed(bucket: DamagedBucket) -> bool:
    """Of a recovery of before: what it held back."""
    raw = bucket.take(RECORD)
    if raw is None:
        return False
    changed = bucket.changed(raw)
    bucket.put(RECORD, changed)
    if changed is None or says(changed) != says(raw):
        bucket.originals = {"-1"}
        if changed is not None:
            bucket.said.append((RECORD,))
    return True


@way
def record_hostile(bucket: DamagedBucket) -> bool:
    raw = bucket.take(RECORD)
    if raw is None:
        return False
    poison = poisoned(raw, bucket.random, WORDS["record"])
    bucket.put(RECORD, poison)
    bucket.originals |= {"-1"}
    match says(poison):
        case {"held": [{"value": str() | None as value}]}:  # nothing tells it from what a recovery writes
            bucket.originals |= {value}
    return True


@way
def not_read(bucket: DamagedBucket) -> bool:
    """What a recovery does not ask for."""
    key = bucket.random.choice((keys.PAUSES, keys.SETTINGS, "cluster/downloads/0123456789abcdef.json", "cluster/evil", "evil"))
    bucket.put(key, bucket.random.choice((b"", b"rubbish", b"[" * 100_000)))
    return True


CHOSEN: Mapping[str, int] = {"data_changed": 3, "beside_changed": 2}
"""What is drawn more often than once in all ways."""


def damage(bucket: DamagedBucket, name: str | None = None) -> None:
    """In one way, any unless it is named."""
    names = [each for each in WAYS for _ in range(CHOSEN.get(each, 1))]
    name = name or bucket.random.choice(names)
    if WAYS[name](bucket):
        bucket.did.append(name)


def _swap(bucket: DamagedBucket, one: str, other: str) -> bool:
    if one == other or bucket.is_touched(one, other) or not (bucket.holds(one) and bucket.holds(other)):
        return False
    mine, theirs = bucket.take(one), bucket.take(other)
    bucket.put(one, theirs)
    bucket.put(other, mine)
    return True


def _uid(random: Random) -> str:
    return f"{random.randrange(1 << 60):032x}"


__all__ = ["WAYS", "damage"]
