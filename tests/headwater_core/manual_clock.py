"""A clock that a test moves by hand."""

from dataclasses import dataclass


@dataclass(slots=True)
class ManualClock:
    """Stands still until `advance`."""

    at_ms: int = 1_700_000_000_000

    def now_ms(self) -> int:
        return self.at_ms

    def monotonic_s(self) -> float:
        return self.at_ms / 1000

    def advance(self, by_ms: int) -> None:
        self.at_ms += by_ms
