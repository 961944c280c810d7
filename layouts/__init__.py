"""How a run lies in objects. Each layout is one module behind one seam."""

from layouts.known import open_layout
from layouts.offloader import Offloaded, Offloader

__all__ = ["Offloaded", "Offloader", "open_layout"]
