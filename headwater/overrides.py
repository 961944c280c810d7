"""The settings that a command states, compared with those of the agent that carries it out.

A flag that the agent does not have would be ignored in silence: `headwater archive --store OTHER` would archive to the agent's store.
"""

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from urllib.parse import unquote, urlsplit

from headwater.config import DATA_DIRECTORY, FLAG, Config, setting, setting_text
from headwater_core.redaction import redact

NO_SETTINGS: Mapping[str, str] = {}
_PLACES = ("store.url", "store.endpoint_url", "store.region", "log.dirs", "log.metadata_dir")  # a file states these, too
_LISTENERS = ("admin.", "gateway.")  # no command depends on these
_OWN = ("node.data_dir", "node.log_level", "node.log_format")  # the first leads to the agent, the others are about our own stderr


def stated_settings(config: Config, *, of_file: bool = True) -> dict[str, str]:
    """Return what `config` states by flags and the environment, and where it says the archive and the logs are.

    of_file  also where its file says that they are
    """
    return {
        key: _text(config, key)
        for key, origin in config.origins.items()
        if key not in _OWN and not key.startswith(_LISTENERS) and _states(key, origin, of_file)
    }


def store_overrides(config: Config) -> dict[str, str]:
    """Return which store `config` states, for a command that does its own work and reports it."""
    return {key: text for key, text in stated_settings(config).items() if key.startswith("store.")}


class AgentSettings:
    """Compare stated settings with those in effect; for one thread."""

    def __init__(self, now: Callable[[], Config]) -> None:
        self._now, self._known, self._texts = now, now(), dict[str, str]()

    def conflict(self, stated: Mapping[str, str]) -> str:
        """Return why this agent can't carry out a command with `stated` settings; "" when it can."""
        if (now := self._now()) is not self._known:
            self._known, self._texts = now, {}
        differing = [
            f"{key} is {redact(stated[key]) or 'none'} in this command, and {redact(self._text(key)) or 'none'} in the agent"
            for key in sorted(stated)
            if self._text(key) != stated[key]
        ]
        if not differing:
            return ""
        return (
            f"the agent on {now.node.data_dir} carries this out, with its own settings: {'; '.join(differing)}. Leave out what differs, "
            "restart the agent with it, or name another agent's directory with --data-dir"
        )

    def _text(self, key: str) -> str:
        if key not in self._texts:
            self._texts[key] = _text(self._known, key)
        return self._texts[key]


def _states(key: str, origin: str, of_file: bool) -> bool:
    if origin == FLAG or origin.startswith("$"):
        return True
    return of_file and key in _PLACES and origin != DATA_DIRECTORY


def _text(config: Config, key: str) -> str:
    """Return the value as text that is equal where the values are, wherever the process runs; "" for an unknown key."""
    value = setting(config, key)
    if key == "store.url":
        return _real_url(str(value))
    if isinstance(value, Path):
        return os.path.realpath(value)
    if isinstance(value, tuple):
        return ", ".join(sorted(os.path.realpath(part) if isinstance(part, Path) else str(part) for part in value))
    return setting_text(config, key)


def _real_url(url: str) -> str:
    parts = urlsplit(url)
    return f"file://{os.path.realpath(unquote(parts.path))}" if parts.scheme == "file" else url.rstrip("/")
