"""Documents that nobody writes: sealed as every other, with one impossible word in them; or none that could be sealed."""

import json
from collections.abc import Callable, Mapping
from random import Random
from typing import Any

from headwater_core.partition import topic_id_text
from manifests import document

Body = dict[str, Any]
Words = list[tuple[Body, str, Any]]
"""Where, under which name, what."""

OTHER_TOPIC = topic_id_text(b"\xfe" * 16)
_DEPTH = 200_000


def name(random: Random) -> Any:
    return random.choice(("../../../evil", "/evil", "", ".", "..", "a\0b", "x" * 300, "data/../../evil", "%2e%2e/evil", "тема", 7, None))


def number(random: Random) -> Any:
    return random.choice((-1, 2**31 - 1, 2**31, 2**62, 2**63 - 1, 2**63, 2**70, 1.5, "1", None, []))


def resealed(body: Body) -> bytes:
    """With the digest of what it says."""
    content = {key: value for key, value in body.items() if key != "digest"}
    return json.dumps(content | {"digest": document._digest(content)}).encode()


def broken(raw: bytes, random: Random) -> bytes:
    """What no reader of JSON takes for the document, whatever its digest."""
    body = json.loads(raw)
    return random.choice(
        (
            b'{"format":[1,2],"deep":' + b"[" * _DEPTH + b"]" * _DEPTH + b"}",
            raw.replace(b'"format"', b'"for\xffmat"', 1),
            json.dumps(body | {"topic": "\ud800", "cluster_id": "\ud800"}).encode(),
            b"[" + raw + b"]",
            b"null",
            resealed(body | {"format": []}),
            resealed(body | {"format": [9, 0]}),
        )
    )


def poisoned(raw: bytes, random: Random, words: Callable[[Body, Random], Words]) -> bytes:
    if random.random() < 0.2:
        return broken(raw, random)
    body = json.loads(raw)
    where, what, value = random.choice(words(body, random))
    where[what] = value
    return resealed(body)


def head_words(body: Body, random: Random) -> Words:
    words: Words = [
        (body, "topic", name(random)),
        (body, "topic_id", random.choice((name(random), OTHER_TOPIC))),
        (body, "cluster_id", random.choice((name(random), "another"))),
        (body, "entries", "none"),
        (body, "pages", [{"level": 0}]),
        *((body, what, number(random)) for what in ("partition", "last_offset", "start_offset", "version", "fence", "leader_epoch")),
    ]
    for listed, of_one in (("entries", entry_words), ("pages", page_ref_words)):
        if body.get(listed):
            words += of_one(random.choice(body[listed]), random)
    return words


def entry_words(entry: Body, random: Random) -> Words:
    context = entry.get("context") or {}
    return [
        (entry, "key", random.choice((name(random), "data/ab/evil"))),
        (entry, "uid", name(random)),
        (entry, "layout", random.choice((name(random), "blocks", "streaming", "chunks", "segment"))),
        (entry, "index_key", name(random)),
        (entry, "epochs", [[number(random), 0]]),
        (entry, "gap", True),
        (entry, "context", random.choice(({"version": "9"}, {}, {"chunk": "-1"}, "none"))),
        *((entry, "context", context | {what: random.choice(("-1", "9" * 30, "", "x"))}) for what in context),
        *(
            (entry, what, number(random))
            for what in ("base_offset", "last_offset", "size_bytes", "live_bytes", "run_bytes", "records", "open_from", "max_producer_id")
        ),
    ]


def page_ref_words(ref: Body, random: Random) -> Words:
    return [
        (ref, "uid", name(random)),
        (ref, "digest", name(random)),
        *((ref, what, number(random)) for what in ("base_offset", "last_offset", "entries", "level", "fence", "size_bytes", "records")),
    ]


def topic_words(body: Body, random: Random) -> Words:
    return [
        (body, "topic", name(random)),
        (body, "topic_id", random.choice((name(random), OTHER_TOPIC))),
        (body, "cluster_id", random.choice((name(random), "another"))),
        (body, "partitions", random.choice((number(random), 0, 100_001, body["partitions"] + 3))),
        (body, "version", number(random)),
        (body, "configs", random.choice(("none", {"cleanup.policy": 7}, {"retention.ms": "x" * 1000}, {"../evil": "/evil"}, None))),
        (body, "configs", {"index.interval.bytes": random.choice(("9" * 19, "9" * 5000, "-1", "x"))}),
    ]


def current_words(body: Body, random: Random) -> Words:
    return [
        (body, "topic", name(random)),
        (body, "topic_id", random.choice((name(random), OTHER_TOPIC))),
        (body, "cluster_id", name(random)),
        (body, "version", number(random)),
        (body, "as_of", number(random)),
        (body, "previous", random.choice(([name(random)], "none"))),
    ]


def owner_words(body: Body, random: Random) -> Words:
    return [
        (body, "cluster_id", random.choice((name(random), "another"))),
        (body, "store_id", name(random)),
        (body, "former", random.choice(([name(random)], "none", 7))),
    ]


def list_words(body: Body, random: Random) -> Words:
    listed = random.choice(body["snapshots"])
    return [
        (body, "cluster_id", random.choice((name(random), "another"))),
        (body, "snapshots", random.choice(([], "none", body["snapshots"] * 2))),
        (listed, "uid", name(random)),
        (listed, "digest", name(random)),
        *((listed, what, number(random)) for what in ("number", "end_offset", "end_epoch", "taken_ms", "size_bytes")),
    ]


def record_words(body: Body, random: Random) -> Words:
    words: Words = [
        (body, "held", random.choice(("none", [{}], [name(random)]))),
        *((body, what, name(random)) for what in ("recovery_id", "cluster_id", "host", "directory", "directory_id")),
        *((body, what, number(random)) for what in ("node_id", "started_ms", "put_back_ms")),
    ]
    if body["held"]:
        held = random.choice(body["held"])
        words += [(held, what, name(random)) for what in ("topic", "topic_id", "name", "value", "recovered")]
    return words


def page_first_words(first: Body, random: Random) -> Words:
    return [
        (first, "format", random.choice(([9, 0], [], "none"))),
        (first, "topic", name(random)),
        (first, "topic_id", OTHER_TOPIC),
        (first, "partition", number(random)),
        (first, "level", number(random)),
    ]


WORDS: Mapping[str, Callable[[Body, Random], Words]] = {
    "head": head_words,
    "topic": topic_words,
    "current": current_words,
    "owner": owner_words,
    "list": list_words,
    "record": record_words,
}
