"""`headwater recover plan`, on logs that a real broker wrote."""

import json

import msgspec

from headwater_core.objectstore.digest import digest_of
from tests.headwater.conftest import Stage
from tests.headwater.test_verbs import objects


def test_a_plan_says_what_it_takes(stage: Stage) -> None:
    assert stage.run("flush", log=stage.log("kitchen")).code == 0
    ran = stage.run("recover", "plan", "topic", "--all", "--into", str(stage.root / "recovered"))
    said = [line.partition(":")[0] for line in ran.err.splitlines()]
    assert [each for each in ("room", "time", "brokers") if said.count(each) != 1] == []
    assert " are needed, " in ran.err
    document = stage.run("recover", "plan", "topic", "--all", "--into", str(stage.root / "recovered"), "-o", "json")
    forecast = json.loads(document.out)["forecast"]
    assert all(forecast[name] > 0 for name in ("needed_bytes", "free_bytes", "seconds", "bytes_per_s"))
    dry = stage.run("recover", "apply", "topic", "bills", "--dry-run", "--into", str(stage.root / "recovered"), "-o", "jsonl")
    [row] = dry.rows
    assert row["first"] <= row["last"]
    assert row["left_in_archive"] == 0


def test_a_plan_and_its_application_agree_on_what_cannot_be_served(stage: Stage) -> None:
    assert stage.run("flush", log=stage.log("kitchen")).code == 0
    head = next(path for path in objects(stage, "manifest.json") if path.parts[-4:-3] == ("bills",) and path.parent.name == "0")
    body = json.loads(head.read_bytes())
    body.pop("digest")
    body["leader_epoch"] = 2**31 - 1
    body["digest"] = digest_of(msgspec.json.encode(body, order="sorted"))
    head.write_text(json.dumps(body))
    into = stage.root / "recovered"
    for verb in (["plan"], ["apply", "--dry-run", "--into", str(into)], ["apply", "--into", str(into)]):
        ran = stage.run("recover", verb[0], "topic", "--all", *verb[1:])
        assert ran.code == 3, verb
        assert "left out: bills:0 " in ran.err
