"""Documents are first read by several threads at once: partitions load together."""

import subprocess
import sys
from pathlib import Path

import pytest

from manifests.head import Head, encode_head
from manifests.topic import TopicManifest, encode_topic
from tests.hydration.world import CLUSTER, PARTITION, TOPIC, TOPIC_ID

_READ = """
import sys, threading
from pathlib import Path
from manifests.head import decode_head
from manifests.topic import decode_topic
from headwater_core.partition import PartitionId
cluster, topic, topic_id = sys.argv[1:4]
head, manifest = (Path(name).read_bytes() for name in sys.argv[4:])
sys.setswitchinterval(1e-6)
begin = threading.Barrier(16)
def read():
    begin.wait(20)
    decode_head(head, PartitionId(cluster, topic_id, 0, topic))
    decode_topic(manifest, topic, topic_id)
threads = [threading.Thread(target=read) for _ in range(16)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
"""


@pytest.mark.parametrize("round_", range(3))
def test_a_process_whose_threads_read_their_first_documents_at_once_lives(tmp_path: Path, round_: int) -> None:
    """msgspec 0.22 does not by itself: one thread meets what the other has half made, and the process ends with a signal."""
    head = Head(
        cluster_id=CLUSTER, topic=TOPIC, topic_id=TOPIC_ID, partition=PARTITION.partition, version=1, commit_id="x", fence=1, writer="w",
        start_offset=0, last_offset=-1,
    )  # fmt: skip
    (tmp_path / "head").write_bytes(encode_head(head))
    (tmp_path / "topic").write_bytes(encode_topic(TopicManifest(cluster_id=CLUSTER, topic=TOPIC, topic_id=TOPIC_ID, partitions=1)))
    command = [sys.executable, "-c", _READ, CLUSTER, TOPIC, TOPIC_ID, str(tmp_path / "head"), str(tmp_path / "topic")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
