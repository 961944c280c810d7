"""The layouts this version can read and write, by name."""

from headwater_core.errors import UnsupportedFormat
from headwater_core.layouts.offloader import Offloader
from headwater_core.layouts.segment import SegmentLayout

_LAYOUTS: dict[str, Offloader] = {layout.name: layout for layout in (SegmentLayout(),)}


def open_layout(name: str) -> Offloader:
    """The layout that an entry or a topic names. Raises UnsupportedFormat."""
    try:
        return _LAYOUTS[name]
    except KeyError:
        raise UnsupportedFormat(f"layout {name!r} is not known to this version; it knows {', '.join(sorted(_LAYOUTS))}") from None
