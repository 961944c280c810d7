"""A module of more than 80 lines has a test file of its name, or stands here with a reason and the file that walks it."""

from pathlib import Path

import pytest

from tests.test_layers import ROOT, sources

LINES_MAX = 80

ELSEWHERE = {  # reason: {module: the test file to open first}
    "what it finds is tested with the one module that decides by it": {
        "archival/partition/looks.py": "tests/archival/test_cleaner.py",
        "headwater_core/segments/local_log.py": "tests/headwater_core/segments/log_dirs/test_log_dirs.py",
        "hydration/archive/archive_tier.py": "tests/hydration/test_partition_log.py",
        "hydration/local/open_segment.py": "tests/hydration/test_local_tier.py",
        "hydration/reader.py": "tests/hydration/test_fixtures.py",
        "hydration/runfile.py": "tests/hydration/test_chunk_cache.py",
        "recovery/coordinators.py": "tests/recovery/test_coordinator_logs.py",
        "recovery/open_transactions.py": "tests/recovery/test_log_ends.py",
        "headwater/drill/drill_report.py": "tests/headwater/drill/test_report_store.py",
        "headwater/drill/read_path.py": "tests/headwater/drill/test_drill_run.py",
        "headwater/drill/restored_check.py": "tests/headwater/drill/test_drill_run.py",
    },
    "values, errors or a Protocol without a decision of their own": {
        "archival/broker/broker_view.py": "tests/archival/test_broker_logs.py",
        "archival/plan/steps.py": "tests/test_values.py",
        "headwater/drill/equipment.py": "tests/headwater/drill/test_broker_check.py",
        "headwater_core/errors.py": "tests/headwater/test_bad_input.py",
        "headwater_core/layouts/offloader.py": "tests/headwater_core/layouts/test_testing.py",
        "manifests/document.py": "tests/manifests/test_head.py",
        "manifests/entry.py": "tests/manifests/test_head.py",
        "hydration/answers.py": "tests/hydration/test_partition_log.py",
        "recovery/report.py": "tests/recovery/test_restoration.py",
    },
    "part of a command, which is tested as a user runs it": {
        "headwater/commands/archive.py": "tests/headwater/test_verbs.py",
        "headwater/commands/cache.py": "tests/headwater/test_verbs.py",
        "headwater/commands/gc.py": "tests/headwater/test_collection.py",
        "headwater/drill_session.py": "tests/headwater/test_drill.py",
        "headwater/drill_text.py": "tests/headwater/test_drill.py",
        "headwater/commands/export.py": "tests/headwater/pipeline/export/test_directory_export.py",
        "headwater/commands/scrub.py": "tests/headwater/pipeline/scrub/test_scrubber.py",
        "headwater/job_options.py": "tests/headwater/test_event_log.py",
        "headwater/offset_location.py": "tests/headwater/test_explain.py",
        "headwater/options.py": "tests/headwater/test_verbs.py",
        "headwater/replay.py": "tests/headwater/test_demo.py",
        "headwater/survey.py": "tests/headwater/test_status.py",
        "headwater/wiring.py": "tests/headwater/test_verbs.py",
    },
    "answers a client, and is tested over a socket": {
        "headwater/admin/access.py": "tests/headwater/admin/test_admin_server.py",
        "headwater/admin/admin_connection.py": "tests/headwater/admin/test_admin_server.py",
        "headwater/admin/admin_routes.py": "tests/headwater/admin/test_admin_server.py",
        "headwater/admin/operation_routes.py": "tests/headwater/admin/test_verb_threads.py",
        "headwater/admin/problem.py": "tests/headwater/admin/test_openapi.py",
        "headwater/gateway/handlers/fetch.py": "tests/headwater/gateway/test_server.py",
        "headwater/gateway/handlers/metadata.py": "tests/headwater/gateway/test_server.py",
        "headwater/gateway/protocol.py": "tests/headwater/gateway/test_list_offsets.py",
        "headwater/gateway/requests.py": "tests/headwater/gateway/test_server.py",
        "headwater/gateway/topic_snapshot.py": "tests/headwater/gateway/test_first_listing.py",
    },
    "a step of a job or a scan, whose result is what counts": {
        "headwater/pipeline/export/backlog.py": "tests/headwater/pipeline/export/test_directory_export.py",
        "headwater/pipeline/export/checkpoint.py": "tests/headwater/pipeline/export/test_directory_export.py",
        "headwater/pipeline/export/parquet.py": "tests/headwater/pipeline/export/test_directory_export.py",
        "headwater/pipeline/scan/pieces.py": "tests/headwater/pipeline/scan/test_split_reader.py",
        "headwater/pipeline/scrub/head_check.py": "tests/headwater/pipeline/scrub/test_scrubber.py",
        "headwater/pipeline/scrub/inventory.py": "tests/headwater/pipeline/scrub/test_scrubber.py",
        "headwater/pipeline/scrub/object_check.py": "tests/headwater/pipeline/scrub/test_scrubber.py",
        "headwater/pipeline/spark/table_export.py": "tests/peers/test_table_changes.py",
        "headwater/pipeline/spark/tasks.py": "tests/headwater/pipeline/spark/test_data_source.py",
    },
}


def test_a_module_has_a_test_file_of_its_name() -> None:
    names = {path.name for path in (ROOT / "tests").rglob("test_*.py")}
    long = [path for path in sources() if len(path.read_text("utf-8").splitlines()) > LINES_MAX and path.name != "__init__.py"]
    lacking = {path.relative_to(ROOT).as_posix() for path in long if f"test_{path.name}" not in names}
    assert lacking == {module for modules in ELSEWHERE.values() for module in modules}  # one that has its own by now leaves the table


@pytest.mark.parametrize("file", sorted({file for modules in ELSEWHERE.values() for file in modules.values()}))
def test_the_file_that_walks_it_is_there(file: str) -> None:
    assert Path(ROOT / file).is_file()
