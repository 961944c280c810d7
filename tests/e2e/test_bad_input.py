"""Bad input that takes a whole archive to show: a hostile bucket, and two agents that know nothing of each other."""

import os
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from manifests import keys
from manifests.head import Head
from tests.e2e.sample_topics import SEGMENTS, a_sample_log, read, sample_records
from tests.e2e.test_kill9 import heads
from tests.fixtures import KAFKA, expected
from tests.headwater.conftest import Ran, Stage
from tests.headwater.test_verbs import as_expected
from tests.manifests import format_1

VICTIM = "bills"
HUGE = 1 << 40
REFUSED = (1, 3, 4, 7)  # 1: a format that this version does not know; 7: another's
Change = Callable[[dict[str, Any]], None]


def of_entry(**fields: Any) -> Change:
    return lambda body: body["entries"][0].update(fields)


def of_head(**fields: Any) -> Change:
    return lambda body: body.update(fields)


HOSTILE: dict[str, Change] = {
    "a key outside": of_entry(key="../../../../etc/passwd"),
    "an absolute key": of_entry(key="/etc/passwd"),
    "an index outside": of_entry(index_key="data/../../../../etc/passwd"),
    "a uid that is a path": of_entry(uid="../../../../tmp/uid"),
    "an endless object": of_entry(size_bytes=HUGE, live_bytes=HUGE),
    "an endless index": of_entry(index_bytes=HUGE),
    "an object of no bytes": of_entry(size_bytes=0, live_bytes=0),
    "a live end beyond the object": of_entry(live_bytes=HUGE),
    "another length": lambda body: body["entries"][0].update(size_bytes=body["entries"][0]["size_bytes"] + 1),
    "offsets beyond the log": of_head(last_offset=1 << 40),
    "offsets beyond int64": of_head(last_offset=1 << 64),
    "an unknown layout": of_entry(layout="../../evil"),
    "a topic that is a path": of_head(topic="../../../etc"),
    "a topic id that is a path": of_head(topic_id="../../../../../../etc"),
    "a page from elsewhere": of_head(
        pages=[{"key": "../../etc/passwd", "base_offset": 0, "last_offset": 9, "entries": 1, "digest": "crc64nvme:0000000000000000"}]
    ),
    "a format of the future": of_head(format=[3, 0]),
    "another cluster": of_head(cluster_id="AAAAAAAAAAAAAAAAAAAAAA"),
}


def sealed(head: Head, change: Change) -> bytes:
    """`head` with a change that no writer of ours would make, and a digest that is right all the same."""
    body = format_1.body_of(head)
    change(body)
    return format_1.encode_body(body)


def assert_refused_or_right(ran: Ran, place: str) -> None:
    """Some lies do not matter to a reader, who checks every byte that comes; but then what is read is the truth."""
    if ran.code:
        assert ran.code in REFUSED, ran.err
        assert "Traceback" not in ran.err
    else:
        wanted = [row for row in expected("kitchen", "read_uncommitted") if f"{row['topic']}:{row['partition']}" == place]
        assert [as_expected(row) for row in ran.rows] == wanted


def files_outside(stage: Stage) -> set[Path]:
    return {path for path in stage.root.rglob("*") if not path.is_relative_to(stage.bucket) and not path.is_relative_to(stage.data_dir)}


@pytest.mark.parametrize("what", HOSTILE)
def test_a_hostile_head_harms_its_own_partition_at_most(stage: Stage, what: str) -> None:
    log = stage.log("kitchen")
    assert stage.run("flush", log=log).code == 0
    victim = next(head for head in heads(stage) if head.topic == VICTIM and head.entries)
    document = sealed(victim, HOSTILE[what])
    (stage.bucket / keys.head(victim.partition_id)).write_bytes(document)
    place = f"{VICTIM}:{victim.partition}"
    before, memory = files_outside(stage), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

    checked = stage.run("verify", "--data", place)
    assert checked.code in REFUSED, checked.err
    assert_refused_or_right(stage.run("read", place), place)
    planned = stage.run("recover", "plan", "topic", VICTIM)
    assert planned.code in (0, *REFUSED), planned.err
    into = stage.root / "recovered"
    recovered = stage.run("recover", "apply", "topic", VICTIM, "--into", str(into))
    assert recovered.code in (0, *REFUSED), recovered.err
    if recovered.code == 0:
        assert_refused_or_right(stage.run("read", place, log=into), place)
    elif recovered.code == 3:  # it keeps its number, and comes back empty
        assert {path.stat().st_size for path in (into / f"{VICTIM}-{victim.partition}").glob("*.log")} <= {0}
        assert (into / "meta.properties").exists()
    else:
        assert not (into / "meta.properties").exists()

    flushed = stage.run("flush", "-o", "jsonl", log=log)
    assert flushed.code in (0, 3), flushed.err
    assert {f"{row['topic']}:{row['partition']}" for row in flushed.rows if row["error"]} <= {place}
    assert stage.run("status", log=log).code == 0
    others = stage.run("read", "orders.in")
    assert [as_expected(row) for row in others.rows] == [
        row for row in expected("kitchen", "read_uncommitted") if row["topic"] == "orders.in"
    ]
    assert {path for path in files_outside(stage) - before if not path.is_relative_to(into)} == set()
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - memory < 200 << 10, "KiB more than before"


@pytest.mark.parametrize("name", ["headwater.json", "current.json", "topic.json", "manifest.json"])
@pytest.mark.parametrize(
    "raw", [b"", b"[" * 100_000, b'{"format": [1, 0], "digest": ""}', b"\0" * (65 << 20)], ids=["empty", "deep", "bare", "long"]
)
def test_a_document_that_is_none(stage: Stage, name: str, raw: bytes) -> None:
    log = stage.log("kitchen")
    assert stage.run("flush", log=log).code == 0
    found = sorted(path for path in stage.bucket.rglob(name) if "headwater.json" in name or VICTIM in str(path))
    found[0].write_bytes(raw)
    for verb in (["verify"], ["read", VICTIM], ["recover", "plan", "topic", VICTIM], ["flush"], ["status"]):
        ran = stage.run(*verb, log=log)
        assert ran.code in (0, 3, 4, 6), (verb, ran.code, ran.err)
        assert "Traceback" not in ran.err
    assert found[0].read_bytes() == raw  # damage is reported, and left for a person to look into
    if name != "headwater.json":  # without it the archive has no owner; else one damaged topic hides no other
        assert stage.run("read", "orders.in").rows


@pytest.mark.slow
def test_two_agents_of_one_log_with_a_data_directory_each(stage: Stage) -> None:
    """Nothing keeps them apart but the bucket. Neither loses or doubles anything, and each can go on alone."""
    log = a_sample_log(stage.root)
    flush = ["flush", "--log-dir", str(log), "--store", f"file://{stage.bucket}", "--set", "log.owned=true"]
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", "from headwater.cli import main; main()", *flush, "--data-dir", str(stage.root / name)],
            cwd=stage.root,
            env={**os.environ, "PYTHONPATH": str(KAFKA.parents[2])},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        for name in ("one", "two")
    ]
    for process in processes:
        _, output = process.communicate(timeout=120)
        assert process.returncode in (0, 3, 5, 7), output
        assert "Traceback" not in output
    assert read(stage, "read_uncommitted", log) == sample_records("read_uncommitted")
    for name in ("one", "two"):
        ran = stage.run("flush", "--set", "log.owned=true", "--data-dir", str(stage.root / name), log=log)
        assert ran.code == 0, ran.err
    assert stage.run("verify", "--data").code == 0
    listed = [entry.key for head in heads(stage) for entry in head.entries]
    assert len(listed) == len(set(listed)) == SEGMENTS
    assert read(stage, "read_committed", None) == sample_records("read_committed")
