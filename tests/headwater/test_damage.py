"""Damage to what the bucket says of one topic, or of itself: named, and in nobody else's way."""

import json
import shutil
from dataclasses import dataclass
from pathlib import Path

import pytest

from headwater.replay import consume
from headwater_core.objectstore.directory import DirectoryStore
from headwater_core.objectstore.store import ObjectStore
from headwater_core.objectstore.store_url import open_store
from manifests import keys
from tests.headwater.admin.client import call
from tests.headwater.conftest import Ran, Stage
from tests.headwater.test_agent import running
from tests.s3server import S3Server

TOPIC = "orders.in"
DOCUMENTS = ["current.json", "topic.json"]


@dataclass(frozen=True, slots=True)
class Shelf:
    """The archive of kitchen, in a store of any kind; `verb` runs one on it."""

    stage: Stage
    store: ObjectStore
    there: tuple[str, ...]

    def verb(self, *arguments: str, log: Path | None = None) -> Ran:
        return self.stage.run(*arguments, *self.there, log=log)

    def keys(self, topic: str, name: str) -> list[str]:
        found = [each.key for each in self.store.list(f"meta/{topic}/") if each.key.endswith("/" + name)]
        assert found
        return found

    def put(self, key: str, document: bytes | None) -> None:
        """`document` in the place of what is there; None: nothing."""
        self.store.delete(key)
        if document is not None:
            self.store.create(key, document)

    def topics(self) -> list[str]:
        return [row["topic"] for row in self.verb("topics", "list", "-o", "jsonl").rows]

    def recovered(self, *arguments: str) -> tuple[Ran, dict[str, int]]:
        """What `recover apply` gave back: records by topic."""
        ran = self.verb("recover", "apply", "topic", *arguments, "--into", str(self.stage.root / "recovered"), "-o", "jsonl")
        return ran, {each["topic"]: each["records"] for row in ran.rows for each in row["topics"]}


def on_directory(stage: Stage) -> Shelf:
    return Shelf(stage, DirectoryStore(stage.bucket), ())


@pytest.fixture
def shelf(stage: Stage) -> Shelf:
    assert stage.run("flush", log=stage.log("kitchen")).code == 0
    return on_directory(stage)


def test_two_damaged_topics_and_healthy_ones_in_one_bucket(stage: Stage) -> None:
    tell_the_whole_story(on_directory(stage))


def test_the_same_in_a_bucket_of_s3(stage: Stage, s3_environ: S3Server) -> None:
    url = f"s3://{s3_environ.bucket()}/a/prefix"
    store = open_store(url, endpoint_url=s3_environ.endpoint_url)
    tell_the_whole_story(Shelf(stage, store, ("--store", url, "--endpoint-url", s3_environ.endpoint_url)))


def tell_the_whole_story(shelf: Shelf) -> None:
    """A topic of which only data remains, two with damaged documents, one with a damaged head: each is told, by every verb."""
    log = shelf.stage.log("kitchen")
    assert shelf.verb("flush", log=log).code == 0
    every = shelf.topics()
    gone, unnamed, unreported, headless = "specials", TOPIC, "bills", "menu"
    assert {gone, unnamed, unreported, headless} < set(every)
    for info in list(shelf.store.list(f"meta/{gone}/")):
        shelf.store.delete(info.key)
    [current], [topic], [head, *_] = (
        shelf.keys(unnamed, "current.json"),
        shelf.keys(unreported, "topic.json"),
        shelf.keys(headless, "manifest.json"),
    )
    shelf.put(current, shelf.store.get(current)[0][:-20])
    shelf.put(topic, shelf.store.get(topic)[0].replace(b'"partitions": ', b'"partitions": 1'))
    shelf.put(head, b"\x00" * 100)
    shelf.put(keys.OWNER, b"")
    healthy = [each for each in every if each not in (gone, unnamed, unreported, headless)]

    verified = shelf.verb("verify", "--data", "-o", "jsonl")
    assert verified.code == 4
    reported = {(row["topic"], row["key"]) for row in verified.rows}
    assert {("", keys.OWNER), (unnamed, current), (unreported, topic), (headless, head)} < reported
    assert {topic for topic, _ in reported} == {"", gone, unnamed, unreported, headless}
    listed = shelf.verb("topics", "list", "-o", "jsonl")
    assert listed.code == 3
    assert [row["topic"] for row in listed.rows] == sorted([*healthy, headless])
    assert unnamed in listed.err
    assert unreported in listed.err
    assert headless in listed.err
    shutil.rmtree(log)
    shutil.rmtree(shelf.stage.data_dir)
    for each in healthy:
        if not each.startswith("__"):
            assert shelf.verb("read", each).rows
    assert shelf.verb("read", unnamed).code == 4
    plan = shelf.verb("recover", "plan", "topic", "--all", "-o", "json")
    assert plan.code == 3
    assert sorted(each.partition(":")[0] for each in json.loads(plan.out)["left_out"]) == sorted([unreported, headless])
    assert [note for note in json.loads(plan.out)["notes"] if note.startswith(f"{unnamed}: ") and "only incarnation" in note]
    ran, topics = shelf.recovered("--all")
    assert ran.code == 3
    assert sorted(topics) == sorted([*healthy, unnamed])
    for each in (unreported, headless):
        assert f"left out: {each}" in ran.err
        assert shelf.verb("recover", "plan", "topic", each).code == 4


@pytest.mark.parametrize("document", [None, b"", b"{}", b"[[[[", b'{"format":[1,0],"digest":""}'])
@pytest.mark.parametrize("name", DOCUMENTS)
def test_a_lost_document_of_a_topic(shelf: Shelf, name: str, document: bytes | None) -> None:
    every = shelf.topics()
    [key] = shelf.keys(TOPIC, name)
    shelf.put(key, document)
    for selection in ([], [TOPIC], [f"{TOPIC}:0"]):
        ran = shelf.verb("verify", *selection, "-o", "jsonl")
        assert (ran.code, [(row["topic"], row["key"]) for row in ran.rows]) == (4, [(TOPIC, key)]), selection
    assert shelf.verb("verify", "bills").code == 0
    assert shelf.topics() == [each for each in every if each != TOPIC]
    assert shelf.verb("topics", "list").code == 3
    named = 6 if document is None else 4
    recovered = 0 if name == "current.json" else named  # one incarnation is there, whatever the name means
    for code, verb in (
        (named, ["topics", "show", TOPIC]),
        (recovered, ["recover", "plan", "topic", TOPIC]),
        (recovered, ["recover", "plan", "topic", TOPIC, "menu"]),
    ):
        ran = shelf.verb(*verb)
        assert ran.code == code, verb
        assert name in ran.err or "digest" in ran.err or "byte 0" in ran.err
    plan = shelf.verb("recover", "plan", "topic", "--all")
    assert plan.code == (3 if recovered else 0)
    assert TOPIC in plan.err
    dry = shelf.verb("recover", "apply", "topic", "--all", "--dry-run", "--into", str(shelf.stage.root / "none"))
    assert dry.code == plan.code
    assert not (shelf.stage.root / "none").exists()


def test_a_plan_file_that_leaves_something_out_comes_to_the_same(shelf: Shelf) -> None:
    shelf.put(shelf.keys(TOPIC, "topic.json")[0], b"{")
    file, into = shelf.stage.root / "plan.json", str(shelf.stage.root / "recovered")
    file.write_text(shelf.verb("recover", "plan", "topic", "--all", "-o", "json").out)
    for again in (False, True):
        ran = shelf.verb("recover", "apply", "--plan", str(file), "--into", into, "-o", "json")
        assert (ran.code, json.loads(ran.out)[0]["again"]) == (3, again)
        assert f"left out: {TOPIC}" in ran.err


@pytest.mark.parametrize("name", DOCUMENTS)
def test_status_and_reading_go_on_beside_a_damaged_topic(shelf: Shelf, name: str) -> None:
    log = shelf.stage.root / "kitchen"
    whole = shelf.verb("read", "bills", log=log).out
    mine = shelf.verb("read", TOPIC, log=log).out
    shelf.put(shelf.keys(TOPIC, name)[0], b"{")
    ran = shelf.verb("status", "-o", "jsonl", log=log)
    assert ran.code == 3
    states = {row["topic"]: row["state"] for row in ran.rows}
    assert (states.pop(TOPIC), set(states.values())) == ("stopped", {"archived"})
    assert shelf.verb("read", "bills", log=log).out == whole
    local = shelf.verb("read", TOPIC, log=log)
    assert (local.code, local.out) == (3, mine)
    one = shelf.verb("read", f"{TOPIC}:0", log=log)
    assert one.code == 0
    shutil.rmtree(log)
    assert shelf.verb("read", "bills").out == whole
    for selection in (TOPIC, f"{TOPIC}:0"):
        assert shelf.verb("read", selection).code == 4
        assert shelf.verb("status", selection).code == 4
    assert shelf.verb("status").code == 3


def test_a_damaged_owner_keeps_writers_away_and_nobody_else(shelf: Shelf) -> None:
    log = shelf.stage.root / "kitchen"
    read = shelf.verb("read", TOPIC).out
    shelf.put(keys.OWNER, b'{"format": [1, 0]}')
    for there in (log, None):
        ran = shelf.verb("read", TOPIC, log=there)
        assert (ran.code, ran.out) == (0, read)
        assert "headwater.json" in ran.err
    verified = shelf.verb("verify", "-o", "jsonl")
    assert (verified.code, [row["key"] for row in verified.rows]) == (4, [keys.OWNER])
    assert shelf.verb("topics", "list").code == 0
    ran, topics = shelf.recovered("--all")
    assert (ran.code, "headwater.json" in ran.err, TOPIC in topics) == (0, True, True)
    before = {info.key for info in shelf.store.list("")}
    refused = shelf.verb("flush", "--data-dir", str(shelf.stage.root / "anew"), log=log)
    assert refused.code in (3, 4)
    assert "headwater.json" in refused.err
    assert {info.key for info in shelf.store.list("")} == before


def test_an_owner_that_is_gone_is_found(shelf: Shelf) -> None:
    shelf.store.delete(keys.OWNER)
    ran = shelf.verb("verify", "-o", "jsonl")
    assert (ran.code, [row["key"] for row in ran.rows]) == (4, [keys.OWNER])


def test_only_data_is_left_of_a_topic(shelf: Shelf) -> None:
    filled = [row["partition"] for row in shelf.verb("topics", "show", TOPIC, "-o", "jsonl").rows if row["objects"]]
    assert filled
    for info in list(shelf.store.list(f"meta/{TOPIC}/")):
        shelf.store.delete(info.key)
    for selection in ([], [TOPIC]):
        ran = shelf.verb("verify", *selection, "-o", "jsonl")
        assert ran.code == 4
        assert {(row["topic"], row["kind"]) for row in ran.rows} == {(TOPIC, "no-manifest")}
        assert sorted(row["partition"] for row in ran.rows) == filled
    assert shelf.verb("verify", "bills").code == 0
    assert shelf.verb("verify", "absent").code == 6


def test_a_damaged_head_leaves_its_partition_uncounted(shelf: Shelf) -> None:
    before = {row["topic"]: row["objects"] for row in shelf.verb("topics", "list", "-o", "jsonl").rows}
    key = shelf.keys(TOPIC, "manifest.json")[0]
    shown = shelf.verb("topics", "show", TOPIC, "-o", "jsonl").rows
    shelf.put(key, b"{}")
    listed = shelf.verb("topics", "list", "-o", "jsonl")
    assert listed.code == 3
    assert {row["topic"]: row["objects"] for row in listed.rows if row["topic"] != TOPIC} == {
        topic: objects for topic, objects in before.items() if topic != TOPIC
    }
    ran = shelf.verb("topics", "show", TOPIC, "-o", "jsonl")
    number = int(key.split("/")[-2])
    assert (ran.code, ran.rows) == (3, [row for row in shown if row["partition"] != number])
    assert f"{TOPIC}:{number}" in ran.err


@pytest.mark.slow
def test_known_damage_outlives_the_agent_until_the_object_is_restored(shelf: Shelf) -> None:
    stage, log = shelf.stage, shelf.stage.root / "kitchen"
    path = next(path for path in sorted((stage.bucket / "data").rglob("*.log")) if TOPIC in path.parts)
    sound = path.read_bytes()
    path.write_bytes(sound[:100] + bytes([sound[100] ^ 1]) + sound[101:])
    options = ("--set", "hydration.read_priority=offloaded-only")

    with running(stage, log, *options) as agent:
        address = agent.wait_for("gateway_started")["listen"]
        with pytest.raises(Exception, match="Invalid message"):
            list(consume(address, committed=False, keep=lambda topic: topic == TOPIC))
        found = agent.wait_for("object_damaged")
        assert agent.stop() == 0
    number = int(found["partition"].partition(":")[2])
    assert (stage.data_dir / "damage.json").exists()
    shutil.rmtree(stage.data_dir / "cache")

    with running(stage, log, *options) as agent:
        agent.wait_for("gateway_started")
        [row] = [each for each in stage.run("status", TOPIC, "-p", "-o", "jsonl", log=log).rows if each["partition"] == number]
        assert row["state"] == "damaged"
        assert found["key"] in row["damage"]
        [line] = stage.run("explain", f"{found['partition']}@0", "-o", "jsonl", log=log).rows
        assert found["key"] in line["damage"]
        assert "damaged" in stage.run("explain", f"{found['partition']}@0", log=log).out
        assert "headwater_damaged_objects 1.0" in call(stage.data_dir, "/metrics").text
        ready = call(stage.data_dir, "/readyz")
        assert (ready.status, "[!]archive: 1 object damaged" in ready.text) == (200, True)
        assert agent.stop() == 0

    path.write_bytes(sound)
    with running(stage, log, *options) as agent:
        agent.wait_for("object_damage_cleared", key=found["key"])
        [row] = [each for each in stage.run("status", TOPIC, "-p", "-o", "jsonl", log=log).rows if each["partition"] == number]
        assert (row["state"], row["damage"]) == ("archived", "")
        assert agent.stop() == 0
