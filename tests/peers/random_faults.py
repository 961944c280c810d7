"""What may happen to a request between an agent and its store, drawn by chance."""

import threading
from collections import Counter
from random import Random
from time import monotonic

from tests.headwater_core.objectstore.badnetwork import LOSE_REPLY, LOSE_REQUEST, PASS, Answer, error


class RandomFaults:
    """The fate of one request after the other, as BadNetwork wants it; all pass once `stop` was called.

    rate    the share of requests that meet a fault
    hang_s  how long a silence lasts at most; most are far shorter

    `passed` and `met`, by kind, count the requests until then.
    """

    def __init__(self, seed: int, rate: float, hang_s: float) -> None:
        self._random, self._rate, self._hang_s = Random(seed), rate, hang_s
        self._lock, self._busy_until_s, self._stopped = threading.Lock(), 0.0, False
        self.passed, self.met = 0, Counter[str]()

    def stop(self) -> None:
        self._stopped = True

    def __call__(self) -> Answer:
        with self._lock:
            name, fate = self._draw()
            if name:
                self.met[name] += 1
            elif not self._stopped:
                self.passed += 1
            return fate

    def _draw(self) -> tuple[str, Answer]:
        draw = self._random
        if self._stopped:
            return "", PASS
        if monotonic() < self._busy_until_s:
            return "slow down", error(503, "SlowDown")
        if draw.random() >= self._rate:
            return "", PASS
        share, hang_s = draw.random(), 0.1 * (10 * self._hang_s) ** draw.random()
        name, fate = draw.choice(
            (
                ("request dropped", LOSE_REQUEST),
                ("answer dropped", LOSE_REPLY),
                ("delayed", Answer(delay_s=draw.random())),
                ("arrives late", Answer(delay_s=hang_s, deserted=True)),
                ("request cut", Answer(sent=share)),
                ("request hangs", Answer(sent=share, hang_s=hang_s)),
                ("answer cut", Answer(received=share)),
                ("answer hangs", Answer(received=share, hang_s=hang_s)),
                ("silence", Answer(forward=False, hang_up=True, hang_s=hang_s)),
                ("silence after the work", Answer(hang_up=True, hang_s=hang_s)),
                ("server error", error(500, "InternalError")),
                ("slow down", error(503, "SlowDown")),
            )
        )
        if name == "slow down":
            self._busy_until_s = monotonic() + draw.uniform(0.2, 1.0)
        return name, fate
