"""A trigger that would come after the broker's own retention is refused where it is set, and shown where it comes to be so later."""

import json
from pathlib import Path

import pytest

from headwater.config import Config, load
from headwater.trigger_check import check_triggers, differ
from headwater_core.errors import UsageError
from headwater_core.segments.log_dirs import LogDirs
from tests.fixtures import unpack
from tests.headwater.conftest import Stage

# In the kitchen's metadata log specials keeps its records for 7,654,321 ms, orders.in for a day, and all others for 83 days.


def with_triggers(tmp_path: Path, text: str) -> Config:
    file = tmp_path / "headwater.toml"
    file.write_text(text)
    return load(file, {}, {})


def test_the_topics_own_retention_counts(tmp_path: Path) -> None:
    dirs = LogDirs([unpack("kitchen")])
    checked = check_triggers(with_triggers(tmp_path, '[archival]\noffload_after = "3h"'), dirs)
    assert [topic for topic, _ in checked.refused] == ["specials"]
    with pytest.raises(UsageError, match=r"topic specials: offload_after = 10800000 ms is not below the topic's retention.ms = 7654321 ms"):
        checked.raise_refused()
    assert not check_triggers(with_triggers(tmp_path, '[archival]\noffload_after = "2h"'), dirs).refused
    assert len(check_triggers(with_triggers(tmp_path, '[archival]\noffload_after = "3000h"'), dirs).refused) > 5


def test_what_nobody_says_is_a_warning_until_the_brokers_file_is_named(tmp_path: Path) -> None:
    config = with_triggers(tmp_path, '[topics."orders*"]\noffload_when_local_exceeds = "1GiB"')
    checked = check_triggers(config, LogDirs([unpack("kitchen")]))
    assert not checked.refused
    assert "log.server_properties" in checked.warning
    known = check_triggers(config, LogDirs([unpack("kitchen")], static={"log.retention.bytes": str(1 << 30)}))
    assert [topic for topic, _ in known.refused] == ["orders.in"], "the one topic that the pattern names"
    assert not known.unknown
    assert not check_triggers(config, LogDirs([unpack("kitchen")], static={})).warning


def test_only_what_is_new_stands_in_the_way_of_a_reload(tmp_path: Path) -> None:
    before = with_triggers(tmp_path, '[topics.specials]\noffload_after = "3h"')
    after = with_triggers(tmp_path, '[archival]\nuploads_in_flight = 2\n[topics.specials]\noffload_after = "3h"')
    dirs = LogDirs([unpack("kitchen")])
    assert not check_triggers(after, dirs, differ(before, after)).refused
    worse = with_triggers(tmp_path, '[topics.specials]\noffload_after = "4h"')
    assert check_triggers(worse, dirs, differ(before, worse)).refused


def test_config_check_refuses_it_and_warns_of_the_unknown(stage: Stage) -> None:
    log = stage.log("kitchen")
    refused = stage.run("config", "check", "--set", "archival.offload_after=3h", log=log)
    assert refused.code == 2
    assert "specials" in refused.err
    warned = stage.run("config", "check", "--set", "archival.offload_when_local_exceeds=1GiB", log=log)
    assert warned.code == 0
    assert "log.server_properties" in warned.err
    properties = stage.root / "server.properties"
    properties.write_text("log.retention.bytes=1000000\n")
    named = ("--set", f"log.server_properties={properties}")
    assert stage.run("config", "check", "--set", "archival.offload_when_local_exceeds=1GiB", *named, log=log).code == 2
    assert stage.run("config", "check", "--set", "archival.offload_when_local_exceeds=900000", *named, log=log).err == ""


def test_topics_set_refuses_it_and_changes_nothing(stage: Stage) -> None:
    log = stage.log("kitchen")
    assert stage.run("archive", "menu", log=log).code == 0
    for pattern in ("specials", "s*"):
        for dry in ((), ("--dry-run",)):
            refused = stage.run("topics", "set", pattern, "offload_after=3h", *dry, log=log)
            assert refused.code == 2
            assert "specials" in refused.err
    assert not (stage.bucket / "meta" / "settings.json").exists()
    assert stage.run("topics", "set", "orders.in", "offloadTimeInMinutes=180", log=log).code == 0
    settings = json.loads((stage.bucket / "meta" / "settings.json").read_text())["settings"]
    assert [(each["pattern"], each["key"], each["value"]) for each in settings] == [("orders.in", "offload_after", "3h")]


def test_the_status_says_which_trigger_is_not_applied(stage: Stage) -> None:
    log = stage.log("kitchen")
    assert stage.run("archive", log=log).code == 0
    rows = json.loads(stage.run("status", "-p", "-o", "json", "--set", "archival.offload_after=3h", log=log).out)
    troubled = {row["topic"] for row in rows if row["trigger_trouble"]}
    assert troubled == {"specials"}
    assert stage.run("topics", "set", "specials", "offload_after=3h").code == 0, "no broker is beside this command"
    by_command = json.loads(stage.run("status", "-p", "-o", "json", log=log).out)
    assert {row["topic"] for row in by_command if row["trigger_trouble"]} == {"specials"}
    told = stage.run("status", "specials", "-p", "--set", "archival.offload_after=3h", log=log).out
    assert "not applied: offload_after" in told
