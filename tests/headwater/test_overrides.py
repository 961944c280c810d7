"""What a command states, compared with the settings of the agent that carries it out."""

from pathlib import Path

import pytest

from headwater.config import Config, load
from headwater.overrides import AgentSettings, stated_settings, store_overrides
from tests.headwater.conftest import Stage
from tests.headwater.test_agent import running


def a_config(directory: Path, file: str = "", environ: dict[str, str] | None = None, **flags: object) -> Config:
    (directory / "headwater.toml").write_text(file)
    return load(directory / "headwater.toml", environ or {}, {key.replace("__", "."): value for key, value in flags.items()})


def test_only_what_is_stated_counts(tmp_path: Path) -> None:
    file = 'archival.seal_timeout = "5m"\nstore.url = "s3://bucket/prefix/"\nnode.data_dir = "state"\n'
    config = a_config(tmp_path, file, {"HEADWATER_ARCHIVAL_RESCAN": "10s"}, node__log_level="info", archival__merge_bytes="1MiB")
    stated = {"archival.rescan": "10s", "archival.merge_bytes": "1MiB", "store.url": "s3://bucket/prefix"}
    assert stated_settings(config) == stated
    assert stated_settings(config, of_file=False) == {key: text for key, text in stated.items() if key != "store.url"}
    assert store_overrides(config) == {"store.url": "s3://bucket/prefix"}
    assert stated_settings(a_config(tmp_path)) == {}


def test_the_same_place_by_another_path_is_no_conflict(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "logs").mkdir()
    (tmp_path / "link").symlink_to("logs")
    agent = a_config(tmp_path, store__url=f"file://{tmp_path}/logs/b%20c", log__dirs=[str(tmp_path / "logs"), "/b"])
    settings = AgentSettings(lambda: agent)
    monkeypatch.chdir(tmp_path)
    same = a_config(tmp_path, store__url=f"file://{tmp_path}/link/b%20c/", log__dirs=["/b", "link"])
    assert settings.conflict(stated_settings(same)) == ""
    other = a_config(tmp_path, log__dirs=["link"], archival__seal_timeout="90s")
    reason = settings.conflict(stated_settings(other))
    assert "archival.seal_timeout is 90s in this command, and 30m in the agent" in reason
    assert f"log.dirs is {tmp_path}/logs in this command" in reason
    assert "unknown.key" in settings.conflict({"unknown.key": "1"})


def test_settings_that_were_read_again_count(tmp_path: Path) -> None:
    known = [a_config(tmp_path)]
    settings, stated = AgentSettings(lambda: known[0]), {"archival.rescan": "7s"}
    assert settings.conflict(stated)
    known[0] = a_config(tmp_path, archival__rescan="7s")
    assert settings.conflict(stated) == ""


VERBS = (
    ["archive"],
    ["flush"],
    ["gc", "--yes"],
    ["delete-before", "orders.placed:0", "1", "--yes"],
    ["pause", "--all"],
    ["resume", "--all"],
    ["topics", "set", "orders.placed", "archive=off"],
    ["topics", "set-tiered-read-priority", "a/b/c", "local-only"],
    ["namespaces", "--set-tiered-read-priority", "a/b", "local-only"],
    ["config", "reload"],
    ["status"],
    ["explain", "orders.placed:0"],
    ["explain", "orders.placed:0@1"],
    ["operations", "list"],
    ["operations", "show", "20260131T120000.123Z-9f86d081"],
    ["operations", "cancel", "20260131T120000.123Z-9f86d081"],
)
"""Every command that a running agent carries out."""


def test_whatever_contradicts_a_running_agent_is_refused_by_every_verb_that_it_carries_out(stage: Stage) -> None:
    log = stage.log("pantry")
    (stage.root / "other.toml").write_text('[store]\nurl = "s3://other/elsewhere"\n')
    ways = (
        ["--store", "nonsense"],
        ["--store", "s3://other/elsewhere"],
        ["--log-dir", "/nonexistent"],
        ["--endpoint-url", "http://localhost:1"],
        ["--set", "archival.seal_timeout=7s"],
    )
    with running(stage, log) as agent:
        agent.wait_for("gateway_started")
        for verb in VERBS:
            ran = stage.run(*verb, "--log-dir", "/nonexistent")
            assert (ran.code, "carries this out" in ran.err, ran.out) == (2, True, ""), (verb, ran.err)
        for way in ways:
            ran = stage.run("archive", *way, log=log)
            assert (ran.code, ran.out) == (2, ""), (way, ran.err)
            assert stage.run("status", *way, log=log).code == 2, way
        bare = stage.run_bare("flush", "--config", "other.toml", "--data-dir", str(stage.data_dir), "--log-dir", str(log))
        assert (bare.code, "store.url is s3://other/elsewhere in this command" in bare.err) == (2, True), bare.err
        assert stage.run("archive", log=log).code == 0
        assert stage.run_bare("pause", "--all", "--data-dir", str(stage.data_dir)).code == 0
        assert not (stage.bucket / "meta" / "settings.json").exists()


def test_every_command_states_its_settings_to_the_agent() -> None:
    root = Path(__file__).parents[2] / "headwater"
    bare = [path.name for path in root.rglob("*.py") if "AgentApi(config.node.data_dir)" in path.read_text("utf-8")]
    assert bare == []
