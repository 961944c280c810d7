"""The offload endpoint over HTTP: what is accepted, what is refused and with which code, and how an offload stands."""

import json
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from archival.partition_status import PartitionStatus
from headwater.admin.admin_routes import admin_app
from headwater.admin.admin_server import AdminServer
from headwater.admin.config import AdminConfig
from headwater.admin.offload_routes import ARCHIVE, OFFLOAD, OffloadArguments
from headwater.admin.operation_routes import OperationRoutes
from headwater.admin.operations import Operations, RunningOperation, new_operation_id
from headwater.admin.status_board import BoardEntry, StatusBoard
from headwater.admin.verb import Rows, Verb
from headwater.admin.verb_threads import VerbThreads
from headwater.agent_verbs import ArchiveArguments
from headwater_core.clock import SystemClock
from headwater_core.errors import Fenced, HeadwaterError
from headwater_core.partition import TopicPartition
from tests.headwater.admin.apps import NO_CHECKS
from tests.headwater.admin.client import Address, Answer, call
from tests.headwater.admin.test_admin_server import eventually

TOKEN = "a-secret-of-sixteen"
PATH = "/v1/topics/soup/partitions/{}/offload"


class SomeBoard(StatusBoard):
    """soup:0 and soup:1, archived up to 9."""

    def __init__(self) -> None:
        self.is_listed = True
        self._lock = threading.Lock()
        self._entries = {}
        for number in (0, 1):
            place = TopicPartition("soup", number)
            status = replace(PartitionStatus.unknown(place, "waiting", ""), last_offset=9, archive_start=0)
            self._entries[place] = BoardEntry(status, 0.0, 0.0)

    def elsewhere(self) -> list[BoardEntry]:
        return []


class Stand:
    """The endpoint, over work that waits until it may end, with the error that it is given."""

    def __init__(self, stack: ExitStack, token: Path) -> None:
        token.write_text(f"{TOKEN}\n")
        self.may_end, self.error = threading.Event(), None  # type: threading.Event, HeadwaterError | None
        self.done: list[OffloadArguments] = []
        clock = SystemClock()
        operations = Operations(clock, new_operation_id)
        threads = VerbThreads(operations)
        stack.callback(threads.close)
        stack.callback(self.may_end.set)
        archive = Verb(name=ARCHIVE, summary="x", arguments=ArchiveArguments, rows=self._rows)
        routes = OperationRoutes(operations, threads, (archive,))
        verb = Verb(name=OFFLOAD, summary="x", arguments=OffloadArguments, rows=self._rows)
        app = admin_app(NO_CHECKS, None, SomeBoard(), routes, clock, "1.2.3", offload=verb)  # type: ignore[arg-type]
        server = stack.enter_context(AdminServer(AdminConfig(listen="127.0.0.1:0", token_file=token), app, token.parent))
        assert server.address is not None
        self.data_dir, self.port = token.parent, (server.address[0], server.address[1])

    def _rows(self, arguments: Any, running: RunningOperation) -> Rows:
        self.done.append(arguments)
        self.may_end.wait(30)
        if self.error is not None:
            raise self.error
        yield {}

    def post(self, body: Any, partition: object = 0, path: str = PATH, **headers: str) -> Answer:
        raw = body if isinstance(body, bytes) else json.dumps(body).encode()
        return call(self.data_dir, path.format(partition), method="POST", body=raw, content_type="application/json", **headers)

    def state(self, partition: int = 0) -> Any:
        return call(self.data_dir, PATH.format(partition)).json


@pytest.fixture
def stand(tmp_path: Path) -> Iterator[Stand]:
    with ExitStack() as stack:
        yield Stand(stack, tmp_path / "token")


def test_it_is_accepted_runs_and_succeeds(stand: Stand) -> None:
    assert (stand.state()["state"], stand.state()["before"], stand.state()["next_offset"]) == ("not_run", None, 10)
    begun = stand.post({"before": 20})
    assert begun.status == 202
    assert begun.headers["location"] == f"/v1/operations/{begun.json['id']}"
    assert (begun.json["verb"], begun.json["arguments"]) == ("offload", {"topic": "soup", "partition": 0, "before": 20})
    assert (stand.state()["state"], stand.state()["before"]) == ("running", 20)
    stand.may_end.set()
    assert eventually(lambda: stand.state()["state"] == "success")
    assert stand.state()["error"] is None
    assert stand.state()["operation"]["id"] == begun.json["id"]
    assert call(stand.data_dir, begun.headers["location"]).json["state"] == "done"


def test_one_runs_at_a_time_for_each_partition(stand: Stand) -> None:
    first = stand.post({"position": 20})
    refused = stand.post({"position": 30})
    assert (refused.status, refused.problem, refused.json["exit_code"]) == (409, "offload_running", 5)
    assert first.json["id"] in refused.json["detail"]
    assert stand.post({"position": 30}, partition=1).status == 202
    stand.may_end.set()
    assert eventually(lambda: stand.state()["state"] == "success")
    assert stand.post({"position": 30}).status == 202
    assert eventually(lambda: stand.state()["before"] == 30 and stand.state()["state"] == "success")
    assert sorted(each.before for each in stand.done) == [20, 30, 30]


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({"selection": "soup:0", "before": 20}, 409),
        ({"selection": "soup:00", "before": 20}, 409),
        ({"selection": "soup:0"}, 202),
        ({"selection": "soup:1", "before": 20}, 202),
        ({"before": 20}, 202),
    ],
)
def test_a_command_that_archives_the_partition_before_an_offset_is_one_of_its_offloads(stand: Stand, body: Any, status: int) -> None:
    """One for other partitions, for all of them, or without an offset is not."""
    begun = stand.post(body, path="/v1/archive")
    assert begun.status == 202
    answer = stand.post({"before": 30})
    assert answer.status == status
    if status == 409:
        assert (answer.problem, begun.json["id"] in answer.json["detail"]) == ("offload_running", True)
        assert stand.state()["state"] == "not_run"
    stand.may_end.set()
    assert eventually(lambda: call(stand.data_dir, f"/v1/operations/{begun.json['id']}").json["state"] == "done")
    if status == 409:
        assert stand.post({"before": 30}).status == 202


def test_the_same_request_again_is_the_same_operation(stand: Stand) -> None:
    first = stand.post({"before": 20}, operation_id="offload-1")
    assert stand.post({"before": 20}, operation_id="offload-1").json["id"] == first.json["id"] == "offload-1"
    assert stand.post({"before": 21}, operation_id="offload-1").problem == "operation_id_taken"
    assert len(stand.done) <= 1


@pytest.mark.parametrize("error", [Fenced("claimed by another agent (b-1, fence 7)"), HeadwaterError("it broke")])
def test_a_failure_is_shown_with_its_words_until_the_next_one(stand: Stand, error: HeadwaterError) -> None:
    stand.error = error
    stand.may_end.set()
    stand.post({"before": 20})
    assert eventually(lambda: stand.state()["state"] == "error")
    assert (stand.state()["error"], stand.state()["operation"]["exit_code"]) == (str(error), error.exit_code)
    stand.error = None
    stand.post({"before": 20})
    assert eventually(lambda: stand.state()["state"] == "success")
    assert stand.state()["error"] is None


def test_one_that_was_cancelled_is_no_success(stand: Stand) -> None:
    stand.error = HeadwaterError("stopped")
    begun = stand.post({"before": 20}).json["id"]
    call(stand.data_dir, f"/v1/operations/{begun}/cancel", method="POST", body=b"{}", content_type="application/json")
    stand.may_end.set()
    assert eventually(lambda: stand.state()["state"] == "error")


def test_another_process_cannot_take_the_place_of_one(stand: Stand) -> None:
    reported = {"id": "reported-1", "verb": "offload", "arguments": {"topic": "soup", "partition": 0, "before": 5}, "pid": 1}
    body = json.dumps(reported).encode()
    assert call(stand.data_dir, "/v1/operations", method="POST", body=body, content_type="application/json").status == 201
    assert stand.state()["state"] == "not_run"
    assert stand.post({"before": 20}).status == 202


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"before": -1},
        {"position": -1},
        {"before": 2**63},
        {"before": 1, "position": 1},
        {"before": "20"},
        {"before": 1.5},
        {"before": None},
        {"offset": 20},
        [20],
        b"",
        b"{",
        b'{"before": 1e400}',
        b'"\xff"',
    ],
)
def test_what_is_no_position_is_refused(stand: Stand, body: Any) -> None:
    assert (stand.post(body).status, stand.post(body).problem) == (400, "bad_request")
    assert not stand.done


@pytest.mark.parametrize(
    ("topic", "partition", "status", "code"),
    [
        ("soup", "7", 404, "unknown_topic"),
        ("stew", "0", 404, "unknown_topic"),
        ("soup", "-1", 400, "bad_request"),
        ("soup", "00", 400, "bad_request"),
        ("soup", "2147483648", 400, "bad_request"),
        ("soup", "zero", 400, "bad_request"),
        ("so%20up", "0", 400, "bad_request"),
        ("s%C3%B6up", "0", 400, "bad_request"),
        ("soup%00", "0", 400, "bad_request"),
        ("..", "0", 400, "bad_request"),
        ("x" * 250, "0", 400, "bad_request"),
        ("a%2Fb", "0", 404, "not_found"),
    ],
)
def test_what_is_no_partition_here_is_refused_with_a_code(stand: Stand, topic: str, partition: str, status: int, code: str) -> None:
    path = f"/v1/topics/{topic}/partitions/{partition}/offload"
    for answer in (stand.post({"before": 20}, path=path), call(stand.data_dir, path)):
        assert (answer.status, answer.problem) == (status, code)
    assert not stand.done


def test_over_the_port_it_needs_the_token(stand: Stand) -> None:
    def post(address: Address, token: str) -> Answer:
        return call(address, PATH.format(0), method="POST", token=token, body=b'{"before": 20}', content_type="application/json")

    assert (post(stand.port, "").status, post(stand.port, "wrong").status) == (401, 401)
    assert call(stand.port, PATH.format(0)).status == 401
    assert not stand.done
    assert post(stand.port, TOKEN).status == 202
    assert call(stand.port, PATH.format(0), token=TOKEN).json["state"] == "running"
    assert call(stand.port, PATH.format(0), method="PUT", token=TOKEN, body=b"{}", content_type="application/json").status == 405
