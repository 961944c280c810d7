"""What an operator may set about archiving."""

from dataclasses import dataclass

from headwater_core.errors import UsageError


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchivalConfig:
    """seal_timeout_s  archive the committed tail of an unfinished segment when it has waited this long
    layout          how new runs lie in objects
    release         delete what is archived from directories we own
    begin_anew_epoch  consent: a log that begins in this leader epoch or an older one may supersede an archive that it shares
                    nothing with
    stale_keys_below  consent: keys whose deletion the log has forgotten below this offset may stay in the archive
    rescan_s        look at every partition this often, whatever the file system reported
    """

    seal_timeout_s: int = 1800
    layout: str = "segment"
    release: bool = True
    rescan_s: int = 30
    begin_anew_epoch: int | None = None
    stale_keys_below: int | None = None

    def __post_init__(self) -> None:
        if self.seal_timeout_s < 0:
            raise UsageError(f"archival.seal_timeout is {self.seal_timeout_s} s; it cannot be negative")
        for name, consent in (("begin_anew_epoch", self.begin_anew_epoch), ("stale_keys_below", self.stale_keys_below)):
            if consent is not None and consent < 0:
                raise UsageError(f"archival.{name} is {consent}; it cannot be negative")
        if self.rescan_s < 1:
            raise UsageError(f"archival.rescan is {self.rescan_s} s; at least 1 s")
