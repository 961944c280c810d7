"""Keys that are rotated while they are in use."""

import os
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from botocore.credentials import Credentials
from botocore.exceptions import PartialCredentialsError

from headwater.pipeline.runner import StorePlace, _opened
from headwater_core.errors import Unauthorised
from headwater_core.files import Fingerprint
from headwater_core.objectstore.digest import digest_of
from headwater_core.objectstore.paced_file import PacedFile
from headwater_core.objectstore.s3 import S3Store
from headwater_core.objectstore.s3.credentials import CHECK_S, QUIET_MS, RELOAD_S, FollowedCredentials, MissingCredentials, is_quiet
from tests.headwater_core.manual_clock import ManualClock
from tests.headwater_core.objectstore.badnetwork import BadNetwork, error
from tests.headwater_core.objectstore.contract import put, read
from tests.headwater_core.objectstore.s3.calls import PART, READS, WRITES, some_bytes
from tests.s3server import S3Server

FILE = Path("credentials")
PATIENCE_S = 60


@dataclass
class Chain:
    """What the chain finds: `found`, or raises. `version` is the file's."""

    clock: ManualClock = field(default_factory=ManualClock)
    found: Credentials | Exception | None = field(default_factory=lambda: Credentials("old", "secret", method="shared-credentials-file"))
    modified_ms: int = 0
    version: int = 0
    runs: int = 0

    def load(self) -> Credentials | None:
        self.runs += 1
        if isinstance(self.found, Exception):
            raise self.found
        return self.found

    def identify(self, path: Path) -> Fingerprint | None:
        return Fingerprint(1, self.version, 100, self.modified_ms * 1_000_000, 0)

    def change(self, found: Credentials | Exception | None) -> None:
        self.found, self.version, self.modified_ms = found, self.version + 1, self.clock.now_ms()

    def credentials(self) -> FollowedCredentials:
        return FollowedCredentials(self.load, [FILE], self.clock, identify=self.identify)


def shared(key: str) -> Credentials:
    return Credentials(key, "secret", method="shared-credentials-file")


def key_of(credentials: FollowedCredentials) -> str:
    return str(credentials.get_frozen_credentials().access_key)


def signed_with(credentials: FollowedCredentials) -> int:
    return hash(credentials.get_frozen_credentials())


def test_a_changed_file_is_taken_up_at_the_next_check_and_an_unchanged_one_is_not_read() -> None:
    chain = Chain()
    credentials = chain.credentials()
    chain.change(shared("new"))
    assert key_of(credentials) == "old"
    chain.clock.advance(int(CHECK_S * 1000))
    assert (key_of(credentials), chain.runs) == ("new", 2)
    chain.clock.advance(int(CHECK_S * 1000))
    assert (key_of(credentials), chain.runs) == ("new", 2)


def test_a_file_that_is_being_written_is_read_at_the_check_after() -> None:
    chain = Chain()
    credentials = chain.credentials()
    chain.clock.advance(int(CHECK_S * 1000))
    chain.change(None)
    assert (key_of(credentials), chain.runs) == ("old", 1)
    chain.clock.advance(int(CHECK_S * 1000))
    assert key_of(credentials) == "old"  # it has none: the former stay in use
    chain.change(shared("new"))
    chain.clock.advance(int(CHECK_S * 1000))
    assert key_of(credentials) == "new"


@pytest.mark.parametrize(("age_ms", "quiet"), [(0, False), (QUIET_MS - 1, False), (QUIET_MS, True), (-1, True)])
def test_a_file_is_quiet_some_time_after_it_was_written_and_where_clocks_differ(age_ms: int, quiet: bool) -> None:
    assert is_quiet([None, Fingerprint(1, 1, 1, (5_000 - age_ms) * 1_000_000, 0)], 5_000) is quiet


def test_a_refusal_reads_a_changed_file_at_once() -> None:
    chain = Chain()
    credentials = chain.credentials()
    refused = signed_with(credentials)
    chain.change(shared("new"))
    assert credentials.renew(refused, reload=False)
    assert key_of(credentials) == "new"
    assert credentials.renew(refused, reload=False), "another thread's request was signed before that"
    assert not credentials.renew(signed_with(credentials), reload=False)


def test_a_refusal_runs_the_chain_without_a_change_only_after_a_pause() -> None:
    chain = Chain()
    credentials = chain.credentials()
    refused = signed_with(credentials)
    chain.found = shared("printed by a process")
    assert not credentials.renew(refused, reload=True)
    chain.clock.advance(int(RELOAD_S * 1000))
    assert not credentials.renew(refused, reload=False)
    assert credentials.renew(refused, reload=True)
    assert not credentials.renew(signed_with(credentials), reload=True)
    assert chain.runs == 2


def test_half_a_file_hands_over_to_nobody_else() -> None:
    chain = Chain()
    credentials = chain.credentials()
    refused = signed_with(credentials)
    chain.change(Credentials("instance", "secret", method="iam-role"))
    assert not credentials.renew(refused, reload=True)
    assert key_of(credentials) == "old"
    chain.clock.advance(int(CHECK_S * 1000))
    assert key_of(credentials) == "instance"  # nobody has written any more


def test_a_file_that_cannot_be_read_leaves_the_former_in_use() -> None:
    chain = Chain()
    credentials = chain.credentials()
    chain.change(PartialCredentialsError(provider="shared-credentials-file", cred_var="aws_secret_access_key"))
    assert not credentials.renew(signed_with(credentials), reload=True)
    assert key_of(credentials) == "old"


def test_credentials_that_come_later_are_found() -> None:
    chain = Chain(found=None)
    credentials = chain.credentials()
    with pytest.raises(MissingCredentials, match="profile default in credentials"):
        key_of(credentials)
    chain.change(shared("first"))
    chain.clock.advance(int(CHECK_S * 1000))
    assert key_of(credentials) == "first"


# Beside a server


@pytest.fixture
def file(s3_environ: S3Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The shared credentials file, which has the first of the server's keys."""
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    path = tmp_path / "credentials"
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(path))
    s3_environ.write_credentials(path, s3_environ.access_key)
    return path


@pytest.fixture
def rotate(s3_environ: S3Server, network: BadNetwork, file: Path) -> Callable[[], None]:
    """Write the server's next key, and refuse the one before from now on."""
    keys = iter(s3_environ.more_keys)
    used = [s3_environ.access_key]

    def rotate() -> None:
        network.expired.add(used[-1])
        used.append(next(keys))
        s3_environ.write_credentials(file, used[-1])

    return rotate


@pytest.fixture
def through(bucket: str, place: str, network: BadNetwork, file: Path) -> Iterator[S3Store]:
    with closing(
        S3Store(bucket, place, endpoint_url=network.endpoint_url, attempts=1, single_put_bytes_max=PART, part_bytes=PART)
    ) as store:
        yield store


def keys_of(network: BadNetwork) -> list[str]:
    """In the order in which they were first accepted."""
    return list(dict.fromkeys(passage.key for passage in network.passages if passage.fate.status == 0))


def test_every_call_goes_on_with_the_new_key(through: S3Store, network: BadNetwork, rotate: Callable[[], None]) -> None:
    through.create("doc", b"1")
    rotate()
    for use in [*READS, *WRITES[:2]]:
        through.delete("new")
        use(through)
    assert keys_of(network) == ["test", "second"]


@pytest.mark.parametrize("use", [*READS, *WRITES])
def test_whichever_call_is_the_first_to_be_refused(through: S3Store, rotate: Callable[[], None], use: Callable[[S3Store], object]) -> None:
    through.create("doc", b"1")
    rotate()
    use(through)


def test_an_upload_in_parts_lives_through_two_rotations(
    through: S3Store, network: BadNetwork, rotate: Callable[[], None], tmp_path: Path
) -> None:
    content = some_bytes(12 * PART)
    (tmp_path / "segment").write_bytes(content)
    passed, due = [0], [(4 * PART, "test"), (8 * PART, "second")]

    def pace(size_bytes: int) -> None:
        passed[0] += size_bytes
        if due and passed[0] > due[0][0]:
            _, used = due.pop(0)
            assert network.wait_for_key(used, PATIENCE_S)  # parts are sent while others are read
            rotate()

    with (tmp_path / "segment").open("rb") as source:
        assert through.put("large", PacedFile(source, pace), size_bytes=len(content)) == digest_of(content)
    assert keys_of(network) == ["test", "second", "third"]
    assert sum(request.startswith("POST") and "uploads" in request for request in network.requests) == 1, "it was begun again"
    assert not any(request.startswith("DELETE") for request in network.requests)
    assert read(through, "large", 0, len(content)) == content


def test_an_object_that_grows_lives_through_two_rotations(through: S3Store, rotate: Callable[[], None]) -> None:
    content = some_bytes(2 * PART + 5)
    growing = through.grow("large")
    growing.send(1, content[:PART], start=0)
    rotate()
    growing.send(2, content[PART : 2 * PART], start=PART)
    rotate()
    assert growing.complete(content[2 * PART :]) == digest_of(content)


def test_a_listing_goes_on_after_a_rotation(through: S3Store, rotate: Callable[[], None], monkeypatch: pytest.MonkeyPatch) -> None:
    for key in "abcd":
        put(through, key, b"1")
    small_pages(through, monkeypatch)
    listed = through.list("")
    found = [next(listed).key, next(listed).key]
    rotate()
    assert [*found, *(info.key for info in listed)] == list("abcd")


def small_pages(store: S3Store, monkeypatch: pytest.MonkeyPatch) -> None:
    paginator = store._bucket.client.get_paginator
    monkeypatch.setattr(store._bucket.client, "get_paginator", lambda name: _Pages(paginator(name)))


@dataclass
class _Pages:
    inner: Any

    def paginate(self, **wanted: Any) -> Any:
        return self.inner.paginate(**wanted, PaginationConfig={"PageSize": 2})


def test_a_store_that_a_worker_keeps_for_its_tasks_follows(
    bucket: str, network: BadNetwork, s3_environ: S3Server, rotate: Callable[[], None]
) -> None:
    place = StorePlace(f"s3://{bucket}/worker", network.endpoint_url, s3_environ.region)
    first = place.open()
    put(first, "a", b"1")
    rotate()
    assert place.open() is first
    assert place.open().get("a")[0] == b"1"
    _opened.cache_clear()


def test_a_secret_that_is_mounted_as_a_link_is_followed(
    through: S3Store, network: BadNetwork, s3_environ: S3Server, file: Path, tmp_path: Path
) -> None:
    """As Kubernetes mounts one: the file is a link through `..data`, which a rename exchanges."""
    for name, key in (("v1", s3_environ.access_key), ("v2", s3_environ.more_keys[0])):
        (tmp_path / name).mkdir()
        s3_environ.write_credentials(tmp_path / name / "credentials", key)
    file.unlink()
    (tmp_path / "..data").symlink_to("v1")
    file.symlink_to("..data/credentials")
    through.create("doc", b"1")
    (tmp_path / "..data_tmp").symlink_to("v2")
    os.rename(tmp_path / "..data_tmp", tmp_path / "..data")
    network.expired.add(s3_environ.access_key)
    through.get("doc")
    assert keys_of(network) == ["test", "second"]


def test_a_key_that_stays_wrong_is_not_tried_again(through: S3Store, network: BadNetwork) -> None:
    network.expired.add("test")
    with pytest.raises(Unauthorised):
        through.get("doc")
    assert len(network.requests) == 1


def test_what_a_good_key_may_not_do_is_refused_once(through: S3Store, network: BadNetwork) -> None:
    network.plan.append(error(403, "AccessDenied"))
    with pytest.raises(Unauthorised):
        through.get("doc")
    assert len(network.requests) == 1
