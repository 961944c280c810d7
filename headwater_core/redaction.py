"""Texts without the credentials of the URLs in them: for everything that people or programs are shown."""

import re
from typing import Any

HIDDEN = "***"
# A user alone, or with a password: a secret key may hold slashes, so that only the last @ ends it.
_USER = re.compile(r"(\b[a-z][a-z0-9+.-]*://)(?:[^\s/?#@:'\"]*|[^\s/?#@:'\"]*:[^\s'\"]*)@", re.IGNORECASE)
_QUERY = re.compile(r"(\b[a-z][a-z0-9+.-]*://[^\s?'\"]*\?)[^\s'\"]+", re.IGNORECASE)


def redact(text: str) -> str:
    """Return `text` with `***` for user, password and query of each URL in it."""
    return _QUERY.sub(rf"\1{HIDDEN}", _USER.sub(rf"\1{HIDDEN}@", text)) if "://" in text else text


def redact_all(value: Any) -> Any:
    """Return `value`, of JSON, with every text in it redacted."""
    if isinstance(value, str):
        return redact(value)
    if isinstance(value, dict):
        return {key: redact_all(item) for key, item in value.items()}
    return [redact_all(item) for item in value] if isinstance(value, list | tuple) else value
