from pathlib import Path

import pytest

from headwater_core.errors import ForeignOwner, NotFound, UsageError
from headwater_core.partition import TopicPartition
from headwater_core.segments.log_dirs import LogDirs, parse_directory_name
from tests.headwater_core.segments.log_dirs.broker import SOUP, Broker


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("soup-0", ("soup", 0)),
        ("table-4-0", ("table-4", 0)),
        ("rack--2-1-0", ("rack--2-1", 0)),
        ("__consumer_offsets-49", ("__consumer_offsets", 49)),
        ("a.b_c-10", ("a.b_c", 10)),
        ("__cluster_metadata-0", None),
        ("soup-0.90484efc86e24096b9266de879f44e19-delete", None),
        ("soup-0.90484efc86e24096b9266de879f44e19-future", None),
        ("soup-0.90484efc86e24096b9266de879f44e19-stray", None),
        ("soup-", None),
        ("-0", None),
        ("soup", None),
        ("soup-x", None),
        ("soup-01", None),
        ("soup--1", ("soup-", 1)),
        ("soup-99999999999", None),
        ("soup-4294967296", None),
        ("sou p-0", None),
        ("..-0", None),
        ("cleaner-offset-checkpoint", None),
    ],
)
def test_a_name_is_split_at_its_last_dash(name: str, found: tuple[str, int] | None) -> None:
    assert parse_directory_name(name) == (TopicPartition(*found) if found else None)


def test_a_file_that_is_named_like_a_partition_is_none(broker: Broker) -> None:
    broker.partition()
    (broker.root / "backup-20261120").write_bytes(b"mine")
    survey, listing = broker.logs.survey(), broker.logs.listing()
    assert ([str(log.partition) for log in survey.logs], survey.problems) == (["soup:0"], ())
    assert (set(listing.partitions), listing.problems) == ({SOUP}, ())
    with pytest.raises(NotFound):
        broker.logs.look(TopicPartition("backup", 20261120))


def test_one_of_two_directories_without_identity_is_a_problem_of_its_own(broker: Broker, tmp_path: Path) -> None:
    broker.partition()
    (tmp_path / "other").mkdir()
    survey = LogDirs([tmp_path / "other", broker.root]).survey()
    assert len(survey.logs) == 1
    ((path, error),) = survey.problems
    assert path.name == "other"
    assert isinstance(error, UsageError)
    with pytest.raises(UsageError, match=r"no meta\.properties"):
        LogDirs([tmp_path / "other"]).survey()


def test_directories_of_two_brokers_are_refused(broker: Broker, tmp_path: Path) -> None:
    other = Broker(tmp_path / "other", cluster_id="another")
    with pytest.raises(ForeignOwner):
        LogDirs([broker.root, other.root]).survey()
    with pytest.raises(ForeignOwner):
        _ = LogDirs([broker.root, other.root]).cluster_id
