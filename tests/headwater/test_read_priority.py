"""The read priority set by command, over a real agent and a real client: each tier broken in turn, changed while all goes on."""

import json
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pytest

from headwater.replay import consume
from hydration.config import ReadPriority
from tests.fixtures import expected
from tests.headwater.conftest import Stage
from tests.headwater.gateway.raw import RawClient, a_fetch
from tests.headwater.test_agent import DEADLINE_S, running

TOPIC = "orders.placed"
PLACE = f"{TOPIC}:0"
Breakages = tuple[Callable[[], AbstractContextManager[None]], ...]
SETTINGS = ("--set", "archival.seal_timeout=0s", "--set", "hydration.cache_bytes=0", "--set", "gateway.storage_wait=1s")


def change(stage: Stage, *arguments: str) -> list[dict[str, Any]]:
    ran = stage.run(*arguments, "-o", "jsonl")
    assert ran.code == 0, ran.err
    return ran.rows


@contextmanager
def moved(path: Path, put: Callable[[Path], object] = lambda _: None) -> Iterator[None]:
    """`path` is away for the time of the block, and what `put` makes is in its place."""
    aside = path.with_name(path.name + "+aside")
    path.rename(aside)
    put(path)
    yield
    if path.is_dir():
        shutil.rmtree(path)
    path.unlink(missing_ok=True)
    aside.rename(path)


@contextmanager
def damaged(folder: Path) -> Iterator[None]:
    """Every .log below it, in place."""
    before = {path: path.read_bytes() for path in folder.rglob("*.log")}
    assert before
    for path, content in before.items():
        path.write_bytes(b"\xff" * len(content))
    yield
    for path, content in before.items():
        path.write_bytes(content)


def test_first_falls_back_and_only_never_does_whatever_is_broken(stage: Stage) -> None:
    log = stage.log("pantry")
    wanted = [each for each in expected("pantry", "read_uncommitted") if each["topic"] == TOPIC]
    here, segment = log / f"{TOPIC}-0", min((log / f"{TOPIC}-0").glob("*.log"))
    with running(stage, log, *SETTINGS) as agent:
        address = agent.wait_for("gateway_started")["listen"]
        assert stage.run("flush", log=log).code == 0
        assert all(each.is_dir() for each in (here, stage.bucket / "data"))
        host, _, port = address.rpartition(":")

        def is_read(*, expected: bool = True) -> bool:
            """By librdkafka, each record once, where the gateway has the first one at all. What it knows may be some seconds old: files
            that are gone may still be open."""
            until_s, got = time.monotonic() + DEADLINE_S, not expected
            with RawClient((host, int(port))) as client:
                while got is not expected and time.monotonic() < until_s:
                    got = bool(client.fetch(a_fetch((TOPIC, 0, 0), max_wait=500))["records"])
            if not got:
                return False
            found = [each for each in consume(address, committed=False, keep=lambda topic: topic == TOPIC) if each["partition"] == 0]
            assert sorted(found, key=lambda each: each["offset"]) == [each for each in wanted if each["partition"] == 0]
            return True

        data = stage.bucket / "data"
        local: Breakages = (lambda: moved(here), lambda: moved(segment, Path.mkdir), lambda: damaged(here))
        archive: Breakages = (lambda: moved(data), lambda: moved(stage.bucket), lambda: damaged(data))
        for each in ReadPriority:
            change(stage, "topics", "set", "orders.*", f"read_priority={each.name}")
            assert is_read(), "nothing is broken"
        for name, breakages in (("local", local), ("offloaded", archive)):
            for priority in (f"{name}-first", f"{name}-only"):
                (row,) = change(stage, "topics", "set", "orders.*", f"read_priority={priority}")
                assert (row["value"], row["changed"]) == (priority, True)
                for broken in breakages:
                    with broken():
                        falls_back = priority.endswith("first")
                        assert is_read(expected=falls_back) is falls_back, (priority, breakages.index(broken))
        assert agent.stop() == 0


def test_it_is_kept_in_the_bucket_shown_with_its_origin_and_survives_a_restart(stage: Stage) -> None:
    log = stage.log("pantry")
    assert stage.run("flush", log=log).code == 0
    file = stage.root / "headwater.toml"
    file.write_text(f'[topics."{TOPIC}"]\nread_priority = "local-only"\n')

    def shown(*options: str) -> tuple[str, str]:
        row = change(stage, "topics", "show", TOPIC, *options)[0]
        return row["read_priority"], row["read_priority_origin"]

    assert shown() == ("local-only", "the file, for the topic")
    assert change(stage, "topics", "--set-tiered-read-priority", "acme/orders/placed", "bookkeeper-first", "--dry-run")[0]["dry_run"]
    (row,) = change(stage, "namespaces", "--set-tiered-read-priority", "orders/placed", "OFFLOADED_ONLY")
    assert (row["topic"], row["value"]) == ("orders.placed.*", "offloaded-only")
    assert shown() == ("local-only", "the file, for the topic"), "the pattern does not match"
    change(stage, "topics", "set", "orders.*", "read_priority=TIERED_STORAGE_FIRST")
    assert shown() == ("offloaded-first", "a command, for the pattern orders.*")
    change(stage, "topics", "set", TOPIC, "read_priority=offloaded_only")
    assert shown() == ("offloaded-only", "a command, for the topic")
    document = json.loads((stage.bucket / "meta" / "settings.json").read_bytes())
    assert [(each["pattern"], each["value"]) for each in document["settings"]][-1] == (TOPIC, "offloaded-only")
    explained = change(stage, "explain", f"{PLACE}@0", "--log-dir", str(log))[0]
    assert (explained["answers"], explained["read_priority_origin"]) == ("archive", "a command, for the topic")
    with running(stage, log) as agent:
        agent.wait_for("settings_taken")
        agent.wait_for("gateway_started")
        explained = change(stage, "explain", f"{PLACE}@0", "--log-dir", str(log))[0]
        assert (explained["answers"], explained["why"]) == ("archive", "offloaded-only: no other tier is asked")
        change(stage, "topics", "set", TOPIC, "read_priority=local-first")
        explained = change(stage, "explain", f"{PLACE}@0", "--log-dir", str(log))[0]
        assert (explained["answers"], explained["why"]) == ("local", "local-first, and it holds the offset")
        assert agent.stop() == 0
    assert (stage.data_dir / "settings.json").read_bytes() == (stage.bucket / "meta" / "settings.json").read_bytes()


@pytest.mark.parametrize(
    "arguments",
    [
        ["topics", "set", TOPIC],
        ["topics", "set", TOPIC, "read_priority=quick"],
        ["topics", "set", TOPIC, "release=true"],
        ["topics", "set", TOPIC, "read_priority=local-only", "--incarnation", "IM3fuUQPS0Gn8Gxkq3Kigw"],
        ["topics", "--set-tiered-read-priority", "orders/placed", "local-only"],
        ["namespaces", "--set-tiered-read-priority", "orders", "local-only"],
        ["read", TOPIC, "--read-priority", "quick"],
    ],
)
def test_what_cannot_be_meant_is_refused(stage: Stage, arguments: list[str]) -> None:
    stage.bucket.mkdir()
    ran = stage.run(*arguments)
    assert ran.code == 2, ran.err
    assert not (stage.bucket / "meta").exists()
