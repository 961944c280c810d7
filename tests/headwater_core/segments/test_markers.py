from headwater_core.segments.markers import ABORT, COMMIT, Marker, read_marker
from tests.headwater_core.segments.builders import a_marker


def test_a_marker_has_the_end_and_the_coordinators_epoch() -> None:
    assert read_marker(a_marker(0, 1, aborts=True, coordinator_epoch=7)) == Marker(ABORT, 7)
    assert read_marker(a_marker(0, 1, aborts=False)) == Marker(COMMIT, 0)
