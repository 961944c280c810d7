"""What is requested of a recovery, as the command line takes it."""

import json
from typing import Any

from tests.headwater.conftest import Stage


def test_partition_counts_are_given_by_topic(stage: Stage) -> None:
    assert stage.run("flush", log=stage.log("kitchen")).code == 0
    both = ("recover", "plan", "topic", "bills", "menu", "-o", "json")
    made = json.loads(stage.run(*both, "--partitions", "bills=9", "--partitions", "menu=7").out)
    assert {topic["topic"]: len(topic["partitions"]) for topic in made["topics"]} == {"bills": 9, "menu": 7}
    alone = json.loads(stage.run("recover", "plan", "topic", "bills", "--partitions", "9", "-o", "json").out)
    assert [len(topic["partitions"]) for topic in alone["topics"]] == [9]
    for wrong in ("9", "bills=0", "bills=x", "bills=", "=3x", "specials=3"):
        assert stage.run(*both, "--partitions", wrong).code == 2, wrong


def test_modes_patterns_names_and_ends_on_the_command_line(stage: Stage) -> None:
    assert stage.run("flush", log=stage.log("kitchen")).code == 0

    def planned(*arguments: str) -> dict[str, Any]:
        ran = stage.run("recover", "plan", "topic", *arguments, "-o", "json")
        assert ran.code == 0, ran.err
        made: dict[str, Any] = json.loads(ran.out)
        return {topic["topic"]: topic for topic in made["topics"]}

    everything = planned("--all")
    assert planned("orders.*").keys() == {name for name in everything if name.startswith("orders.")}
    assert planned("m[e]n?", "bills").keys() == {"menu", "bills"}
    end = everything["orders.in"]["partitions"][0]["next_offset"]
    [instant] = planned("orders.in", "--mode", "instant").values()
    assert (instant["partitions"][0]["start_offset"], instant["partitions"][0]["next_offset"]) == (end, end)
    [partial] = planned("orders.in", "--mode", "partial", "--keep-bytes", "1").values()
    wanted = [min(1, len(each["entries"])) for each in everything["orders.in"]["partitions"]]
    assert [len(each["entries"]) for each in partial["partitions"]] == wanted
    [cut] = planned("orders.in", "--to-offset", "orders.in:0=0").values()
    assert cut["partitions"][0]["next_offset"] == 0
    [early] = planned("orders.in", "--to-time", "2001-01-01T00:00:00Z").values()
    assert {each["next_offset"] for each in early["partitions"]} == {0}
    assert planned("orders.in", "--as", "again").keys() == {"again"}
    assert planned("orders.in", "bills", "--as", "bills=checks").keys() == {"orders.in", "checks"}
    assert len(planned("orders.in", "--partitions", "1", "--drop-partitions")["orders.in"]["partitions"]) == 1
    for wrong in (
        ["orders.in", "--mode", "partial"],
        ["orders.in", "--keep-ms", "5"],
        ["orders.in", "--to-offset", "orders.in=4"],
        ["orders.in", "--to-offset", "orders.in:0=4", "--to-offset", "orders.in:0=5"],
        ["orders.in", "--to-time", "yesterday"],
        ["orders.in", "bills", "--as", "again"],
        ["orders.*", "--as", "again"],
        ["orders.in", "--as", "__again"],
        ["orders.in", "--partitions", "1"],
        ["orders in*"],
    ):
        assert stage.run("recover", "plan", "topic", *wrong).code == 2, wrong
    assert stage.run("recover", "plan", "topic", "nosuch*").code == 6
    into = stage.root / "again"
    assert stage.run("recover", "apply", "topic", "orders.in", "--as", "again", "--into", str(into)).code == 0
    assert sorted(path.name for path in into.glob("again-*")) == [f"again-{each['partition']}" for each in partial["partitions"]]
