"""All partitions that the archive is known to have: by the control log, which knows their offsets, and by the bucket's topics."""

from collections.abc import Callable, Mapping

from headwater_core.control.state import ControlState, PartitionState
from headwater_core.partition import PartitionId
from manifests.topic import TopicManifest


class ArchivedPartitions:
    """
    state   of the control log
    listed  the topics in the bucket, by name
    """

    def __init__(self, state: Callable[[], ControlState], listed: Callable[[], Mapping[str, TopicManifest]]) -> None:
        self._state, self._listed = state, listed
        self._of: tuple[ControlState | None, Mapping[str, TopicManifest]] = (None, {})
        self._found: Mapping[PartitionId, PartitionState | None] = {}

    def now(self) -> Mapping[PartitionId, PartitionState | None]:
        """Their offsets; None where the control log says nothing. The same object as long as nothing changes."""
        state, listed = self._state(), self._listed()
        if state is not self._of[0] or listed != self._of[1]:
            found: dict[PartitionId, PartitionState | None] = {
                manifest.partition_id(number): None for manifest in listed.values() for number in range(manifest.partitions)
            }
            found.update(state.partitions())
            self._of, self._found = (state, listed), found
        return self._found
