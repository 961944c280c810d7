"""How a run lies in objects. Each layout is one module behind one seam."""

from headwater_core.layouts.layout_table import open_layout
from headwater_core.layouts.offloader import NewRun, Offloaded, Offloader

__all__ = ["NewRun", "Offloaded", "Offloader", "open_layout"]
