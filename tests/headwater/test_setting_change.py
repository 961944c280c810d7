"""A change of what is set by command: its arguments, and what it comes to."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.config import load, parse_commanded, shown
from headwater.setting_change import SettingChange, change_rows, parse_assignments, pulsar_pattern
from headwater_core.errors import UsageError
from hydration.config import ReadPriority
from manifests.setting_list import SettingList
from tests.headwater.conftest import Stage


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("local-first", ReadPriority.LOCAL_FIRST),
        ("BOOKKEEPER_FIRST", ReadPriority.LOCAL_FIRST),
        ("bookkeeper_Only", ReadPriority.LOCAL_ONLY),
        ("OFFLOADED_FIRST", ReadPriority.OFFLOADED_FIRST),
        ("TIERED_STORAGE_FIRST", ReadPriority.OFFLOADED_FIRST),
        ("Tiered-Storage_Only", ReadPriority.OFFLOADED_ONLY),
    ],
)
def test_aliases_are_stored_by_our_own_name(text: str, meant: ReadPriority) -> None:
    after = SettingChange(topic="soup", values={"read_priority": text}).decide(SettingList())
    assert after.values("soup") == {"read_priority": meant.value}


def test_a_key_may_have_the_name_that_the_proposals_use(tmp_path: Path) -> None:
    change = SettingChange(topic="soup", values={"tieredReadPriority": "OFFLOADED_ONLY"})
    assert change.decide(SettingList()).values("soup") == {"read_priority": "offloaded-only"}
    file = tmp_path / "headwater.toml"
    file.write_text('[hydration]\ntieredReadPriority = "BOOKKEEPER_ONLY"\n[topics.soup]\ntieredReadPriority = "offloaded_first"\n')
    config = load(file, {}, {})
    assert config.hydration.read_priority is ReadPriority.LOCAL_ONLY
    assert config.hydration_for("soup").read_priority is ReadPriority.OFFLOADED_FIRST
    for section in ("hydration", "topics.soup"):
        file.write_text(f'[{section}]\ntieredReadPriority = "local-only"\nread_priority = "local-only"\n')
        with pytest.raises(UsageError, match="twice"):
            load(file, {}, {})


@pytest.mark.parametrize(
    ("alias", "number", "key", "field", "value"),
    [
        ("offloadTimeInMinutes", 90, "offload_after", "offload_after_s", 5400),
        ("offloadSizeInMB", 10, "offload_when_local_exceeds", "offload_when_local_exceeds", 10 << 20),
        ("maxSizePerOffloadSegmentMbytes", 64, "max_segment_bytes", "max_segment_bytes", 64 << 20),
        ("maxOffloadSegmentRolloverTimeMinutes", 5, "max_segment_age", "max_segment_age_s", 300),
    ],
)
def test_a_name_of_the_proposals_brings_its_unit(tmp_path: Path, alias: str, number: int, key: str, field: str, value: int) -> None:
    file = tmp_path / "headwater.toml"
    for text in (f"[archival]\n{alias} = {number}\n", f'[topics."s*"]\n{alias} = {number}\n', f'[topics.soup]\n{alias} = "{number}"\n'):
        file.write_text(text)
        assert getattr(load(file, {}, {}).archival_for("soup"), field) == value
    for wrong in (f'"{number}m"', "-1", "1.5", "true", f"{number}\n{key} = 1"):
        file.write_text(f"[archival]\n{alias} = {wrong}\n")
        with pytest.raises(UsageError, match=alias if "\n" not in wrong else "twice|expected"):
            load(file, {}, {})
    file.write_text(f"[archival]\n{alias.lower()} = {number}\n")
    with pytest.raises(UsageError, match="unknown key"):
        load(file, {}, {})


ALIASES = [
    ("archival.offloadTimeInMinutes", "90", "archival.offload_after", "90m"),
    ("archival.offloadSizeInMB", "10", "archival.offload_when_local_exceeds", "10MiB"),
    ("archival.maxSizePerOffloadSegmentMbytes", "64", "archival.max_segment_bytes", "64MiB"),
    ("archival.maxOffloadSegmentRolloverTimeMinutes", "5", "archival.max_segment_age", "5m"),
    ("archival.s3ChunkSize", "8MiB", "archival.chunk_bytes", "8MiB"),
    ("archival.s3ClientThreadNum", "7", "archival.chunks_in_flight", "7"),
    ("archival.tieredStoreGroupCommitSize", "6MiB", "archival.chunk_commit_bytes", "6MiB"),
    ("hydration.tieredReadPriority", "BOOKKEEPER_ONLY", "hydration.read_priority", "local-only"),
    ("hydration.readaheadChunkNum", "3", "hydration.readahead_chunks", "3"),
    ("store.s3Bucket", "my-archive", "store.url", "s3://my-archive"),
    ("store.s3Region", "eu-central-1", "store.region", "eu-central-1"),
]


def variable(key: str) -> str:
    return "HEADWATER_" + key.replace(".", "_").upper()


@pytest.mark.parametrize(("alias", "text", "key", "value"), ALIASES)
def test_a_name_of_the_proposals_is_one_in_flags_and_the_environment_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, alias: str, text: str, key: str, value: str
) -> None:
    monkeypatch.chdir(tmp_path)  # no headwater.toml of anybody's
    expected = next(row for row in shown(load(None, {}, {key: value})) if row[0] == key)
    by_flag, by_variable = load(None, {}, {alias: text}), load(None, {variable(alias): text}, {})
    assert next(row for row in shown(by_flag) if row[0] == key) == expected
    assert next(row for row in shown(by_variable) if row[0] == key) == (*expected[:2], f"${variable(alias)}")
    assert load(None, {variable(key): "1.5x"}, {alias: text}).origins[key] == "a flag", "a flag wins over the environment by either name"
    for environ, flags in (({}, {alias: text, key: value}), ({variable(alias): text, variable(key): value}, {})):
        with pytest.raises(UsageError, match=f"{key} is given twice"):
            load(None, environ, flags)


def test_a_number_with_the_unit_of_its_name_is_whole_wherever_it_is_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    key = "archival.offloadTimeInMinutes"
    for environ, flags in (({}, {key: "1.5"}), ({variable(key): "1.5"}, {})):
        with pytest.raises(UsageError, match=r"offloadTimeInMinutes: a whole number of minutes expected, not '1\.5'"):
            load(None, environ, flags)
    for wrong in ("hydration.offloadTimeInMinutes", "archival.readaheadChunkNum", "archival.s3Bucket"):
        for environ, flags in (({}, {wrong: "1"}), ({variable(wrong): "1"}, {})):
            with pytest.raises(UsageError, match="unknown"):
                load(None, environ, flags)


@pytest.mark.parametrize("key", ["s3AccessKey", "s3SecretAccessKey"])
@pytest.mark.parametrize("place", ["", "store.", "archival."])
def test_a_credential_is_refused_by_name_in_flags_and_the_environment_and_not_repeated(place: str, key: str) -> None:
    for environ, flags in (({}, {place + key: "hunter2"}), ({variable(place + key): "hunter2"}, {})):
        with pytest.raises(UsageError, match=f"{key}: credentials never stand.*AWS_SECRET_ACCESS_KEY") as caught:
            load(None, environ, flags)
        assert "hunter2" not in str(caught.value)


@given(st.integers(0, 10**9), st.integers(0, 10**15))
def test_what_is_set_by_command_is_kept_to_the_second_and_the_byte(after_s: int, log_bytes: int) -> None:
    values: dict[str, str | None] = {"offload_after": f"{after_s}s", "offload_when_local_exceeds": str(log_bytes)}
    after = SettingChange(topic="soup", values=values).decide(SettingList()).values("soup")
    assert parse_commanded("offload_after", after["offload_after"]) == after_s
    assert parse_commanded("offload_when_local_exceeds", after["offload_when_local_exceeds"]) == log_bytes


def test_triggers_may_be_set_by_command_and_by_the_names_of_the_proposals() -> None:
    change = SettingChange(topic="soup", values={"offloadTimeInMinutes": "90", "offloadSizeInMB": "2048"})
    assert change.own_values() == {"offload_after": "90m", "offload_when_local_exceeds": "2GiB"}


def test_a_row_tells_what_was_and_what_is() -> None:
    before = SettingList().changed("soup", {"read_priority": "local-only"}, now_ms=1, by="cook")
    change = SettingChange(topic="soup", values={"read_priority": None})
    (row,) = change_rows(change, lambda decide: decide(before), dry_run=True)
    assert row == {"topic": "soup", "key": "read_priority", "value": None, "before": "local-only", "changed": True, "dry_run": True}


@pytest.mark.parametrize(
    "values",
    [{}, {"read_priority": "quick"}, {"read_priority": ""}, {"release": "true"}, {"read_priorty": "local-only"}, {"nonsense": "1"}],
)
def test_what_cannot_be_set_by_command_is_refused(values: dict[str, str | None]) -> None:
    with pytest.raises(UsageError):
        SettingChange(topic="soup", values=values)


def test_a_topic_may_be_a_pattern_and_no_more() -> None:
    SettingChange(topic="team-a.*", values={"read_priority": "local-only"})
    for wrong in ("", "a b", "a/b", "[a"):
        with pytest.raises(UsageError):
            SettingChange(topic=wrong, values={"read_priority": "local-only"})


def test_assignments() -> None:
    assert parse_assignments(("a=1", " b = ")) == {"a": "1", "b": None}
    for wrong in (("a",), ("=1",), ("a=1", "a=2")):
        with pytest.raises(UsageError):
            parse_assignments(wrong)


def test_names_of_pulsar_are_names_with_dots() -> None:
    assert pulsar_pattern("shop/orders", 2) == "shop.orders.*"
    assert pulsar_pattern("shop/orders/placed", 3) == "shop.orders.placed"
    assert pulsar_pattern("persistent://shop/orders/placed", 3) == "shop.orders.placed"
    for text, parts in (("shop", 2), ("shop/", 2), ("shop/orders", 3), ("shop/o*", 2), ("a/b/c/d", 3)):
        with pytest.raises(UsageError):
            pulsar_pattern(text, parts)


levels = st.fixed_dictionaries(
    {},
    optional={each: st.sampled_from(list(ReadPriority)) for each in ("cluster", "file pattern", "file topic", "set pattern", "set topic")},
)


@given(levels)
def test_the_nearest_level_wins(levels: dict[str, ReadPriority]) -> None:
    """A topic set by command, a pattern set by command, the topic in the file, a pattern in the file, the cluster, the default."""
    from tempfile import NamedTemporaryFile

    lines = [f"[hydration]\nread_priority = '{levels['cluster'].value}'"] if "cluster" in levels else []
    for level, pattern in (("file topic", "team.soup"), ("file pattern", "team.*")):
        if level in levels:
            lines.append(f"[topics.'{pattern}']\nread_priority = '{levels[level].name}'")
    settings = SettingList()
    for level, pattern in (("set topic", "team.soup"), ("set pattern", "team.*")):
        if level in levels:
            settings = settings.changed(pattern, {"read_priority": levels[level].value}, now_ms=1, by="cook")
    with NamedTemporaryFile("w", suffix=".toml") as file:
        file.write("\n".join(lines))
        file.flush()
        config = load(Path(file.name), {}, {}).with_commands(settings)
    strongest = next((each for each in ("set topic", "set pattern", "file topic", "file pattern", "cluster") if each in levels), None)
    expected = levels[strongest] if strongest else ReadPriority.LOCAL_FIRST
    assert config.hydration_for("team.soup").read_priority is expected
    said = config.origin_for("team.soup", "read_priority")
    told = {
        "set topic": "a command, for the topic",
        "set pattern": "a command, for the pattern team.*",
        "file topic": "the file, for the topic",
        "file pattern": "the file, for the pattern team.*",
        None: "default",
    }
    assert said == told[strongest] if strongest != "cluster" else said.startswith("hydration.read_priority of ")
    assert config.hydration_for("other").read_priority is levels.get("cluster", ReadPriority.LOCAL_FIRST)


def test_of_two_patterns_the_one_set_last_wins_and_what_is_unknown_is_left_out() -> None:
    settings = SettingList()
    for pattern, key, value in (
        ("team.*", "read_priority", "local-only"),
        ("*", "read_priority", "offloaded-only"),
        ("team.*", "read_priority", "offloaded-first"),
        ("team.*", "from_a_newer_version", "1"),
        ("team.soup", "read_priority", "newest-first"),
    ):
        settings = settings.changed(pattern, {key: value}, now_ms=1, by="cook")
    assert load(None, {}, {}).with_commands(settings).hydration_for("team.soup").read_priority is ReadPriority.OFFLOADED_FIRST


def test_what_is_set_is_shown_for_patterns_and_topics_that_are_not_archived(stage: Stage) -> None:
    (stage.root / "headwater.toml").write_text('[topics."soup.*"]\nlayout = "blocks"\n[topics.stew]\noffload_after = "2h"\n')
    stage.bucket.mkdir()
    nothing = stage.run("topics", "list")
    assert (nothing.code, nothing.err) == (0, "")
    for place, assignment in (
        ("soup.*", "read_priority=local-only"),
        ("soup.hot", "offloadTimeInMinutes=90"),
        ("s*", "tieredReadPriority=OFFLOADED_ONLY"),
    ):
        assert stage.run("topics", "set", place, assignment).code == 0
    assert "3 set by command" in stage.run("topics", "list").err

    def shown(selection: str) -> list[tuple[str, ...]]:
        ran = stage.run("topics", "show", selection, "-o", "jsonl")
        assert ran.code == 0, ran.err
        return [tuple(row[key] for key in ("pattern", "key", "value", "origin", "by")) for row in ran.rows]

    in_file = [("soup.*", "layout", "blocks", "the file", ""), ("stew", "offload_after", "2h", "the file", "")]
    by_command = [
        ("soup.*", "read_priority", "local-only", "a command", "headwater"),
        ("soup.hot", "offload_after", "90m", "a command", "headwater"),
        ("s*", "read_priority", "offloaded-only", "a command", "headwater"),
    ]
    assert shown("*") == in_file + by_command
    assert shown("soup.*") == [in_file[0], *by_command[:2]], "what the pattern matches, and no wider one"
    assert shown("s*") == in_file + by_command
    assert shown("soup.hot") == [in_file[0], *by_command], "all that holds for it, though it is not archived"
    assert shown("stew") == [in_file[1], by_command[2]]
    assert stage.run("topics", "show", "bread").code == 6
    assert shown("b*") == []
    assert stage.run("topics", "show", "s/x*").code == 2
    assert "90m" in stage.run("topics", "show", "soup.hot").out
