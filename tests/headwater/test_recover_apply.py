"""`headwater recover apply`, on logs that a real broker wrote."""

import json

import pytest

from headwater_core.control.lock import DataDirLock
from tests.headwater.conftest import Stage
from tests.headwater.test_verbs import flip, objects


def test_a_recovery_is_planned_applied_once_and_reported(stage: Stage) -> None:
    assert stage.run("flush", log=stage.log("kitchen")).code == 0
    into = stage.root / "recovered"
    plan = stage.run("recover", "plan", "topic", "--all", "-o", "json")
    assert plan.code == 0
    (stage.root / "plan.json").write_text(plan.out)
    assert stage.run_bare("recover", "status", "--into", str(into)).code == 6
    applied = stage.run("recover", "apply", "--plan", str(stage.root / "plan.json"), "--into", str(into), "-o", "json")
    assert applied.code == 0, applied.err
    assert json.loads(applied.out)[0]["again"] is False
    again = stage.run("recover", "apply", "--plan", str(stage.root / "plan.json"), "--into", str(into), "-o", "json")
    assert json.loads(again.out)[0]["again"] is True
    assert stage.run("recover", "apply", "topic", "--all", "absent", "--into", str(into)).code == 2
    assert stage.run("recover", "plan", "topic", "absent").code == 6
    assert stage.run("recover", "apply").code == 2


@pytest.mark.parametrize("change", ["gone", "flipped"])
def test_a_recovery_names_what_is_damaged_and_goes_on_without_it_on_request(stage: Stage, change: str) -> None:
    assert stage.run("flush", log=stage.log("kitchen")).code == 0
    bad = [next(path for path in objects(stage, ".log") if topic in path.parts) for topic in ("bills", "specials")]
    for path in bad:
        path.unlink() if change == "gone" else flip(path, -3)
    planned = stage.run("recover", "plan", "topic", "--all")
    assert planned.code == (4 if change == "gone" else 0)
    into = stage.root / "recovered"
    applied = stage.run("recover", "apply", "topic", "--all", "--into", str(into))
    assert applied.code == 4
    for path in bad:
        assert path.name in applied.err
        assert change == "flipped" or path.name in planned.err
    assert not (into / "meta.properties").exists()
    skipped = stage.run("recover", "apply", "topic", "--all", "--into", str(into), "--skip-damaged", "-o", "json")
    assert skipped.code == 3
    [report] = json.loads(skipped.out)
    assert sorted(each.partition(":")[0] for each in report["left_out"]) == ["bills", "specials"]
    assert (into / "meta.properties").exists()


def test_a_plan_file_is_refused_when_the_archive_has_changed(stage: Stage) -> None:
    log = stage.log("kitchen")
    assert stage.run("flush", log=log).code == 0
    plan = stage.root / "plan.json"
    plan.write_text(stage.run("recover", "plan", "topic", "--all", "-o", "json").out)
    assert stage.run("delete-before", "orders.in:0", "5", "--yes", log=log).code == 0
    refused = stage.run("recover", "apply", "--plan", str(plan), "--into", str(stage.root / "recovered"))
    assert (refused.code, "orders.in:0 had version" in refused.err) == (2, True)
    assert not (stage.root / "recovered" / "meta.properties").exists()
    plan.write_text(stage.run("recover", "plan", "topic", "--all", "-o", "json").out)
    assert stage.run("recover", "apply", "--plan", str(plan), "--into", str(stage.root / "recovered")).code == 0


def test_a_table_is_no_plan(stage: Stage) -> None:
    assert stage.run("flush", log=stage.log("kitchen")).code == 0
    (stage.root / "table.txt").write_text(stage.run("recover", "plan", "topic", "--all").out)
    ran = stage.run("recover", "apply", "--plan", str(stage.root / "table.txt"), "--into", str(stage.root / "recovered"))
    assert ran.code == 2
    assert "-o json" in ran.err


def test_one_plan_is_applied_to_one_directory_whatever_the_data_directory(stage: Stage) -> None:
    assert stage.run("flush", log=stage.log("kitchen")).code == 0
    plan = stage.root / "plan.json"
    plan.write_text(stage.run("recover", "plan", "topic", "--all", "-o", "json").out)
    codes = [
        stage.run("recover", "apply", "--plan", str(plan), "--into", str(stage.root / into), "--data-dir", str(stage.root / state)).code
        for into, state in (("one", "state1"), ("two", "state2"), ("one", "state2"))
    ]
    assert codes == [0, 2, 0]
    assert not (stage.root / "two" / "meta.properties").exists()


def test_a_recovered_directory_is_not_behind_before_a_broker_has_started_on_it(stage: Stage) -> None:
    assert stage.run("flush", log=stage.log("pantry")).code == 0
    owner = json.loads((stage.bucket / "headwater.json").read_bytes())["cluster_id"]
    into = stage.root / "recovered"
    assert stage.run("recover", "apply", "topic", "--all", "--into", str(into), "--cluster-id", owner).code == 0
    rows = stage.run("status", "-o", "jsonl", log=into).rows
    assert {(row["state"], row["reason"]) for row in rows} == {("recovered", "read-only until a broker starts on it")}
    (into / ".lock").touch()  # as a broker leaves it
    assert "recovered" not in {row["state"] for row in stage.run("status", "-o", "jsonl", log=into).rows}


def test_a_recovery_beside_a_running_agent_needs_no_note(stage: Stage) -> None:
    assert stage.run("flush", log=stage.log("kitchen")).code == 0
    with DataDirLock(stage.data_dir):
        ran = stage.run("recover", "apply", "topic", "--all", "--into", str(stage.root / "one"))
    assert ran.code == 0
    assert "control log" not in ran.err
    assert len(list((stage.bucket / "cluster" / "recoveries").iterdir())) == 1


def test_options_before_the_noun_are_not_lost(stage: Stage) -> None:
    early = stage.run_bare("recover", "apply", "--into", str(stage.root / "early"), "topic", "--all")
    assert early.code == 2
    assert "--into" in early.err
    assert not (stage.root / "early").exists()
