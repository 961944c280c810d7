"""meta/settings.json: settings of topics and patterns of topics that were set by command, for all agents of the archive.

What a key or a value means is the program's business (headwater.config): an agent leaves alone what only a newer version knows. Values in,
values out; the repository does the compare-and-swap.
"""

import re
from collections.abc import Mapping

import msgspec
from msgspec.structs import replace

from headwater_core.errors import UsageError
from manifests.document import FORMAT, prepared, seal, unseal

SETTINGS_MAX = 1_000  # each topic that is read is compared with all of them, in the loop that serves clients
_TEXT_CHARS_MAX = 100
_TIME_MS_MAX = 253_402_300_799_000  # the end of the year 9999


def check_pattern(text: str) -> str:
    """The name of a topic, or a pattern with * ? [ ]. Raises UsageError for anything else."""
    if not re.fullmatch(r"[A-Za-z0-9._*?\[\]!-]{1,249}", text) or text.count("[") != text.count("]"):
        raise UsageError(f"{text[:80]!r} is no topic name and no pattern (A-Z a-z 0-9 . _ - and * ? [ ])")
    return text


class TopicSetting(msgspec.Struct, frozen=True, kw_only=True):
    """`key` is `value` for the topics whose name matches `pattern`. by: which node or person has set it."""

    pattern: str
    key: str
    value: str
    since_ms: int
    by: str

    def __post_init__(self) -> None:
        check_pattern(self.pattern)
        texts = (self.key, self.value, self.by)
        if not self.key or any(len(each) > _TEXT_CHARS_MAX for each in texts) or not 0 <= self.since_ms <= _TIME_MS_MAX:
            raise ValueError(f"impossible setting: {self}")


@prepared
class SettingList(msgspec.Struct, frozen=True, kw_only=True):
    """version: rises with every change. settings: in the order in which they were set, one for each pattern and key."""

    format: tuple[int, int] = FORMAT
    version: int = 0
    settings: tuple[TopicSetting, ...] = ()

    def __post_init__(self) -> None:
        if not 0 <= self.version < 2**63 or len(self.settings) > SETTINGS_MAX:
            raise ValueError(f"version {self.version}, {len(self.settings)} settings")
        if len({(each.pattern, each.key) for each in self.settings}) < len(self.settings):
            raise ValueError("a setting is listed twice")

    def values(self, pattern: str) -> dict[str, str]:
        """What was set for that very pattern, by key."""
        return {each.key: each.value for each in self.settings if each.pattern == pattern}

    def changed(self, pattern: str, values: Mapping[str, str | None], *, now_ms: int, by: str) -> "SettingList":
        """With these values by key, None: without one; itself when that changes nothing. What is set comes last. Raises UsageError."""
        held = self.values(pattern)
        if all(held.get(key) == value for key, value in values.items()):
            return self
        kept = tuple(each for each in self.settings if each.pattern != pattern or each.key not in values)
        made = tuple(
            TopicSetting(pattern=pattern, key=key, value=value, since_ms=now_ms, by=by[:_TEXT_CHARS_MAX])
            for key, value in values.items()
            if value is not None
        )
        if len(kept) + len(made) > SETTINGS_MAX:
            raise UsageError(f"{SETTINGS_MAX} settings are set by command; use patterns")
        return replace(self, version=self.version + 1, settings=(*kept, *made), format=FORMAT)


def encode_settings(settings: SettingList) -> bytes:
    return seal(settings)


def decode_settings(raw: bytes, where: str) -> SettingList:
    """Raises CorruptData, and UnsupportedFormat for another major version."""
    return unseal(raw, SettingList, where)
