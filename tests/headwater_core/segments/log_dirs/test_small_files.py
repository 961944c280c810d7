import os
import time
from collections.abc import Mapping
from pathlib import Path

import pytest

from headwater_core.errors import Unauthorised, UsageError
from headwater_core.partition import TopicPartition
from headwater_core.segments import checkpoints
from headwater_core.segments.log_dirs import LogDirs, small_files
from tests.headwater_core.segments.log_dirs.broker import SOUP, Broker


def test_missing_and_unreadable_directories_are_distinguished(tmp_path: Path, broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_bytes(b"")
    for path, words in ((tmp_path / "gone", "does not exist"), (tmp_path / "file", "not a directory")):
        for act in (LogDirs([path]).survey, lambda path=path: LogDirs([path]).look(SOUP), lambda path=path: LogDirs([path]).cluster_id):
            with pytest.raises(UsageError, match=words):
                act()
    with pytest.raises(UsageError):
        LogDirs([])

    def refuse(_: object) -> object:
        raise PermissionError(13, "denied")

    monkeypatch.setattr(os, "scandir", refuse)
    with pytest.raises(Unauthorised):
        broker.logs.survey()


def test_checkpoints_are_decoded_once_for_each_of_their_states(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many partitions are looked at: the files hold a line for each."""
    broker.partition("soup-0")
    broker.partition("tea-0")
    broker.checkpoint("replication", soup_0=3, tea_0=4)
    for path in (broker.root / "replication-offset-checkpoint", broker.root / "meta.properties"):
        os.utime(path, (time.time() - 60, time.time() - 60))
    logs, decoded, opened = broker.logs, 0, 0
    decode, read = checkpoints.OffsetsDecoder.decode, small_files._read_stamped

    def counted(decoder: checkpoints.OffsetsDecoder, raw: bytes, *, where: str) -> Mapping[TopicPartition, int]:
        nonlocal decoded
        decoded += 1
        return decode(decoder, raw, where=where)

    def noted(path: str) -> tuple[bytes, small_files.Stamp] | None:
        nonlocal opened
        opened += Path(path).parent == broker.root
        return read(path)

    monkeypatch.setattr(checkpoints.OffsetsDecoder, "decode", counted)
    monkeypatch.setattr(small_files, "_read_stamped", noted)
    for _ in range(10):
        assert [logs.look(each).high_watermark for each in (SOUP, TopicPartition("tea", 0))] == [3, 4]
    assert (decoded, opened) == (1, 2)
    broker.checkpoint("replication", soup_0=4, tea_0=5)  # as large, and perhaps in the same tick of the file system's clock
    assert logs.look(SOUP).high_watermark == 4
    broker.checkpoint("replication", soup_0=5, tea_0=5)
    assert logs.look(SOUP).high_watermark == 5
    (broker.root / "replication-offset-checkpoint").unlink()
    assert logs.look(SOUP).high_watermark is None
