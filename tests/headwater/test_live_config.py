"""What a running agent takes up of a configuration that is read again."""

from collections.abc import Callable
from pathlib import Path

import pytest

from archival.config import ArchiveMode
from headwater.config import Config, load
from headwater.live_config import LiveConfig, Reloaded
from headwater_core.errors import UsageError
from hydration.config import ReadPriority
from manifests.setting_list import SettingList


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "headwater.toml"
    path.write_text("[archival]\nseal_timeout = '5m'\n[topics.soup]\nrelease = false\n")
    return path


@pytest.fixture
def read(file: Path) -> Callable[[], Config]:
    return lambda: load(file, {}, {"archival.rescan": "7s"})


def test_what_concerns_archiving_is_taken_up_and_the_rest_is_not(file: Path, read: Callable[[], Config]) -> None:
    live, seen = LiveConfig(read(), read), list[str]()
    live.changed = lambda: seen.append("changed")
    assert live.reload() == Reloaded((), ())
    assert not seen
    file.write_text(
        "[archival]\nseal_timeout = '1m'\nupload_bytes_per_s = '1MiB'\nrescan = '9s'\n[node]\nid = 'other'\n"
        "[topics.soup]\narchive = 'off'\nread_priority = 'local-only'\n"
    )
    of_soup = ('topics."soup".archive', 'topics."soup".read_priority', 'topics."soup".release')
    changed = ("archival.seal_timeout", "archival.upload_bytes_per_s", *of_soup)
    fixed = ("node.id",)
    assert live.reload() == Reloaded(changed, fixed)
    assert seen == ["changed"]
    assert (live.archival().seal_timeout_s, live.archival().upload_bytes_per_s) == (60, 1 << 20)
    assert live.archival().rescan_s == 7, "flags still win"
    assert (live.archival_for("soup").archive, live.archival_for("stew").archive) == (ArchiveMode.OFF, ArchiveMode.AUTO)
    assert live.now.node.id == "headwater"
    assert live.reload() == Reloaded((), fixed), "until the agent is started again"


def test_a_layout_stays_as_archivers_were_made_with(file: Path, read: Callable[[], Config]) -> None:
    live = LiveConfig(read(), read)
    file.write_text("[archival]\nlayout = 'blocks'\n[topics.soup]\nrelease = false\n")
    assert live.reload() == Reloaded(("archival.seal_timeout",), ("archival.layout",))
    assert live.archival().layout == "segment"
    file.write_text("[archival]\nseal_timeout = '1m'\n[topics.soup]\nlayout = 'blocks'\nrelease = false\n")
    assert live.reload() == Reloaded(("archival.seal_timeout",), ('topics."soup".layout',))
    assert live.archival_for("soup").layout == "segment"
    assert LiveConfig(read(), read).archival_for("soup").layout == "blocks"


@pytest.mark.parametrize("text", ["[archival]\nseal_timeout = 'soon'", "[archival]\nuploads = 3", "nonsense", None])
def test_a_configuration_that_is_not_valid_changes_nothing(file: Path, read: Callable[[], Config], text: str | None) -> None:
    live = LiveConfig(read(), read)
    before = live.now
    if text is None:
        file.unlink()
    else:
        file.write_text(text)
    with pytest.raises(UsageError):
        live.reload()
    assert live.now is before


def test_what_is_set_by_command_holds_at_once_and_through_a_reload(file: Path, read: Callable[[], Config]) -> None:
    live, seen = LiveConfig(read(), read), list[str]()
    live.changed = lambda: seen.append("changed")
    assert live.read_priority_for("soup") is ReadPriority.LOCAL_FIRST
    settings = SettingList().changed("so*", {"read_priority": "offloaded-only"}, now_ms=1, by="cook")
    assert live.take_commands(settings)
    assert not live.take_commands(settings)
    assert (live.read_priority_for("soup"), seen) == (ReadPriority.OFFLOADED_ONLY, ["changed"])
    file.write_text("[hydration]\nread_priority = 'LOCAL_ONLY'\n[topics.soup]\nread_priority = 'BOOKKEEPER_FIRST'\n")
    live.reload()
    assert live.read_priority_for("soup") is ReadPriority.OFFLOADED_ONLY
    assert live.read_priority_for("stew") is ReadPriority.LOCAL_ONLY, "the file's, without a restart"
    live.take_commands(SettingList())
    assert live.read_priority_for("soup") is ReadPriority.LOCAL_FIRST
