"""Client libraries of Python, as programs of reader_programs.py, which says what they are to do: the library's name, then the arguments."""

import asyncio
import base64
import json
import queue
import sys
import threading
from collections.abc import Iterable
from typing import Any

import aiokafka
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaException, Message, TopicPartition

POLL_S = 0.1
CLASSIC = {"session.timeout.ms": 20_000, "heartbeat.interval.ms": 200}
Ends = dict[tuple[str, int], int]


def main(library: str, command: str, bootstrap: str, isolation: str, *arguments: str) -> None:
    settings = {"bootstrap.servers": bootstrap, "isolation.level": isolation, "auto.offset.reset": "earliest", "enable.auto.commit": False}
    if command == "read":
        start, *places = arguments
        ends = {(topic, int(partition)): int(end) for topic, partition, end in (place.split(":") for place in places)}
        start_ms = None if start == "beginning" else int(start)
        if library == "librdkafka":
            read_with_librdkafka({**settings, "group.id": "reader"}, start_ms, ends)
        else:
            asyncio.run(read_with_aiokafka(_underscored(settings), start_ms, ends))
        return
    group, topic, protocol, *instance = arguments
    settings |= {"group.id": group, **(CLASSIC if protocol == "classic" else {"group.protocol": protocol})}
    if instance:
        settings["group.instance.id"] = instance[0]
    if library == "librdkafka":
        join_with_librdkafka(settings, topic)
    else:
        asyncio.run(join_with_aiokafka(_underscored(settings), topic))


def _underscored(settings: dict[str, Any]) -> dict[str, Any]:
    return {key.replace(".", "_"): value for key, value in settings.items()}


def read_with_librdkafka(settings: dict[str, Any], start_ms: int | None, ends: Ends) -> None:
    consumer = Consumer(settings)
    places = [TopicPartition(*place, OFFSET_BEGINNING if start_ms is None else start_ms) for place in ends]
    consumer.assign(places if start_ms is None else consumer.offsets_for_times(places, timeout=30))
    while ends:
        message = consumer.poll(POLL_S)
        if message is not None:
            _show_message(message)
            _end(ends, message.topic(), message.partition(), message.offset())
    consumer.close()


def join_with_librdkafka(settings: dict[str, Any], topic: str) -> None:
    consumer, assigned, requests, wanted = Consumer(settings), set[int](), _requests(), 0
    taken: dict[int, int] = {}

    def assign(_: Consumer, places: list[TopicPartition]) -> None:
        assigned.update(each.partition for each in places)
        _print(partitions=sorted(assigned))

    def revoke(_: Consumer, places: list[TopicPartition]) -> None:
        assigned.difference_update(each.partition for each in places)
        _print(partitions=sorted(assigned))

    consumer.subscribe([topic], on_assign=assign, on_revoke=revoke, on_lost=revoke)
    while (request := _next(requests)) != "end":
        if request:
            wanted += int(request.removeprefix("take "))
        if request or not wanted:
            (consumer.resume if wanted else consumer.pause)(consumer.assignment())
        message = consumer.poll(POLL_S)
        if message is None:
            continue
        partition, offset = message.partition() or 0, message.offset() or 0
        if not wanted:  # it came with a new assignment
            consumer.seek(TopicPartition(topic, partition, offset))
            continue
        _show_message(message)
        taken[partition] = offset + 1
        wanted -= 1
        if not wanted:
            consumer.commit(offsets=[TopicPartition(topic, *each) for each in taken.items()], asynchronous=False)
            taken.clear()
            _print(committed=True)
    consumer.close()


async def read_with_aiokafka(settings: dict[str, Any], start_ms: int | None, ends: Ends) -> None:
    consumer = aiokafka.AIOKafkaConsumer(**settings)
    await consumer.start()
    places = [aiokafka.TopicPartition(*place) for place in ends]
    consumer.assign(places)
    if start_ms is None:
        await consumer.seek_to_beginning(*places)
    else:
        for place, found in (await consumer.offsets_for_times(dict.fromkeys(places, start_ms))).items():
            consumer.seek(place, found.offset)
    while ends:
        for record in await _some(consumer):
            _end(ends, record.topic, record.partition, record.offset)
    await consumer.stop()


async def join_with_aiokafka(settings: dict[str, Any], topic: str) -> None:
    consumer = aiokafka.AIOKafkaConsumer(**settings)

    class Listener(aiokafka.ConsumerRebalanceListener):  # type: ignore[misc]  # it has no types
        async def on_partitions_assigned(self, assigned: Iterable[Any]) -> None:
            _print(partitions=sorted(each.partition for each in assigned))

        async def on_partitions_revoked(self, revoked: Iterable[Any]) -> None:
            _print(partitions=[])

    consumer.subscribe([topic], listener=Listener())
    await consumer.start()
    requests = _requests()
    while (request := await asyncio.to_thread(requests.get)) != "end":
        wanted = int(request.removeprefix("take "))
        while wanted:
            wanted -= len(await _some(consumer, max_records=wanted))
        await consumer.commit()
        _print(committed=True)
    await consumer.stop()


async def _some(consumer: Any, **options: int) -> list[Any]:
    """Records that have come, which are printed."""
    records = [each for some in (await consumer.getmany(timeout_ms=100, **options)).values() for each in some]
    for each in records:
        kind = {0: "CreateTime", 1: "LogAppendTime"}[each.timestamp_type]
        _show(each.topic, each.partition, each.offset, each.timestamp, kind, each.key, each.value, each.headers)
    return records


def _end(ends: Ends, topic: str | None, partition: int | None, offset: int | None) -> None:
    assert topic is not None
    assert partition is not None
    assert offset is not None
    if offset + 1 >= ends.get((topic, partition), offset + 2):
        del ends[topic, partition]


def _show_message(message: Message) -> None:
    if (error := message.error()) is not None:
        raise KafkaException(error)
    kind, timestamp = message.timestamp()
    place, headers = (message.topic(), message.partition(), message.offset()), message.headers() or []
    _show(
        *place,
        timestamp,
        {1: "CreateTime", 2: "LogAppendTime"}[kind],
        message.key(),
        message.value(),
        headers,
        leader_epoch=message.leader_epoch(),
    )


def _show(
    topic: Any, partition: Any, offset: Any, timestamp: int, kind: str, key: Any, value: Any, headers: Iterable[Any], **more: Any
) -> None:
    fields = {"topic": topic, "partition": partition, "offset": offset, "timestamp": timestamp, "timestamp_type": kind, **more}
    _print(**fields, key=_base64(key), value=_base64(value), headers=[[header[0], _base64(header[1])] for header in headers])


def _base64(raw: bytes | None) -> str | None:
    return None if raw is None else base64.b64encode(raw).decode()


def _print(**line: Any) -> None:
    print(json.dumps(line), flush=True)


def _requests() -> "queue.Queue[str]":
    """The lines of stdin, as they come; its end is one of them."""
    requests: queue.Queue[str] = queue.Queue()

    def read() -> None:
        for line in sys.stdin:
            requests.put(line.strip())
        requests.put("end")

    threading.Thread(target=read, daemon=True).start()
    return requests


def _next(requests: "queue.Queue[str]") -> str:
    try:
        return requests.get_nowait()
    except queue.Empty:
        return ""


if __name__ == "__main__":
    main(*sys.argv[1:])
