"""What a recovery says comes after it."""

import json

from tests.headwater.conftest import Stage


def test_a_recovery_says_how_to_go_on(stage: Stage) -> None:
    assert stage.run("flush", log=stage.log("kitchen")).code == 0
    owner = json.loads((stage.bucket / "headwater.json").read_bytes())["cluster_id"]
    ran = stage.run("recover", "apply", "topic", "--all", "--into", str(stage.root / "one"))
    assert "Kafka 4.3" in ran.err
    assert "controller.quorum.voters=1@" in ran.err
    assert f"--cluster-id {owner}" in ran.err
    same = stage.run("recover", "apply", "topic", "--all", "--into", str(stage.root / "two"), "--cluster-id", owner)
    assert "--cluster-id" not in same.err
