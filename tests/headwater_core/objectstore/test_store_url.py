import subprocess
import sys
from pathlib import Path

import pytest

from headwater_core.errors import UsageError
from headwater_core.objectstore import open_store
from headwater_core.objectstore.directory import DirectoryStore


def test_a_file_url_is_a_directory(tmp_path: Path) -> None:
    store = open_store((tmp_path / "my archive").as_uri())
    assert isinstance(store, DirectoryStore)
    store.create("a", b"1")
    assert (tmp_path / "my archive" / "a").read_bytes() == b"1"
    assert open_store(store.url).get("a")[0] == b"1"


def test_an_s3_url_is_a_bucket_and_a_prefix() -> None:
    store = open_store("s3://bucket/the/prefix/", endpoint_url="http://127.0.0.1:1", region="r")
    assert store.url == "s3://bucket/the/prefix"
    assert open_store("s3://bucket", region="r").url == "s3://bucket"


@pytest.mark.parametrize(
    "url",
    [
        "",
        "archive",
        "/var/archive",
        "file://archive",
        "file:archive",
        "file:///",
        "s3://",
        "s3:///prefix",
        "s3://bucket/a/../b",
        "s3://key:secret@bucket/prefix",
        "s3://bucket?x=1",
        "gs://bucket",
        "http://[x",
    ],
)
def test_what_is_no_place_is_refused(url: str) -> None:
    with pytest.raises(UsageError) as refusal:
        open_store(url, region="r")
    assert "secret" not in str(refusal.value)


def test_a_directory_has_no_region(tmp_path: Path) -> None:
    with pytest.raises(UsageError):
        open_store(tmp_path.as_uri(), region="r")


def test_boto3_is_loaded_only_where_it_is_needed() -> None:
    code = "import sys; from headwater_core import objectstore; objectstore.open_store('file:///x'); "
    code += "sys.exit('boto3' in sys.modules or 'botocore' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
