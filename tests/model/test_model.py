"""What the model shows quickly; `make soak` explores the whole."""

import pytest

from tests.model.cases import EXPECTED_QUIET, MUTANTS, RULES, SCENARIOS, SCENARIOS_EXTRA
from tests.model.search import explore_mutant, explore_scenario

LONG = {  # more than some ten thousand states
    "archive_above_hw",
    "as_designed_look",
    "as_designed_release",
    "forget_superseded",
    "isr_without_pin",
    "key_without_uid",
    "no_lease",
    "no_revive",
    "pin_without_isr",
    "release_by_reference",
    "release_foreign_fence",
    "release_from_control",
    "release_no_lineage",
    "release_unstamped",
}


def test_mutants_name_scenarios_and_rules_that_exist() -> None:
    assert MUTANTS.keys() >= LONG | EXPECTED_QUIET
    for mutant in MUTANTS.values():
        assert mutant.scenario in SCENARIOS | SCENARIOS_EXTRA
        assert RULES.keys() >= set(mutant.without.split())


@pytest.mark.parametrize(
    "name",
    [
        *("faults", "merge", "pages", "pages_faults", "pages_tree", "pages_gcs", "pages_reader", "pages_claim", "pages_upgrade"),
        *("stream_faults", "stream_gc", "take_over"),
    ],
)
def test_a_quick_scenario_holds_every_invariant(name: str) -> None:
    found = explore_scenario(name)
    assert not found.violation, found.trace
    assert found.witnesses


@pytest.mark.parametrize("name", sorted(MUTANTS.keys() - LONG))
def test_a_mutant_is_caught(name: str) -> None:
    found = explore_mutant(name)
    assert bool(found.violation) != (name in EXPECTED_QUIET)
