"""File, environment, flags: what wins, what is refused, and how it says so."""

from pathlib import Path

import pytest

from headwater.config import Config, load, shown
from headwater_core.errors import UsageError
from headwater_core.layouts.chunks import Variant
from headwater_core.layouts.chunks.chunks_layout import ChunksLayout
from hydration.config import ReadPriority


def from_toml(tmp_path: Path, text: str, environ: dict[str, str] | None = None, flags: dict[str, object] | None = None) -> Config:
    file = tmp_path / "headwater.toml"
    file.write_text(text)
    return load(file, environ or {}, flags or {})


def test_the_example_in_the_design_page_is_valid(tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs" / "design.md").read_text()
    example = page.partition("```toml\n")[2].partition("```")[0]
    config = from_toml(tmp_path, example)
    assert config.store.url == "s3://bucket/prefix"
    assert config.archival.seal_timeout_s == 1800
    assert config.hydration.cache_bytes == 20 << 30
    assert config.hydration_for("team-a.orders").read_priority is ReadPriority.OFFLOADED_FIRST
    assert config.hydration_for("team-b.orders").read_priority is ReadPriority.LOCAL_FIRST


def test_flags_win_over_the_environment_and_that_over_the_file(tmp_path: Path) -> None:
    toml = '[node]\nid = "file"\n[store]\nurl = "file:///file"\nregion = "file"\n'
    config = from_toml(
        tmp_path, toml, {"HEADWATER_STORE_URL": "file:///env", "HEADWATER_STORE_REGION": "env"}, {"store.url": "file:///flag"}
    )
    assert (config.node.id, config.store.region, config.store.url) == ("file", "env", "file:///flag")
    assert config.origins["store.region"] == "$HEADWATER_STORE_REGION"


def test_values_are_text_in_the_environment(tmp_path: Path) -> None:
    environ = {"HEADWATER_LOG_DIRS": "/a, /b", "HEADWATER_LOG_OWNED": "true", "HEADWATER_HYDRATION_CACHE_BYTES": "1GiB"}
    config = from_toml(tmp_path, "", environ)
    assert config.log.dirs == (Path("/a"), Path("/b"))
    assert config.log.owned
    assert config.hydration.cache_bytes == 1 << 30


@pytest.mark.parametrize(
    ("toml", "words"),
    [
        ("[archival]\nseal_timout = '5m'", "did you mean 'archival.seal_timeout'"),
        ("[archvial]\nseal_timeout = '5m'", "did you mean 'archival'"),
        ("[store]\nendpoint = 'x'", "did you mean 'store.endpoint_url'"),
        ("[node]\nseal_timeout = '5m'", "did you mean 'archival.seal_timeout'"),
        ("store = 'x'", "must be a section"),
        ("[topics.a]\nread_priorty = 'local-only'", "did you mean 'read_priority'"),
        ("[topics]\na = 1", "must be a section"),
        ("[topics.'Bad Topic']\nrelease = true", "no topic name and no pattern"),
        ("[topics.'a[']\nrelease = true", "no topic name and no pattern"),
        ("[archival]\nseal_timeout = 30", "a duration"),
        ("[hydration]\nread_priority = 'local'", "local"),
        ("[node]\nlog_level = 'loud'", "'loud' is not one of auto, debug, info, warning, error"),
        ("[node]\nlog_format = 'xml'", "'xml' is not one of auto, console, json"),
        ("[log]\nlayout = 'redpanda'", "kafka"),
        ("[log]\nbootstrap_servers = 'localhost'", "'localhost' is not host:port"),
        ("[log]\nbootstrap_servers = 'localhost:9092'\nowned = true", "there is no broker to ask"),
        ("[archival]\narchive = 'never'", "'never' is not one of auto, manual, off"),
        ("[archival]\nuploads_in_flight = 0", "1 to 64"),
        ("[archival]\nupload_bytes_per_s = '1KiB'", "at least 1048576"),
        ("topics = 3", "must be a section"),
        ("[gateway]\nconnections_max = inf", "a whole number"),
        ("[gateway]\nnode_id = 2147483648", "int32"),
        ("[gateway]\nworkers = 1000000", "workers"),
        ("[gateway]\nlisten = 'localhost:²'", "not an address"),
        ("[gateway]\nupstream = 'kafka'", "not an address"),
        ("[gateway]\nupstream = ':9092'", "upstream"),
        ("[gateway]\nupstream = 'a:0'", "upstream"),
        ("[gateway]\nupstream = 'a:1'\nadvertised = '{node_id.x}:{port}'", "is not host:port"),
        ("[gateway]\nupstream = 'a:1'\nadvertised = ':{port}'", "advertised"),
        ("[gateway]\nupstream = 'a:1'\nadvertised = 'http://x-{node_id}:1'", "advertised"),
        ("[gateway]\nupstream = 'a:1'\nadvertised = 'x-{node_id}:99999'", "not an address"),
        ("[topics.orders]\nearliest = 'first'", "first"),
        ("[gateway]\nunknown_apis = 'some'", "some"),
        ("[gateway]\nupstream = 'a:1'\nadvertised = 'kafka:9092'", "{node_id} or {port}"),
        ("[gateway]\nupstream = 'a:1'\nadvertised = 'kafka-{broker}:9092'", "is not host:port"),
        ("[gateway]\nupstream = 'a:1'\nadvertised = '{host}:{node_id.real}x'", "is not host:port"),
        ("[gateway]\nupstream = 'a:1'\nupstream_port_map = '3'", "ID:PORT"),
        ("[gateway]\nupstream = 'a:1'\nupstream_port_map = '3:0'", "ID:PORT"),
        ("[gateway]\nupstream = 'a:1'\nupstream_port_map = ['3:19', '4:19']", "once more"),
        ("[gateway]\nupstream = 'a:1'\nupstream_port_map = ['3:9292']", "port of listen"),
        ("[gateway]\nupstream = 'a:1'\nupstream_base_port = 0", "no port"),
        ("[gateway]\nupstream_request_bytes_max = '2GiB'", "upstream_request_bytes_max"),
        ("[store", "not TOML"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, toml: str, words: str) -> None:
    with pytest.raises(UsageError) as caught:
        from_toml(tmp_path, toml)
    assert words in str(caught.value)


def test_brokers_are_given_as_text_or_as_a_list(tmp_path: Path) -> None:
    for given in ('"a.example:9092, [::1]:9092"', '["a.example:9092", "[::1]:9092"]'):
        assert from_toml(tmp_path, f"[log]\nbootstrap_servers = {given}").log.bootstrap_servers == ("a.example:9092", "[::1]:9092")


def test_an_unknown_environment_variable_names_the_nearest() -> None:
    with pytest.raises(UsageError, match="did you mean 'HEADWATER_STORE_URL'"):
        load(None, {"HEADWATER_STROE_URL": "x"}, {})


def test_the_service_links_of_kubernetes_are_no_settings() -> None:
    """A Service called headwater, or headwater-admin, puts these into every pod of its namespace."""
    address = "tcp://10.0.0.1:9292"
    links = {"SERVICE_HOST": "10.0.0.1", "SERVICE_PORT": "9292", "SERVICE_PORT_KAFKA": "9292", "PORT": address, "PORT_9292_TCP": address}
    links |= {f"PORT_9292_TCP_{part}": "x" for part in ("PROTO", "PORT", "ADDR")}
    environ = {f"HEADWATER_{service}{name}": value for service in ("", "ADMIN_") for name, value in links.items()}
    assert load(None, environ, {}) == load(None, {}, {})
    with pytest.raises(UsageError, match="HEADWATER_GATEWAY_PORT_RANGE"):
        load(None, {"HEADWATER_GATEWAY_PORT_RANGE": "1"}, {})


def test_no_setting_looks_like_a_service_link() -> None:
    names = [f"HEADWATER_{key.replace('.', '_').upper()}" for key, _, _ in shown(load(None, {}, {}))]
    for name in names:
        with pytest.raises(UsageError):
            load(None, {name + "_X": "x"}, {})
    alike = [name for name in names if name.endswith(("_PORT", "_HOST", "_TCP"))]
    assert alike == ["HEADWATER_GATEWAY_UPSTREAM_BASE_PORT"]  # whoever calls a Service headwater-gateway-upstream-base is told
    with pytest.raises(UsageError, match=alike[0]):
        load(None, {alike[0]: "tcp://10.0.0.1:9292"}, {})


def test_an_unknown_flag_setting_names_the_nearest() -> None:
    with pytest.raises(UsageError, match=r"did you mean 'hydration\.chunk_bytes'"):
        load(None, {}, {"hydration.chunk_byte": "1MiB"})


def test_a_file_that_was_named_must_be_there(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no configuration file"):
        load(tmp_path / "absent.toml", {}, {})
    with pytest.raises(UsageError, match="no configuration file"):
        load(None, {"HEADWATER_CONFIG": str(tmp_path / "absent.toml")}, {})


def test_without_a_file_everything_has_a_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    config = load(None, {}, {"node.data_dir": "/data"})
    assert config.store.url == "file:///data/archive"


def test_a_topics_own_name_wins_over_patterns_and_later_patterns_over_earlier(tmp_path: Path) -> None:
    config = from_toml(
        tmp_path,
        """
        [topics."team-a.orders"]
        read_priority = "local-only"
        [topics."team-a.*"]
        read_priority = "offloaded-first"
        seal_timeout = "1m"
        [topics."*.clicks"]
        read_priority = "offloaded-only"
        """,
    )
    assert config.hydration_for("team-a.orders").read_priority is ReadPriority.LOCAL_ONLY
    assert config.hydration_for("team-a.clicks").read_priority is ReadPriority.OFFLOADED_ONLY
    assert config.archival_for("team-a.clicks").seal_timeout_s == 60
    assert config.archival_for("team-b.clicks").seal_timeout_s == config.archival.seal_timeout_s


def test_everything_is_shown_with_its_origin(tmp_path: Path) -> None:
    config = from_toml(tmp_path, '[archival]\nseal_timeout = "90s"\n')
    rows = {key: (value, origin) for key, value, origin in shown(config)}
    assert rows["archival.seal_timeout"] == ("1 m 30 s", str(tmp_path / "headwater.toml"))
    assert rows["hydration.read_priority"] == ("local-first", "default")


def test_keys_may_have_the_names_of_rocketmqs_proposal(tmp_path: Path) -> None:
    config = from_toml(tmp_path, '[store]\ns3Bucket = "my-archive"\ns3Region = "eu-west-1"\n[hydration]\nreadaheadChunkNum = 3\n')
    assert (config.store.url, config.store.region, config.hydration.readahead_chunks) == ("s3://my-archive", "eu-west-1", 3)
    assert ("store.url", "s3://my-archive", str(tmp_path / "headwater.toml")) in list(shown(config))
    for wrong in ('s3Bucket = "s3://my-archive"', 's3Bucket = "a/b"', "s3Bucket = 1", 's3Bucket = "x"'):
        with pytest.raises(UsageError, match="name of a bucket"):
            from_toml(tmp_path, f"[store]\n{wrong}\n")
    for both in ('s3Bucket = "abc"\nurl = "s3://abc"', 'region = "x"\ns3Region = "x"'):
        with pytest.raises(UsageError, match="given twice"):
            from_toml(tmp_path, f"[store]\n{both}\n")
    for elsewhere in ('[archival]\ns3Region = "x"', "[topics.a]\nreadaheadChunkNum = 3", "[store]\nreadaheadChunkNum = 3"):
        with pytest.raises(UsageError, match="unknown key"):
            from_toml(tmp_path, elsewhere)


def test_a_topic_may_choose_chunks_and_how_they_are_cut(tmp_path: Path) -> None:
    config = from_toml(
        tmp_path,
        """
[archival]
s3ClientThreadNum = 7
[topics."team-a.*"]
layout = "chunks"
[topics."team-a.big"]
chunk_variant = "fixed"
s3ChunkSize = 8388608
""",
    )
    plain, small, big = (config.archival_for(topic) for topic in ("other", "team-a.small", "team-a.big"))
    assert [each.offloader.name for each in (plain, small, big)] == ["segment", "chunks", "chunks"]
    assert (small.chunk_variant, big.chunk_variant, big.chunk_bytes, big.chunks_in_flight) == (Variant.APPEND, Variant.FIXED, 8 << 20, 7)
    assert (plain.chunks_in_flight, plain.chunk_senders) == (7, 7)
    for chunk, commit, senders in (("4MiB", "8MiB", 2), ("8MiB", "4MiB", 1), ("4KiB", "64MiB", 64), ("1MiB", "6MiB", 6)):
        default = from_toml(tmp_path, f"[archival]\nchunk_bytes = '{chunk}'\nchunk_commit_bytes = '{commit}'\noffload = 'streaming'\n")
        assert default.archival.chunk_senders == senders, "one for each chunk of a commit"
    offloader = big.offloader
    assert isinstance(offloader, ChunksLayout)
    assert (offloader.variant, offloader.segment_bytes) == (Variant.FIXED, big.max_segment_bytes)
    for wrong, words in (
        ('chunk_variant = "grow"', "append, fixed"),
        ('chunk_bytes = "1KiB"', "4096 to"),
        ("chunks_in_flight = 0", "1 to 64"),
        ("s3ChunkSize = 4096\nchunk_bytes = 4096", "given twice"),
    ):
        with pytest.raises(UsageError, match=words):
            from_toml(tmp_path, f"[archival]\n{wrong}\n")


@pytest.mark.parametrize("section", ["store", "archival", 'topics."a*"'])
@pytest.mark.parametrize("key", ["s3AccessKey", "s3SecretAccessKey"])
def test_a_credential_in_the_file_is_refused_by_name_and_not_repeated(tmp_path: Path, section: str, key: str) -> None:
    with pytest.raises(UsageError, match=f"{key}: credentials never stand.*AWS_SECRET_ACCESS_KEY") as caught:
        from_toml(tmp_path, f'[{section}]\n{key} = "hunter2"\n')
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize("key", ["s3AccessKey", "s3SecretAccessKey"])
def test_so_is_one_outside_of_any_section(tmp_path: Path, key: str) -> None:
    with pytest.raises(UsageError, match=f"{key}: credentials never stand.*AWS_SECRET_ACCESS_KEY") as caught:
        from_toml(tmp_path, f'{key} = "hunter2"\n[store]\nregion = "r"\n')
    assert "hunter2" not in str(caught.value)


STREAMS, BLOCKS, SEGMENTS = "offload = 'streaming'", "layout = 'blocks'", "layout = 'segment'"


@pytest.mark.parametrize(
    ("toml", "words"),
    [
        (f"[archival]\n{STREAMS}\n{SEGMENTS}", 'leave layout = "segment" out'),
        (f"[archival]\n{SEGMENTS}\n[topics.soup]\n{STREAMS}", "a topic named soup: "),
        (f"[topics.'*']\n{BLOCKS}\n[topics.'team.*']\n{STREAMS}", "a topic named team.: "),
        (
            f"[topics.'team.*']\n{STREAMS}\n[topics.'*.orders']\n{BLOCKS}",
            "the layout: the file, for the pattern *.orders; the offload: the file",
        ),
        (f"[archival]\n{STREAMS}\n[topics.soup]\noffload = 'per-segment'\nlayout = 'streaming'", "set that, and leave the layout out"),
    ],
)
def test_what_holds_for_a_topic_of_several_rules_must_go_together(tmp_path: Path, toml: str, words: str) -> None:
    with pytest.raises(UsageError) as refused:
        from_toml(tmp_path, toml)
    assert words in str(refused.value)


@pytest.mark.parametrize(
    "toml",
    [
        f"[archival]\n{STREAMS}\n",
        f"[archival]\n{BLOCKS}\n[topics.soup]\n{STREAMS}\nlayout = 'streaming'",
        f"[archival]\n{STREAMS}\n[topics.soup]\noffload = 'per-segment'\n{BLOCKS}",
        f"[topics.'a.*']\n{STREAMS}\n[topics.'b.*']\n{BLOCKS}",
        f"[topics.'a.*']\n{STREAMS}\n[topics.'*.b']\n{BLOCKS}\noffload = 'per-segment'",
    ],
)
def test_rules_that_no_topic_has_both_of_or_that_say_both_are_fine(tmp_path: Path, toml: str) -> None:
    from_toml(tmp_path, toml)


def test_chunks_may_be_written_while_they_fill(tmp_path: Path) -> None:
    text = '[archival]\nlayout = "chunks"\noffload = "streaming"\ntieredStoreGroupCommitSize = "6MiB"\nchunk_commit_age = "2s"\n'
    archival = from_toml(tmp_path, text).archival
    assert (archival.chunk_commit_bytes, archival.chunk_commit_age_s, archival.run_layout) == (6 << 20, 2.0, "chunks")
    assert archival.follow_s < 2, "a buffer's age is seen in time"
    with pytest.raises(UsageError, match='set "streaming" or "chunks"'):
        from_toml(tmp_path, '[archival]\nlayout = "blocks"\noffload = "streaming"\n')
    for wrong in ('chunk_commit_bytes = "1KiB"', 'chunk_commit_age = "0s"', 'chunk_pool_bytes = "1KiB"'):
        with pytest.raises(UsageError, match=wrong.partition(" ")[0]):
            from_toml(tmp_path, f"[archival]\n{wrong}\n")


def test_credentials_in_urls_are_not_shown() -> None:
    flags = {"store.url": "s3://AKIA7:se/cret@bucket/p", "store.endpoint_url": "https://me:secret@host/?token=t0ken"}
    values = {key: value for key, value, _ in shown(load(None, {}, flags))}
    assert values["store.url"] == "s3://***@bucket/p"
    assert values["store.endpoint_url"] == "https://***@host/?***"


def test_whose_offset_is_the_earliest_may_be_set_by_topic(tmp_path: Path) -> None:
    file = tmp_path / "headwater.toml"
    file.write_text('[gateway]\nearliest = "broker"\n[topics."audit.*"]\nearliest = "archive"\n')
    config = load(file, {}, {})
    assert [config.gateway_for(topic).earliest.value for topic in ("orders", "audit.log")] == ["broker", "archive"]
