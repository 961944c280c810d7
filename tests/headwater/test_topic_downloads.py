"""Topics that an agent over an owned log directory downloads, as their settings say."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from headwater.config import load
from headwater.live_config import LiveConfig
from headwater.replay import consume
from headwater.session import open_session
from headwater.topic_downloads import RETRY_S, TopicDownloads
from headwater.wiring import Bucket
from headwater_core.errors import DiskFull, TransientError, UsageError
from headwater_core.objectstore.directory import DirectoryStore
from headwater_core.objectstore.store import DOCUMENT_BYTES_MAX
from headwater_core.segments import checkpoints
from headwater_core.segments.log_dirs import LogDirs
from manifests import keys
from manifests.repository import ManifestRepository
from tests.fixtures import expected, unpack
from tests.headwater.conftest import Stage
from tests.headwater.test_agent import running
from tests.headwater_core.control.local_control import LocalControl
from tests.headwater_core.manual_clock import ManualClock
from tests.headwater_core.objectstore.memory import MemoryStore
from tests.recovery.archived import archive, archive_in_memory
from tests.recovery.interrupted import Failing

SETTINGS = """
[log]
dirs = ["{log}"]
owned = {owned}
[node]
data_dir = "{state}"
[store]
url = "file://{bucket}"
[control]
listen = "127.0.0.1:0"
"""
TOPIC = """
[topics."{topic}"]
recover_from = "{manifest}"
retention_bytes = "1GiB"
release = false
"""


@pytest.fixture
def kitchen() -> MemoryStore:
    return archive_in_memory(unpack("kitchen"))[0]


def manifest_of(topic: str, repository: ManifestRepository) -> str:
    return keys.topic_manifest(topic, repository.resolve(topic).topic_id)


class Place:
    """An empty owned log directory of the archive's own cluster, and what is said of it."""

    def __init__(self, root: Path, repository: ManifestRepository) -> None:
        self.root, self.log, self.file = root, root / "log", root / "headwater.toml"
        self.log.mkdir()
        owner = repository.owner()
        assert owner is not None
        properties = checkpoints.MetaProperties(cluster_id=owner.cluster_id, node_id=1, directory_id="x" * 22)
        (self.log / checkpoints.META_PROPERTIES).write_bytes(checkpoints.encode_meta_properties(properties))

    def write(self, topic: str, manifest: str, *, owned: bool = True) -> None:
        self.file.write_text(
            SETTINGS.format(
                log=self.log,
                owned=str(owned).lower(),
                state=self.root / "state",
                bucket=self.root / "bucket",
            )
        )
        self.add(topic, manifest)

    def add(self, topic: str, manifest: str) -> None:
        """To what was written."""
        with self.file.open("a") as file:
            file.write(TOPIC.format(topic=topic, manifest=manifest))

    def downloads(self, store: MemoryStore, clock: ManualClock) -> tuple[TopicDownloads, Callable[[], object]]:
        live = LiveConfig(load(self.file, {}, {}), lambda: load(self.file, {}, {}))
        bucket = Bucket(store, ManifestRepository(store))
        return TopicDownloads(live, LogDirs([self.log], owned=True), bucket, LocalControl(), clock), live.reload

    def empty(self) -> None:
        for path in self.log.glob("*-[0-9]"):
            shutil.rmtree(path)

    def topics(self) -> set[str]:
        return {path.name.rpartition("-")[0] for path in self.log.iterdir() if path.is_dir() and not path.name.startswith(".")}


@pytest.fixture
def place(kitchen: MemoryStore, tmp_path: Path) -> Place:
    return Place(tmp_path, ManifestRepository(kitchen))


def test_a_topic_is_downloaded_when_its_settings_say_so_and_once(place: Place, kitchen: MemoryStore) -> None:
    place.write("bills", manifest_of("bills", ManifestRepository(kitchen)))
    downloads, reload = place.downloads(kitchen, ManualClock())
    with capture_logs() as logs:
        downloads.look()
        downloads.look()
        place.write("menu", manifest_of("menu", ManifestRepository(kitchen)))
        reload()
        downloads.look()
    assert place.topics() == {"bills", "menu"}
    outcomes = [(each["topic"], each["outcome"]) for each in logs if each["event"] == "topic_recovery_settled"]
    assert outcomes == [("bills", "downloaded"), ("menu", "downloaded")]


def test_a_store_that_is_silent_is_asked_again_later(place: Place, kitchen: MemoryStore) -> None:
    place.write("orders.in", manifest_of("orders.in", ManifestRepository(kitchen)))
    clock, silent = ManualClock(), Failing(kitchen, TransientError("timed out"), 0)
    downloads, _ = place.downloads(silent, clock)
    with capture_logs() as logs:
        downloads.look()
        silent.left = 1 << 30
        downloads.look()
        assert place.topics() == set()
        clock.advance(int(RETRY_S * 1000))
        downloads.look()
    assert place.topics() == {"orders.in"}
    events = [each["event"] for each in logs if each["event"].startswith("topic_recovery")]
    assert events == ["topic_recovery_postponed", "topic_recovery_settled"]


def test_what_failed_is_tried_again_when_the_settings_are_read_again(place: Place, kitchen: MemoryStore) -> None:
    place.write("bills", manifest_of("bills", ManifestRepository(kitchen)))
    damaged = next(info.key for info in kitchen.list("data/") if "/bills/" in info.key and info.key.endswith(".log"))
    whole = kitchen.get(damaged)[0]
    kitchen.delete(damaged)
    clock = ManualClock()
    downloads, reload = place.downloads(kitchen, clock)
    with capture_logs() as logs:
        downloads.look()
        kitchen.create(damaged, whole)
        clock.advance(int(RETRY_S * 1000))
        downloads.look()
        assert place.topics() == set()
        reload()
        downloads.look()
    assert [each["event"] for each in logs if each["event"].startswith("topic_")] == ["topic_not_recovered", "topic_recovery_settled"]
    assert place.topics() == {"bills"}


def test_a_full_disk_is_tried_again(place: Place, kitchen: MemoryStore) -> None:
    place.write("orders.in", manifest_of("orders.in", ManifestRepository(kitchen)))
    clock, full = ManualClock(), Failing(kitchen, DiskFull("no room"), 0)
    downloads, _ = place.downloads(full, clock)
    with capture_logs() as logs:
        downloads.look()
        clock.advance(int(RETRY_S * 1000))
        full.left = 1 << 30
        downloads.look()
    events = [each["event"] for each in logs if each["event"].startswith("topic_")]
    assert events == ["topic_recovery_postponed", "topic_recovery_settled"]
    assert place.topics() == {"orders.in"}


class Broken(MemoryStore):
    """Its first read of one topic's manifest ends with what nothing here expects."""

    def __init__(self, other: MemoryStore, topic: str) -> None:
        self.__dict__ = dict(other.__dict__)
        self.topic, self.left = topic, 1

    def get(self, key: str, *, max_bytes: int = DOCUMENT_BYTES_MAX) -> tuple[bytes, str]:
        if f"/{self.topic}/" in key and self.left:
            self.left -= 1
            raise OSError("a defect")
        return super().get(key, max_bytes=max_bytes)


def test_a_defect_ends_neither_the_others_nor_the_next_try(place: Place, kitchen: MemoryStore) -> None:
    place.write("bills", manifest_of("bills", ManifestRepository(kitchen)))
    place.add("menu", manifest_of("menu", ManifestRepository(kitchen)))
    clock = ManualClock()
    downloads, _ = place.downloads(Broken(kitchen, "bills"), clock)
    with capture_logs() as logs:
        downloads.look()
        assert place.topics() == {"menu"}
        clock.advance(int(RETRY_S * 1000))
        downloads.look()
    assert place.topics() == {"bills", "menu"}
    events = [(each["event"], each["topic"]) for each in logs if each["event"].startswith("topic_")]
    assert events == [("topic_recovery_failed", "bills"), ("topic_recovery_settled", "menu"), ("topic_recovery_settled", "bills")]


def test_what_another_host_has_begun_waits_for_it_or_for_a_word(place: Place, kitchen: MemoryStore, tmp_path: Path) -> None:
    """Its host is lost: somebody deletes its record, and the download begins here, without a restart."""
    manifest = manifest_of("orders.in", ManifestRepository(kitchen))
    (tmp_path / "lost").mkdir()
    lost = Place(tmp_path / "lost", ManifestRepository(kitchen))
    lost.write("orders.in", manifest)
    lost.downloads(Failing(kitchen, TransientError("gone"), 0), ManualClock())[0].look()
    place.write("orders.in", manifest)
    clock = ManualClock()
    downloads, _ = place.downloads(kitchen, clock)
    with capture_logs() as logs:
        downloads.look()
        [begun] = [info.key for info in kitchen.list("cluster/recoveries/")]
        assert begun in logs[-1]["reason"]
        assert str(lost.log) in logs[-1]["reason"]
        kitchen.delete(begun)
        clock.advance(int(RETRY_S * 1000))
        downloads.look()
    assert [each["event"] for each in logs if each["event"].startswith("topic_")] == ["topic_recovery_postponed", "topic_recovery_settled"]
    assert place.topics() == {"orders.in"}


def test_beside_a_broker_nothing_is_downloaded(place: Place, kitchen: MemoryStore) -> None:
    place.write("bills", manifest_of("bills", ManifestRepository(kitchen)), owned=False)
    downloads, _ = place.downloads(kitchen, ManualClock())
    with capture_logs() as logs:
        downloads.look()
        downloads.look()
    assert [each["event"] for each in logs] == ["topic_not_recovered"]
    assert place.topics() == set()


def test_a_session_downloads_and_another_one_does_not(tmp_path: Path) -> None:
    """As an agent does: with a start in between, and the topic emptied."""
    (tmp_path / "bucket").mkdir()
    repository = archive(unpack("kitchen"), DirectoryStore(tmp_path / "bucket"))
    place = Place(tmp_path, repository)
    place.write("bills", manifest_of("bills", repository))
    with open_session(load(place.file, {}, {})) as session:
        assert session.downloads is not None
        session.downloads.look()
        assert place.topics() == {"bills"}
    place.empty()
    with open_session(load(place.file, {}, {})) as session, capture_logs() as logs:
        assert session.downloads is not None
        session.downloads.look()
    assert [each["outcome"] for each in logs if each["event"] == "topic_recovery_settled"] == ["done"]
    assert place.topics() == set()


def logs_of(topic: str, log_dir: Path) -> dict[str, bytes]:
    """What the segments of each of its partitions hold, by directory."""
    return {each.name: b"".join(path.read_bytes() for path in sorted(each.glob("*.log"))) for each in log_dir.glob(f"{topic}-[0-9]")}


def test_an_agent_downloads_what_its_file_names_at_its_start_and_when_it_reads_it_again(stage: Stage) -> None:
    """Topics of several partitions, of which some are empty. What is emptied later is not downloaded by the next start."""
    topics, source = ("orders.in", "bills"), unpack("kitchen")
    stage.bucket.mkdir()
    repository = archive(source, DirectoryStore(stage.bucket), topics)
    place = Place(stage.root, repository)
    place.write("orders.in", manifest_of("orders.in", repository))
    file = ("--config", str(place.file))
    with running(stage, place.log, *file) as agent:
        agent.wait_for("topic_recovery_settled", topic="orders.in", outcome="downloaded")
        place.add("bills", manifest_of("bills", repository))
        assert stage.run("config", "reload", *file).code == 0
        address = agent.wait_for("gateway_started")["listen"]
        got = list(consume(address, committed=False, keep=lambda topic: topic == "orders.in"))
        assert sorted(got, key=lambda record: (record["partition"], record["offset"])) == [
            record for record in expected("kitchen", "read_uncommitted") if record["topic"] == "orders.in"
        ]
        agent.wait_for("topic_recovery_settled", topic="bills", outcome="downloaded")
        assert agent.stop() == 0
    for topic in topics:
        assert logs_of(topic, place.log) == logs_of(topic, source)
        assert len(logs_of(topic, place.log)) == repository.resolve(topic).partitions > 1
    place.empty()
    with running(stage, place.log, *file) as agent:
        for topic in topics:
            agent.wait_for("topic_recovery_settled", topic=topic, outcome="done")
        assert agent.stop() == 0
    assert place.topics() == set()


@pytest.mark.parametrize(
    "text",
    [
        '[archival]\nrecover_from = "meta/a/le4ruHkrRAmAJUx9PH5t3A/topic.json"\n',
        '[topics."a*"]\nrecover_from = "meta/a/le4ruHkrRAmAJUx9PH5t3A/topic.json"\n',
        '[topics.a]\nrecover_from = "a"\n',
        '[topics.a]\nrecover_from = "meta/a/le4ruHkrRAmAJUx9PH5t3A/0/manifest.json"\n',
    ],
)
def test_a_manifest_is_for_one_topic_by_its_name(text: str, tmp_path: Path) -> None:
    (tmp_path / "headwater.toml").write_text(text)
    with pytest.raises(UsageError, match="recover_from"):
        load(tmp_path / "headwater.toml", {}, {})
