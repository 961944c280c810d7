"""What was set by command (manifests.setting_list), as this agent knows it: read from the bucket now and then, and kept in the data
directory for a start at which the bucket does not answer."""

from pathlib import Path

import structlog

from headwater.config import Config
from headwater.live_config import LiveConfig
from headwater_core.clock import Clock
from headwater_core.errors import CorruptData, HeadwaterError, StoreGone, UnsupportedFormat, UsageError
from headwater_core.files import replace_file
from manifests.known_document import KnownDocument
from manifests.repository import ManifestRepository
from manifests.setting_list import SettingList, decode_settings, encode_settings

COPY = "settings.json"  # in the data directory

log = structlog.get_logger()


class KnownSettings(KnownDocument[SettingList]):
    """Whatever becomes known is taken up by the configuration."""

    def __init__(self, repository: ManifestRepository, clock: Clock, live: LiveConfig, data_dir: Path) -> None:
        """The caller holds the data directory's lock."""
        super().__init__(
            repository.load_settings,
            repository.change_settings,
            clock,
            taken=self._take,
            unread=_report_unread,
            in_use=lambda found: live.is_asked or any(each.key != "read_priority" for each in found.settings),
        )
        self._live, self._data_dir = live, data_dir
        live.take_commands(kept_settings(data_dir))

    def _take(self, before: SettingList | None, found: SettingList) -> bool:
        self._live.is_asked = False
        if before != found:
            _keep(found, self._data_dir)
        if self._live.take_commands(found):
            values = [f"{each.pattern}: {each.key}={each.value}" for each in found.settings]
            log.info("settings_taken", version=found.version, settings=values)
        return False  # the configuration has reported it


def with_commands(config: Config, repository: ManifestRepository) -> Config:
    """`config` with what was set by command, for a command of its own. Where the bucket does not say it: as an agent on the data directory
    knew it last, with a warning."""
    try:
        return config.with_commands(repository.load_settings())
    except StoreGone:  # nothing is archived yet, or its reader says so
        pass
    except HeadwaterError as error:
        _report_unread(error)
    return config.with_commands(kept_settings(config.node.data_dir))


def kept_settings(data_dir: Path) -> SettingList:
    """Return what was set by command as an agent on `data_dir` last knew it; nothing where no agent did."""
    path = data_dir / COPY
    try:
        return decode_settings(path.read_bytes(), str(path))
    except (OSError, CorruptData, UnsupportedFormat):
        return SettingList()


def _keep(settings: SettingList, data_dir: Path) -> None:
    try:
        replace_file(data_dir / COPY, encode_settings(settings), UsageError)
    except HeadwaterError as error:
        log.warning("settings_not_kept", reason=str(error), consequence="a start while the bucket does not answer goes by the file alone")


def _report_unread(error: HeadwaterError) -> None:
    log.warning("settings_not_read", reason=str(error), consequence="what was known to be set by command stays so")
