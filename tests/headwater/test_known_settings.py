"""What was set by command, as agents of one archive learn of it, and keep it while the bucket does not answer."""

from pathlib import Path

import pytest
from structlog.testing import capture_logs

from headwater.config import load
from headwater.known_settings import COPY, KnownSettings, with_commands
from headwater.live_config import LiveConfig
from headwater_core.errors import TransientError
from hydration.config import ReadPriority
from manifests import keys
from manifests.known_document import REFRESH_S
from manifests.repository import ManifestRepository
from manifests.setting_list import SettingList
from tests.headwater_core.manual_clock import ManualClock
from tests.hydration.flaky_store import FlakyStore


class Agent:
    """As far as it knows what was set."""

    def __init__(self, store: FlakyStore, data_dir: Path) -> None:
        data_dir.mkdir(exist_ok=True)
        self.live = LiveConfig(load(None, {}, {"node.data_dir": str(data_dir)}))
        self.clock = ManualClock()
        self.settings = KnownSettings(ManifestRepository(store), self.clock, self.live, data_dir)

    @property
    def soup(self) -> ReadPriority:
        return self.live.read_priority_for("soup")

    def set(self, priority: str | None) -> SettingList:
        return self.settings.change(lambda before: before.changed("so*", {"read_priority": priority}, now_ms=1, by="cook"))


def test_every_agent_takes_it_up_when_it_hears_of_it_or_within_a_minute_of_use(tmp_path: Path) -> None:
    store = FlakyStore()
    one, other, deaf = (Agent(store, tmp_path / name) for name in ("one", "other", "deaf"))
    for each in (one, other, deaf):
        each.settings.look(0)
    version = one.set("offloaded-only").version
    other.settings.look(version)
    assert (one.soup, other.soup, deaf.soup) == (ReadPriority.OFFLOADED_ONLY, ReadPriority.OFFLOADED_ONLY, ReadPriority.LOCAL_FIRST)
    deaf.clock.advance(round(REFRESH_S * 1000))
    deaf.settings.look(0)
    assert deaf.soup is ReadPriority.OFFLOADED_ONLY
    one.set(None)
    assert one.soup is ReadPriority.LOCAL_FIRST


def test_a_start_without_the_bucket_goes_by_what_was_known(tmp_path: Path) -> None:
    store = FlakyStore()
    Agent(store, tmp_path / "one").set("offloaded-only")
    store.refuse = lambda operation, key: TransientError("away")
    again = Agent(store, tmp_path / "one")
    with capture_logs() as logged:
        again.settings.look(0)
        config = with_commands(again.live.now.with_commands(SettingList()), ManifestRepository(store))
    assert again.soup is config.hydration_for("soup").read_priority is ReadPriority.OFFLOADED_ONLY
    assert [each["event"] for each in logged] == ["settings_not_read", "settings_not_read"]
    assert Agent(store, tmp_path / "new").soup is ReadPriority.LOCAL_FIRST
    (tmp_path / "one" / COPY).write_bytes(b"?")
    assert Agent(store, tmp_path / "one").soup is ReadPriority.LOCAL_FIRST


def test_a_damaged_document_leaves_what_was_known(tmp_path: Path) -> None:
    store = FlakyStore()
    agent = Agent(store, tmp_path / "one")
    agent.set("local-only")
    _, tag = store.get(keys.SETTINGS)
    store.replace(keys.SETTINGS, b"{}", expected_tag=tag)
    with capture_logs() as logged:
        agent.settings.look(2)
    assert (agent.soup, logged[0]["event"]) == (ReadPriority.LOCAL_ONLY, "settings_not_read")


@pytest.mark.parametrize("is_asked", [False, True])
def test_an_agent_that_serves_nobody_requests_nothing(tmp_path: Path, is_asked: bool) -> None:
    store, gets = FlakyStore(), list[str]()
    store.refuse = lambda operation, key: gets.append(key)
    agent = Agent(store, tmp_path / "one")
    agent.settings.look(0)
    for _ in range(3):
        agent.clock.advance(round(REFRESH_S * 1000))
        if is_asked:
            assert agent.soup is ReadPriority.LOCAL_FIRST
        agent.settings.look(0)
    assert len(gets) == (4 if is_asked else 1)
