"""Credentials that follow their files.

botocore renews by itself what names an expiry: the credentials of roles, web identity tokens, containers and instances. It reads the
shared credentials file and the config file once, and runs a `credential_process` once that names no expiry. Here both are found anew, by
the same chain, when a file has changed or the store refuses the key. Each attempt of each request is signed anew, so that nothing has to
be begun again: no client, no listing, no multipart upload.
"""

import os
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import botocore.session
import structlog
from botocore.credentials import CredentialProvider, Credentials, ReadOnlyCredentials
from botocore.exceptions import BotoCoreError, NoCredentialsError

from headwater_core.clock import Clock, SystemClock
from headwater_core.files import Fingerprint, fingerprint
from headwater_core.objectstore.s3.error_codes import REFUSED_KEY

if TYPE_CHECKING:
    from types_boto3_s3 import S3Client

CHECK_S = 5.0  # between two checks of the files by requests
QUIET_MS = 2_000  # a file that was written to more recently may be incomplete
RELOAD_S = 10.0  # between two runs through the chain for a key that is refused, while no file changes: a run may start a process

log = structlog.get_logger()


class MissingCredentials(NoCredentialsError):
    """The chain has none."""

    fmt = (
        "no credentials: not in AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, not under profile {profile} in {files}, and neither a web "
        "identity token nor a container or an instance has a role; set one of them where this process runs"
    )


class FollowedCredentials(Credentials):
    """What requests are signed with. Safe to use from many threads.

    load   runs the chain, which has read nothing yet; None where it has no credentials
    files  that the chain may read
    identify  the fingerprint of a file

    Raises what `load` raises.
    """

    def __init__(
        self,
        load: Callable[[], Credentials | None],
        files: Sequence[Path],
        clock: Clock,
        *,
        identify: Callable[[Path], Fingerprint | None] = fingerprint,
        profile: str = "default",
    ) -> None:
        super().__init__("", "", method="headwater")
        self._load, self._files, self._clock, self._identify, self._profile = load, files, clock, identify, profile
        self._lock = threading.Lock()
        self._known: Sequence[Fingerprint | None] = self._fingerprints()
        self._check_at_s = clock.monotonic_s() + CHECK_S
        self._loaded_s = clock.monotonic_s()
        self._current = load()

    def get_frozen_credentials(self) -> ReadOnlyCredentials:
        """Raises MissingCredentials, and what renewing the credentials of a role raises."""
        self._check()
        if self._current is None:
            raise MissingCredentials(profile=self._profile, files=" or ".join(map(str, self._files)))
        return self._current.get_frozen_credentials()

    def renew(self, refused: int, *, reload: bool) -> bool:
        """Are there others than those of this hash, which the store has refused? Files that have changed are read at once.

        reload  run through the chain though none has, unless that was done a moment ago
        """
        with self._lock:
            found = self._fingerprints()
            is_due = self._clock.monotonic_s() >= self._loaded_s + RELOAD_S
            if found != self._known or (is_due and (reload or self._current is None)):
                self._reload(found)
            current = self._current
        try:
            return current is not None and hash(current.get_frozen_credentials()) != refused
        except BotoCoreError:
            return False  # the refusal itself says more

    def _check(self) -> None:
        """Take up files that have changed. One thread does it; the others sign with what is known."""
        now_s = self._clock.monotonic_s()
        if now_s < self._check_at_s or not self._lock.acquire(blocking=False):
            return
        try:
            self._check_at_s = now_s + CHECK_S
            found = self._fingerprints()
            if found != self._known and is_quiet(found, self._clock.now_ms()):
                self._reload(found)
        finally:
            self._lock.release()

    def _reload(self, found: Sequence[Fingerprint | None]) -> None:
        """Run through the chain. What it cannot read, as while a file is replaced, or does not find, leaves the former in use."""
        self._loaded_s, self._known = self._clock.monotonic_s(), found  # as it was before it is read
        try:
            loaded = self._load()
        except (BotoCoreError, OSError, ValueError) as error:
            log.warning("store_credentials_refused", reason=str(error), consequence="those that were loaded before stay in use")
            return
        if loaded is None:
            return
        if self._current is not None and loaded.method != self._current.method and not is_quiet(found, self._clock.now_ms()):
            self._known = ()  # half a file: the next in the chain may be another identity's, so it is read again
            return
        self._current = loaded
        log.info("store_credentials_reloaded", method=loaded.method)

    def _fingerprints(self) -> list[Fingerprint | None]:
        return [self._identify(path) for path in self._files]


def is_quiet(found: Sequence[Fingerprint | None], now_ms: int) -> bool:
    """Was none of these files written to a moment ago? A time in the future is no such moment: clocks differ."""
    return not any(file is not None and 0 <= now_ms - file.modified_ns // 1_000_000 < QUIET_MS for file in found)


class _Provider(CredentialProvider):
    """Hands botocore what was found already."""

    METHOD = "headwater"

    def __init__(self, credentials: FollowedCredentials) -> None:
        super().__init__()
        self._credentials = credentials

    def load(self) -> FollowedCredentials:
        return self._credentials


def followed_session(clock: Clock | None = None) -> tuple[botocore.session.Session, FollowedCredentials]:
    """A session whose clients sign with the credentials, and these. Raises what boto's chain raises."""
    session = botocore.session.get_session()
    files = [_expanded(session.get_config_variable(name)) for name in ("credentials_file", "config_file")]
    profile = session.get_config_variable("profile") or "default"
    credentials = FollowedCredentials(_run_chain, files, clock or SystemClock(), profile=profile)
    session.get_component("credential_provider").providers.insert(0, _Provider(credentials))
    return session, credentials


def repeat_refused(client: "S3Client", credentials: FollowedCredentials) -> None:
    """Let `client` sign a request again, and send it again, once the key that it was signed with is refused and there is another one."""

    def before_sign(request: Any, **_: object) -> None:
        request.context["signed_with"] = hash(credentials.get_frozen_credentials())  # no secret: botocore may log its context

    def needs_retry(response: Any, request_dict: Any, **_: object) -> Any:
        if response is None:
            return None
        answer = response[1]
        code, status = answer.get("Error", {}).get("Code", ""), answer.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
        has_no_code = status in (400, 401, 403) and code in ("", str(status))  # HEAD
        if code not in REFUSED_KEY and status not in (401, 403) and not has_no_code:
            return None
        signed_with = request_dict["context"].get("signed_with", 0)
        return 0.0 if credentials.renew(signed_with, reload=code in REFUSED_KEY or has_no_code) else None

    client.meta.events.register("before-sign.s3", before_sign)
    client.meta.events.register("needs-retry.s3", needs_retry)


def _run_chain() -> Credentials | None:
    """In a session of its own: each keeps what it has read."""
    return botocore.session.get_session().get_credentials()


def _expanded(path: str) -> Path:
    """As botocore expands it."""
    return Path(os.path.expandvars(path)).expanduser()
