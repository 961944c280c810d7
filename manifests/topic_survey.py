"""Which topics a bucket holds, and which of their documents are gone or cannot be read, from one listing."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple, TypeVar

from headwater_core.errors import CorruptData, ForeignOwner, HeadwaterError, NotFound, UnsupportedFormat
from headwater_core.objectstore.store import ObjectStore
from manifests import keys
from manifests.topic import Current, TopicManifest, decode_current, decode_topic

_Document = TypeVar("_Document", TopicManifest, Current)


@dataclass(frozen=True, slots=True)
class UnreadableTopic:
    """A topic's document that is gone although others say it must be there, `error` being NotFound, or that cannot be read."""

    topic: str
    key: str
    error: HeadwaterError


class TopicSurvey(NamedTuple):
    """Both by name: no document hides another."""

    manifests: list[TopicManifest]
    unreadable: list[UnreadableTopic]


def survey_topics(store: ObjectStore, topic: str | None = None, *, earlier: bool = False) -> TopicSurvey:
    """The manifest of every topic's current incarnation, and what cannot be read.

    topic    look at this one alone
    earlier  look for the manifests of earlier incarnations too, which takes a request for each

    A listing only raises the suspicion that something is gone; each absence is the store's definite word. A topic whose
    making was cut short, its manifest there and nothing after it, is none yet. Raises what keeps the store from answering.
    """
    incarnations: dict[str, set[str]] = {}
    with_heads: set[str] = set()  # heads are written last
    for info in store.list(keys.META if topic is None else keys.name_prefix(topic)):
        if listed := keys.parse_manifest(info.key):
            incarnations.setdefault(listed.topic, set()).add(listed.topic_id)
            if listed.partition is not None:
                with_heads.add(listed.topic)
        elif name := keys.parse_current(info.key):
            incarnations.setdefault(name, set())
    survey = TopicSurvey([], [])
    for name, ids in sorted(incarnations.items()):
        meant = set()
        current = _read(store, name, keys.current(name), partial(decode_current, topic=name), "which incarnation the name means")
        if isinstance(current, UnreadableTopic):
            if isinstance(current.error, NotFound) and name not in with_heads:
                continue
            survey.unreadable.append(current)
        else:
            meant.add(current.topic_id)
        for topic_id in sorted(meant | ids if earlier else meant):
            decode = partial(decode_topic, topic=name, topic_id=topic_id)
            manifest = _read(store, name, keys.topic_manifest(name, topic_id), decode, "the partition count")
            if isinstance(manifest, UnreadableTopic):
                survey.unreadable.append(manifest)
            elif topic_id in meant:
                survey.manifests.append(manifest)
    return survey


def _read(store: ObjectStore, topic: str, key: str, decode: Callable[[bytes], _Document], content: str) -> _Document | UnreadableTopic:
    try:
        return decode(store.get(key)[0])
    except NotFound:
        return UnreadableTopic(topic, key, NotFound(f"{key} is gone, and with it {content}"))
    except (CorruptData, ForeignOwner, UnsupportedFormat) as error:
        return UnreadableTopic(topic, key, error)
