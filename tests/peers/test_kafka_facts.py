"""What Headwater believes of Kafka's settings, feature levels and metadata records, against Kafka's own classes."""

import json
import subprocess
from functools import cache

import pytest

from headwater_core.segments.metadata.metadata_records import RESOURCE_BROKER, Unread, decode_metadata_record
from headwater_core.segments.metadata.record_schemas import SCHEMAS, decode_known, make_record
from headwater_core.segments.metadata.secret_settings import is_secret_setting
from recovery.kafka_releases import METADATA_VERSION, METADATA_VERSION_MIN, NEWEST, RELEASES, partition_version
from tests.headwater_core.segments.metadata.test_record_schemas import as_kafka_prints
from tests.peers.java_client import kafka_jars, with_compiled

pytestmark = pytest.mark.peer


TRIED = list(RELEASES)[-2:]


@cache
def printed(program: str, release: str) -> list[str]:
    command = ["java", "-XX:TieredStopAtLevel=1", "-cp", with_compiled(program, kafka_jars(release)), program]
    return subprocess.run(command, check=True, timeout=120, capture_output=True, text=True).stdout.splitlines()


def facts(kind: str, release: str = NEWEST) -> list[list[str]]:
    lines = printed("KafkaFacts" if kind == "setting" else "KafkaLevels", release)
    found = [line.split("\t")[1:] for line in lines if line.startswith(kind + "\t")]
    assert found
    return found


def test_no_password_of_kafkas_is_shown_and_every_other_setting_that_changes_at_run_time_is() -> None:
    passwords = {name for name, type_of, _ in facts("setting") if type_of == "PASSWORD"}
    dynamic = {name for name, _, is_dynamic in facts("setting") if is_dynamic == "true"}
    assert len(passwords) > 5
    assert len(dynamic) > 80
    for prefix in ("", "listener.name.external.", "listener.name.external.scram-sha-512."):
        assert {name for name in passwords if not is_secret_setting(RESOURCE_BROKER, prefix + name)} == set()
        assert {name for name in dynamic - passwords if is_secret_setting(RESOURCE_BROKER, prefix + name)} == set()


@pytest.mark.parametrize("release", TRIED)
def test_a_release_has_the_levels_that_are_written_down(release: str) -> None:
    levels = {name: int(level) for name, level in facts("feature", release) if name != "kraft.version"}
    assert levels == RELEASES[release]


@pytest.mark.parametrize("release", TRIED)
def test_records_of_partitions_have_the_versions_that_controllers_write(release: str) -> None:
    versions = {int(level): int(version) for level, version in facts("level", release)}
    assert min(versions) == METADATA_VERSION_MIN
    assert {level: partition_version({METADATA_VERSION: level}) for level in versions} == versions


@pytest.mark.parametrize("release", TRIED)
def test_the_table_has_every_metadata_record_of_a_release_in_every_version_field_by_field(release: str) -> None:
    newest: dict[int, int] = {}
    for line in printed("KafkaRecords", release):
        kind, api_key, version, fields, raw = line.split("\t")
        value, what = bytes.fromhex(raw), f"{kind}, version {version}"
        record = decode_known(value, what)
        assert record is not None, f"{what} is not in the table"
        assert (record.kind, record.is_understood) == (kind, True), what
        assert as_kafka_prints(dict(record.fields)) == json.loads(fields), what
        assert make_record(record.api_key, record.version, record.fields).raw == value, what
        assert not isinstance(decode_metadata_record(value, where=what), Unread), what
        newest[int(api_key)] = int(version)
    assert len(newest) > 20
    if release == NEWEST:  # and the table has nothing else
        assert newest == {api_key: schema.newest for api_key, schema in SCHEMAS.items()}
