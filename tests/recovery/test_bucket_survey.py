"""Whose the documents of a bucket are, and which heads hold more than a plan brings back."""

import pytest
from msgspec.structs import replace

import recovery
from headwater_core.errors import TransientError
from manifests import keys
from manifests.repository import ManifestRepository
from recovery.bucket_survey import BucketSurvey, OwnedDocument, archived_since, expected_heads, shown, survey, ungiven
from recovery.recovery_plan import RecoveryPlan
from tests.fixtures import unpack
from tests.headwater_core.objectstore.memory import MemoryStore
from tests.recovery.archived import archive_in_memory

UNPLANNED = "meta/soup/AAAAAAAAAAAAAAAAAAAAAQ/0/manifest.json"


@pytest.fixture(scope="module")
def kitchen() -> tuple[ManifestRepository, RecoveryPlan]:
    _, repository = archive_in_memory(unpack("kitchen"))
    return repository, recovery.plan(repository, None, recovery.Options(take_over=True))


def test_every_document_is_found_with_its_owner(kitchen: tuple[ManifestRepository, RecoveryPlan]) -> None:
    repository, plan = kitchen
    found = survey(repository)
    names = {key.rsplit("/", 1)[1] for key in found.documents}
    assert names == {"manifest.json", "topic.json", "current.json"}
    assert found.listed == found.heads.keys() == expected_heads(plan).keys()
    assert (found.not_of({plan.source_cluster_id}), found.refusals({plan.source_cluster_id})) == ([], [])
    assert len(found.refusals({plan.cluster_id})) == len(found.documents)
    assert plan.unplanned_heads == ()


def test_more_is_archived_when_a_log_goes_on_or_a_leader_epoch_was_followed(kitchen: tuple[ManifestRepository, RecoveryPlan]) -> None:
    repository, plan = kitchen
    found = survey(repository)
    [key] = [key for key in found.heads if key.startswith("meta/bills/") and key.endswith("/0/manifest.json")]
    planned = expected_heads(plan)[key]

    def is_more(next_offset: int, leader_epoch: int) -> bool:
        head = OwnedDocument("any", next_offset, leader_epoch)
        return bool(archived_since(BucketSurvey(found.listed, {**found.documents, key: head}), plan))

    assert not is_more(planned.next_offset, planned.leader_epoch)
    assert is_more(planned.next_offset + 1, planned.leader_epoch)
    assert is_more(planned.next_offset - 1, planned.leader_epoch)
    assert is_more(planned.next_offset, planned.leader_epoch + 1)


def test_of_what_is_left_out_only_a_head_that_was_not_there_is_more(kitchen: tuple[ManifestRepository, RecoveryPlan]) -> None:
    _, plan = kitchen
    found = BucketSurvey(frozenset({UNPLANNED}), {UNPLANNED: OwnedDocument("any", 9, 9)})
    assert archived_since(found, plan) == ["soup:0 up to 9, leader epoch 9"]
    assert archived_since(found, replace(plan, unplanned_heads=(UNPLANNED,))) == []


def test_a_store_that_does_not_answer_is_no_absence(kitchen: tuple[ManifestRepository, RecoveryPlan]) -> None:
    class Silent(MemoryStore):
        def __init__(self, other: MemoryStore) -> None:
            self.__dict__ = other.__dict__

        def get(self, key: str, *, max_bytes: int | None = None) -> tuple[bytes, str]:
            if key == keys.CLUSTER_LIST:
                raise TransientError("the network is gone")
            return super().get(key)

    repository, _ = kitchen
    assert isinstance(repository.store, MemoryStore)
    with pytest.raises(TransientError):
        survey(ManifestRepository(Silent(repository.store)))


def test_what_an_interrupted_take_over_has_left_is_a_problem_of_its_owner() -> None:
    found = BucketSurvey(frozenset(), {"meta/soup/current.json": OwnedDocument("old")})
    assert "meta/soup/current.json: not cluster new's yet" in ungiven(found, "new")[0]
    assert ungiven(found, "old") == []
    assert shown([str(each) for each in range(12)])[-1] == "2 more"
