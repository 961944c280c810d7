"""No first head is made unseen while the archive changes hands; each planted mistake is found."""

import pytest

from tests.model.first_head import MISTAKES, explore


def test_every_interleaving_keeps_what_the_old_cluster_archives_out_of_the_new_log() -> None:
    states, bad = explore()
    assert not bad
    assert any(each.started and each.head == 1 for each in states)
    assert any(each.agent == "refused" and each.head == 0 for each in states)
    assert any(each.taker == "refused" and each.owner == 1 for each in states)


@pytest.mark.parametrize("mistake", MISTAKES)
def test_each_mistake_is_found(mistake: str) -> None:
    assert explore(mistake)[1]
