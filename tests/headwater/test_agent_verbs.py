"""What an agent does on request, over its API and a session that is open as an agent's is."""

import threading
from collections.abc import Iterator
from typing import Any, cast

import pytest

from archival.partition.archiver import Outcome, PartitionArchiver
from archival.plan.policy import Policy
from headwater.admin.operations import OperationState
from headwater.agent_api import AgentApi
from headwater.agent_verbs import AgentVerbs
from headwater.config import load
from headwater.session import Session, open_session
from headwater_core.errors import NotFound, TransientError, UsageError
from headwater_core.partition import PartitionId
from headwater_core.segments.local_log import LocalLog
from tests.headwater.admin.apps import serving_locally
from tests.headwater.admin.test_admin_server import eventually
from tests.headwater.conftest import Stage


@pytest.fixture
def held(stage: Stage) -> Iterator[Session]:
    flags = {"node.data_dir": str(stage.data_dir), "store.url": f"file://{stage.bucket}", "log.dirs": [str(stage.log("kitchen"))]}
    with open_session(load(None, {}, flags)) as opened:
        yield opened


@pytest.fixture
def api(held: Session) -> Iterator[AgentApi]:
    data_dir = held.config.node.data_dir
    with serving_locally(data_dir, AgentVerbs(held, lambda: None).all()):
        yield AgentApi(data_dir)


def last(api: AgentApi) -> dict[str, Any]:
    found: dict[str, Any] = api.get("/v1/operations", {"limit": 1}, timeout_s=30)["operations"][0]
    return found


def test_a_pass_knows_how_many_partitions_there_are_and_sums_up_what_it_did(api: AgentApi) -> None:
    rows = list(api.rows("/v1/flush", timeout_s=60))
    done = last(api)
    assert len(rows) > 5
    assert (done["verb"], done["state"], done["done"], done["total"], done["unit"]) == ("flush", "done", len(rows), len(rows), "partitions")
    assert done["results"] == {
        "objects": sum(row["objects"] for row in rows),
        "archived_bytes": sum(row["archived_bytes"] for row in rows),
        "released_bytes": 0,
        "failed": 0,
    }
    assert done["results"]["objects"] > 0
    [one] = api.rows("/v1/archive", {"selection": "orders.in:0"}, timeout_s=60)
    assert (one["topic"], last(api)["total"], last(api)["arguments"]) == ("orders.in", 1, {"selection": "orders.in:0"})


def test_a_collection_knows_how_many_partitions_there_are(api: AgentApi) -> None:
    list(api.rows("/v1/flush", timeout_s=60))
    rows = list(api.rows("/v1/gc", {"dry_run": True}, timeout_s=60))
    done = last(api)
    assert (done["verb"], done["done"], done["total"]) == ("gc", len(rows), len(rows))
    assert done["results"]["deleted"] == 0


def test_a_pass_that_nobody_waits_for_any_more_ends_and_leaves_the_archivers_usable(api: AgentApi, monkeypatch: pytest.MonkeyPatch) -> None:
    step, go = PartitionArchiver.step, threading.Event()
    quick = set[PartitionId]()
    list(api.rows("/v1/flush", timeout_s=60))  # so that one step of a partition is all there is to do

    def slow(archiver: PartitionArchiver, policy: Policy, log: LocalLog | None = None, **how: Any) -> Outcome:
        if len(quick) < 2:
            quick.add(archiver.partition)
        if archiver.partition not in quick:
            go.wait(30)
        return step(archiver, policy, log, **how)

    monkeypatch.setattr(PartitionArchiver, "step", slow)
    rows = api.rows("/v1/archive", timeout_s=60)
    next(rows)
    rows.close()  # type: ignore[attr-defined]
    assert eventually(lambda: bool(last(api)["cancelling"]) or last(api)["state"] == "cancelled")
    go.set()
    assert eventually(lambda: last(api)["state"] == "cancelled")
    assert 0 < last(api)["done"] < last(api)["total"]
    assert len(list(api.rows("/v1/archive", timeout_s=60))) > 5


def test_a_pass_that_is_cancelled_says_so_to_who_waits_for_it(api: AgentApi, monkeypatch: pytest.MonkeyPatch) -> None:
    step = PartitionArchiver.step
    began, go = threading.Event(), threading.Event()

    def slow(archiver: PartitionArchiver, policy: Policy, log: LocalLog | None = None, **how: Any) -> Outcome:
        began.set()
        go.wait(30)
        return step(archiver, policy, log, **how)

    monkeypatch.setattr(PartitionArchiver, "step", slow)
    rows = api.rows("/v1/archive", timeout_s=60)

    def cancel() -> None:
        began.wait(30)
        api.post(f"/v1/operations/{last(api)['id']}/cancel", timeout_s=30)
        go.set()

    cancelling = threading.Thread(target=cancel)
    cancelling.start()
    with pytest.raises(TransientError, match="the pass was stopped before its end"):
        list(rows)
    cancelling.join()
    assert last(api)["state"] == OperationState.CANCELLED.value


def test_pauses_are_made_and_ended_and_rows_say_what_is_paused(api: AgentApi, held: Session) -> None:
    [row] = api.rows("/v1/pause", {"selection": "orders.in"}, timeout_s=30)
    assert (row["selection"], row["by"]) == ("orders.in", held.config.node.id)
    assert list(api.rows("/v1/resume", {"everything": True}, timeout_s=30)) == []


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/archive", {"selection": "no topic"}),
        ("/v1/archive", {"selection": "orders:x"}),
        ("/v1/archive", {"before": -1}),
        ("/v1/archive", {"before": 2**63}),
        ("/v1/archive", {"older_than_s": 1}),
        ("/v1/flush", {"older_than_s": -1}),
        ("/v1/flush", {"older_than_s": "1h"}),
        ("/v1/gc", {"selection": ""}),
        ("/v1/gc", {"before": 5}),
        ("/v1/gc", {"before": 5, "selection": "orders"}),
        ("/v1/pause", {}),
        ("/v1/pause", {"selection": "orders", "everything": True}),
        ("/v1/resume", {"selection": "a b"}),
        ("/v1/reload", {"now": True}),
        ("/v1/explain", {}),
        ("/v1/explain", {"selection": "orders"}),
        ("/v1/explain", {"selection": "orders:0", "offset": "5"}),
    ],
    ids=str,
)
def test_what_cannot_be_requested_is_refused_before_anything_begins(path: str, body: dict[str, Any], api: AgentApi) -> None:
    with pytest.raises(UsageError):
        api.post(path, body, timeout_s=30)
    assert api.get("/v1/operations", timeout_s=30)["operations"] == []


def test_what_is_not_there_is_an_error_of_the_operation(api: AgentApi) -> None:
    with pytest.raises(NotFound, match="absent is not in the log directories"):
        list(api.rows("/v1/archive", {"selection": "absent"}, timeout_s=30))
    assert (last(api)["state"], last(api)["exit_code"]) == ("failed", 6)


def test_what_an_operator_needs_at_once_waits_for_no_long_work() -> None:
    verbs = AgentVerbs(cast(Session, None), lambda: None).all()
    assert {each.name for each in verbs if not each.is_short} == {"archive", "flush", "gc"}
