"""Topics that an owned log directory lacks, downloaded from the archive as their settings say (`recover_from`), beside everything else."""

import threading
from collections.abc import Callable, Mapping

import structlog

import recovery
from headwater.live_config import LiveConfig
from headwater.wiring import Bucket
from headwater_core.clock import Clock
from headwater_core.control.control_log import ControlLog
from headwater_core.errors import DiskFull, HeadwaterError, Locked, TransientError, UsageError
from headwater_core.segments.log_dirs import LogDirs

LOOK_S = 5.0  # how soon a setting that was read again is taken up
RETRY_S = 30.0  # after an error that may pass

log = structlog.get_logger()


class TopicDownloads:
    """Each manifest is tried for its topic until that is settled: downloaded now or before, or there. Where something stands against it
    that does not pass by itself, it is tried again when the settings have been read again.

    control  marks what was downloaded; the bucket does too
    """

    def __init__(self, live: LiveConfig, dirs: LogDirs, bucket: Bucket, control: ControlLog, clock: Clock) -> None:
        self._live, self._dirs, self._bucket, self._control, self._clock = live, dirs, bucket, control, clock
        self._settled: dict[str, str] = {}  # topic: manifest
        self._failed: dict[str, str] = {}  # likewise
        self._again_s: dict[str, float] = {}  # when to try a topic again, by the monotonic clock
        self._seen = live.now  # the settings that the failed ones were tried under

    def run(self, stop: threading.Event) -> None:
        """Until `stop`."""
        while not stop.is_set():
            self.look()
            stop.wait(LOOK_S)

    def look(self) -> None:
        """One look at the settings, and what they request that is due."""
        if self._live.now is not self._seen:
            self._seen = self._live.now
            self._failed.clear()
            self._again_s.clear()
        for topic, manifest in self._requested().items():
            is_known = manifest in (self._settled.get(topic), self._failed.get(topic))
            if not is_known and self._clock.monotonic_s() >= self._again_s.get(topic, 0):
                self._try_safely(topic, manifest)

    def _requested(self) -> Mapping[str, str]:
        rules = self._live.now.topics
        return {
            rule.pattern: str(rule.values["recover_from"]) for rule in rules if rule.names_one_topic and rule.values.get("recover_from")
        }

    def _try_safely(self, topic: str, manifest: str) -> None:
        try:
            outcome = self._try(topic, manifest)
        except (TransientError, DiskFull, Locked) as error:
            self._postpone(topic)
            log.warning("topic_recovery_postponed", topic=topic, manifest=manifest, reason=str(error))
        except HeadwaterError as error:
            log.error("topic_not_recovered", topic=topic, manifest=manifest, reason=str(error))
            self._failed[topic] = manifest
        except Exception:  # a defect of ours, or an error of the operating system: other topics are still to come
            log.exception("topic_recovery_failed", topic=topic, manifest=manifest)
            self._postpone(topic)
        else:
            log.info("topic_recovery_settled", topic=topic, manifest=manifest, outcome=outcome.value)
            self._settled[topic] = manifest

    def _postpone(self, topic: str) -> None:
        self._again_s[topic] = self._clock.monotonic_s() + RETRY_S

    def _try(self, topic: str, manifest: str) -> recovery.DownloadOutcome:
        if not self._live.now.log.owned:
            raise UsageError("recover_from is for an owned log directory (log.owned)")
        settings = self._live.archival_for(topic)
        if settings.release is not False and topic not in self._again_s:
            log.warning(
                "downloaded_topic_is_released",
                topic=topic,
                reason="release is on for it: what is archived is deleted here, what is downloaded too",
                consequence="it is in the archive alone again; release = false for the topic keeps it",
            )
        wanted = recovery.TopicDownload(
            topic=topic,
            manifest_key=manifest,
            cluster_id=self._dirs.cluster_id,
            node_id=self._dirs.node_id,
            retention_ms=None if settings.retention_s is None else settings.retention_s * 1000,
            retention_bytes=settings.retention_bytes,
        )
        return recovery.bring_back(
            wanted, self._live.now.log.dirs, self._bucket.store, self._plan, clock=self._clock, control=self._control
        )

    @property
    def _plan(self) -> Callable[..., recovery.RecoveryPlan]:
        return lambda names, options: recovery.plan(self._bucket.manifests, names, options, clock=self._clock)
