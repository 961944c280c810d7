"""What the suite says where there is no Java that Spark could use."""

from pathlib import Path

import pytest

from tests.headwater.pipeline.spark_fixtures import java_version, need_java


@pytest.fixture(params=["none", "old"])
def java_home(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    monkeypatch.delenv("REQUIRE_JAVA", raising=False)
    if request.param == "old":
        java = tmp_path / "bin" / "java"
        java.parent.mkdir()
        java.write_text("#!/bin/sh\necho 'openjdk version \"11.0.20\" 2023-07-18' >&2\n")
        java.chmod(0o755)
        assert java_version() == 11


@pytest.mark.usefixtures("java_home")
def test_spark_tests_are_skipped_with_a_line_that_says_how_to_get_java() -> None:
    with pytest.raises(pytest.skip.Exception, match=r"Spark tests did not run.*apt-get install openjdk-17"):
        need_java()


@pytest.mark.usefixtures("java_home")
def test_they_fail_where_java_is_required(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REQUIRE_JAVA", "1")
    with pytest.raises(pytest.fail.Exception, match=r"Spark tests did not run.*apt-get install openjdk-17"):
        need_java()
