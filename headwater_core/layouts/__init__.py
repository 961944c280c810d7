"""How a run lies in objects. Each layout is one module behind one seam."""

from headwater_core.layouts.layout_table import LAYOUT_NAMES, NoOffloader, is_known, open_layout
from headwater_core.layouts.offloader import NewRun, Offloaded, Offloader, RunReader, StoredRun

__all__ = ["LAYOUT_NAMES", "NewRun", "NoOffloader", "Offloaded", "Offloader", "RunReader", "StoredRun", "is_known", "open_layout"]
