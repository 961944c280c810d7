"""Control records as short as a test wants them."""

from typing import Any

from hypothesis import strategies as st

from headwater_core.control.control_records import (
    Advanced,
    Claim,
    Node,
    PausesChanged,
    Record,
    RecoveryFinished,
    RecoveryStarted,
    Retired,
    SettingsChanged,
    StateDigest,
    TopicSettings,
)
from headwater_core.partition import PartitionId, topic_id_text

TOPIC_ID = topic_id_text(bytes(range(16)))
PARTITION = PartitionId("cluster-1", TOPIC_ID, 0, "orders")


def advanced(version: int, last_offset: int | None = None, **fields: Any) -> Advanced:
    """Manifest `version` of partition 0, which reaches ten offsets further with each unless given."""
    return Advanced(**_facts(version, last_offset, fields))


def claim(version: int, last_offset: int | None = None, **fields: Any) -> Claim:
    return Claim(**_facts(version, last_offset, fields))


def _facts(version: int, last_offset: int | None, fields: dict[str, Any]) -> dict[str, Any]:
    return {
        "cluster_id": "cluster-1",
        "topic_id": TOPIC_ID,
        "partition": 0,
        "topic": "orders",
        "version": version,
        "fence": 1,
        "writer": "agent-a",
        "start_offset": 0,
        "last_offset": version * 10 - 1 if last_offset is None else last_offset,
        **fields,
    }


def retired(version: int, **fields: Any) -> Retired:
    return Retired(**{"cluster_id": "cluster-1", "topic_id": TOPIC_ID, "partition": 0, "topic": "orders", "version": version, **fields})


def settings(revision: int, **values: str) -> TopicSettings:
    return TopicSettings(cluster_id="cluster-1", topic_id=TOPIC_ID, topic="orders", revision=revision, settings=values)


_texts = st.text(max_size=20)
_small = st.integers(0, 6)


@st.composite
def _heads(draw: st.DrawFn, kind: type[Advanced] | type[Claim]) -> Advanced | Claim:
    start = draw(st.integers(0, 2**61))
    return kind(
        cluster_id=draw(st.sampled_from(["c1", "c2"])),
        topic_id=TOPIC_ID,
        partition=draw(st.integers(0, 2)),
        topic="orders",
        version=draw(_small),
        fence=draw(st.integers(0, 2**40)),
        writer=draw(_texts),
        start_offset=start,
        last_offset=draw(st.integers(start - 1, 2**62)),
    )


records: st.SearchStrategy[Record] = st.one_of(
    _heads(Advanced),
    _heads(Claim),
    st.builds(retired, _small, cluster_id=st.sampled_from(["c1", "c2"]), partition=st.integers(0, 2)),
    st.builds(settings, _small, retention=_texts),
    st.builds(RecoveryStarted, recovery_id=st.sampled_from("ab"), at_ms=_small, summary=_texts),
    st.builds(RecoveryFinished, recovery_id=st.sampled_from("ab"), at_ms=_small, outcome=_texts),
    st.builds(Node, node_id=st.sampled_from("ab"), started_ms=_small, version=_texts, gateway=_texts),
    st.builds(PausesChanged, version=_small),
    st.builds(SettingsChanged, version=_small),
    st.builds(StateDigest, index=_small, digest=_small),
)
