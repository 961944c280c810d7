"""A value that is loaded from files which may be replaced at any time."""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Generic, TypeVar

from headwater_core.errors import UsageError
from headwater_core.files import Fingerprint, fingerprint

T = TypeVar("T")


class FollowedFiles(Generic[T]):
    """Raises UsageError for files that cannot be used when it is made.

    load   raises UsageError
    value  as the files had it when they were last found whole
    """

    def __init__(self, paths: Iterable[Path], load: Callable[[], T]) -> None:
        self._paths, self._load = tuple(paths), load
        self._seen = self._fingerprints()
        self._refused = ""  # why the files as they are now cannot be used
        self.value = load()

    def reload(self) -> bool:
        """Load files that have changed; True when there is a new value.

        Raises UsageError, once for one reason, when they cannot be used: the former value stays.
        """
        found = self._fingerprints()
        if found == self._seen and not self._refused:
            return False
        try:
            self.value = self._load()
        except UsageError as error:
            reported, self._refused = self._refused, str(error)
            if reported == self._refused:
                return False
            raise
        self._seen, self._refused = found, ""  # not before: other rights on a directory, which may correct it, change no fingerprint
        return True

    def _fingerprints(self) -> list[Fingerprint | None]:
        return [fingerprint(path) for path in self._paths]
