"""Statuses of partitions, where the rest of a status does not matter."""

from archival.partition_status import PartitionStatus


def a_status(
    topic: str, partition: int, *, state: str = "archived", lag_bytes: int | None = 0, lag_s: float | None = 0.0, archived_bytes: int = 100
) -> PartitionStatus:
    return PartitionStatus(
        topic=topic,
        partition=partition,
        topic_id="AAAAAAAAAAAAAAAAAAAAAA",
        archive_start=0,
        local_start=0,
        last_offset=9,
        high_watermark=10,
        lag_bytes=lag_bytes,
        lag_s=lag_s,
        archived_bytes=archived_bytes,
        objects=1,
        cached_bytes=0,
        known_age_s=0.0,
        state=state,
        reason="",
    )
