"""One id runs through a command, the agent that works for it, and its error."""

import json
import re

from tests.headwater.conftest import Stage
from tests.headwater.test_agent import running

ID = r"\d{8}T\d{6}\.\d{3}Z-[0-9a-f]{8}"


def test_a_pass_of_its_own_names_the_operation_in_every_event_and_in_its_error(stage: Stage) -> None:
    log = stage.log("kitchen")
    first, second = (stage.run("flush", "--log-level", "info", log=log) for _ in range(2))
    events = [json.loads(line) for line in first.err.splitlines() if line.startswith("{")]
    archived = {event.get("operation") for event in events if event["event"] in ("partition_claimed", "run_archived")}
    assert len(archived) == 1
    [operation] = archived
    assert re.fullmatch(ID, str(operation))
    assert str(operation) not in second.err
    failed = stage.run("archive", "absent", log=log)
    assert re.search(rf"^headwater: absent is not in the log directories \(operation {ID}\)$", failed.err, re.MULTILINE)
    assert "(operation" not in stage.run("archive", "no topic", log=log).err


def test_the_agents_events_and_its_api_name_the_operation_of_the_commands_error(stage: Stage) -> None:
    log = stage.log("kitchen")
    with running(stage, log, "--set", "archival.archive=manual") as agent:
        agent.wait_for("gateway_started")
        assert stage.run("flush", log=log).code == 0
        begun = agent.wait_for("operation_started", verb="flush")
        agent.wait_for("operation_ended", operation=begun["operation"], state="done")
        archived = [each for each in agent.events if each["event"] == "run_archived"]
        assert archived
        assert {each.get("operation") for each in archived} == {begun["operation"]}
        failed = stage.run("archive", "absent", log=log)
        named = re.search(rf"\(operation ({ID})\)$", failed.err.strip())
        assert named is not None
        assert agent.wait_for("operation_ended", operation=named[1])["reason"] == "absent is not in the log directories"
        assert agent.stop() == 0
