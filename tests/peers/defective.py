"""`headwater` with a mistake planted in it, for what only a defect shows: while the file named first is there, no partition is archived."""

import sys
from pathlib import Path
from typing import Any
from unittest.mock import patch

from archival.fleet import ArchiverFleet
from headwater.cli import main


def _with_defect(file: Path) -> None:
    real = ArchiverFleet._advance

    def advance(self: ArchiverFleet, *about: Any) -> Any:
        if file.exists():
            raise ZeroDivisionError("planted")
        return real(self, *about)

    with patch.object(ArchiverFleet, "_advance", advance):
        main()


if __name__ == "__main__":
    _with_defect(Path(sys.argv.pop(1)))
