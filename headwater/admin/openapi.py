"""The API's OpenAPI document, made from the values that are answered."""

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from headwater.admin.client_routes import ClientPage
from headwater.admin.metrics import STATES
from headwater.admin.offload_routes import OffloadRequest, OffloadStatus
from headwater.admin.operation_routes import JSON_LINES, ReportedBegin, ReportedEnd, ReportedProgress
from headwater.admin.operation_routes import LIMIT as OPERATIONS_LIMIT
from headwater.admin.operation_routes import LIMIT_MAX as OPERATIONS_LIMIT_MAX
from headwater.admin.operations import OPERATION_ID, Operation, OperationPage, OperationState
from headwater.admin.problem import MEDIA_TYPE, Problem, ProblemCode
from headwater.admin.status_board import ARCHIVE_ONLY
from headwater.admin.status_page import LIMIT, LIMIT_MAX, StatusPage
from headwater.admin.topic_page import TopicList, TopicPage
from headwater.admin.verb import Verb

_TEXT = {"text/plain": {"schema": {"type": "string"}}}
_BEARER = "Where admin.token_file or admin.read_token_file is set; with the latter's token nothing is done"
_OPERATION_ID = {
    "name": "Operation-Id",
    "in": "header",
    "required": False,
    "schema": {"type": "string", "pattern": OPERATION_ID},
    "description": "The id that it is to have. A second request with it begins nothing, and answers how the first one stands",
}
_TOPIC = {"name": "topic", "in": "path", "required": True, "schema": {"type": "string"}, "description": "Its name"}
_PARTITION = {"name": "partition", "in": "path", "required": True, "schema": {"type": "integer"}, "description": "Its number"}
_ID = {"name": "id", "in": "path", "required": True, "schema": {"type": "string"}, "description": "The operation's id"}


def openapi_document(version: str, verbs: Sequence[Verb]) -> dict[str, Any]:
    """OpenAPI 3.1. version: of the program."""
    reports = (ReportedBegin, ReportedProgress, ReportedEnd)
    types = (
        StatusPage,
        TopicList,
        TopicPage,
        ClientPage,
        OperationPage,
        Operation,
        Problem,
        OffloadStatus,
        OffloadRequest,
        *reports,
        *(each.arguments for each in verbs),
    )
    made, schemas = msgspec.json.schema_components(types, ref_template="#/components/schemas/{name}")
    page, topics, topic, clients, operations, operation, problem, offload, offload_request, begin, progress, end, *arguments = made
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Headwater",
            "version": version,
            "description": "A running agent, over its admin port and its socket. What is read comes from memory and at once, whatever the "
            "store does; what is done is an operation.",
        },
        "security": [{"bearer": []}],
        "paths": {
            "/livez": {"get": _health("Is the process alive?", "event_loop")},
            "/readyz": {"get": _health("Does all work that the agent was started for?", "store")},
            "/metrics": {
                "get": _operation(
                    "Metrics in the form of Prometheus, or OpenMetrics where that is accepted",
                    {"200": {"description": "Metrics: docs/metrics.md", "content": _TEXT | {"application/openmetrics-text": {}}}},
                )
            },
            "/v1/status": {
                "get": _operation(
                    "Topics or partitions, here or archived, as the agent knows them, with the age of that knowledge",
                    {"200": {"description": "One page", "content": {"application/json": {"schema": page}}}},
                    _parameter("topic", {"type": "string"}, "A name, or a pattern with * and ?"),
                    _parameter("partition", {"type": "integer", "minimum": 0}, "Only partitions of this number"),
                    _parameter("state", _several([*STATES, ARCHIVE_ONLY]), "Partitions in one of these states"),
                    _parameter("lag_above_s", {"type": "number", "minimum": 0}, "Partitions that lag longer, or whose lag is not known"),
                    _parameter("partitions", {"type": "boolean", "default": False}, "A row for each partition, not for each topic"),
                    _parameter("limit", {"type": "integer", "minimum": 1, "maximum": LIMIT_MAX, "default": LIMIT}, "Rows on the page"),
                    _parameter("after", {"type": "string"}, "The next_after of the page before: TOPIC, or TOPIC:PARTITION with partitions"),
                    _parameter(
                        "wait_s",
                        {"type": "number", "minimum": 0},
                        "Answer only when what has been done so far was looked at, or after so many seconds, 5 at most",
                    ),
                )
            },
            "/v1/topics": {
                "get": _operation(
                    "Topics that are here or archived: what is known of each, in sums",
                    _is(topics),
                    _parameter("limit", {"type": "integer", "minimum": 1, "maximum": LIMIT_MAX, "default": LIMIT}, "Topics on the page"),
                    _parameter("after", {"type": "string"}, "The next_after of the page before"),
                )
            },
            "/v1/topics/{topic}": {
                "get": _operation(
                    "One topic: the settings and pauses that hold for it, and its partitions",
                    _is(topic),
                    _TOPIC,
                    _parameter("limit", {"type": "integer", "minimum": 1, "maximum": LIMIT_MAX, "default": LIMIT}, "Rows on the page"),
                    _parameter("after", {"type": "integer", "minimum": 0}, "The next_after of the page before"),
                )
            },
            "/v1/topics/{topic}/partitions/{partition}": {
                "get": _operation("One partition of a topic, in the same form", _is(topic), _TOPIC, _PARTITION)
            },
            "/v1/topics/{topic}/partitions/{partition}/offload": {
                "get": _operation("How the last offload of a partition stands that was requested", _is(offload), _TOPIC, _PARTITION),
                "post": _operation(
                    "Archive a partition's segments that lie before an offset. 409 while one is in progress, begun here or by "
                    "`headwater archive TOPIC:P --before`; what is found out later, "
                    "such as an offset beyond the high watermark, is the operation's error",
                    _begun(operation),
                    _TOPIC,
                    _PARTITION,
                    _OPERATION_ID,
                )
                | _body(offload_request),
            },
            "/v1/clients": {
                "get": _operation(
                    "Kafka clients that are connected: who they say they are, and for which group they read",
                    _is(clients),
                    _parameter("limit", {"type": "integer", "minimum": 1, "maximum": LIMIT_MAX, "default": LIMIT}, "Clients on the page"),
                    _parameter("after", {"type": "string"}, "The next_after of the page before"),
                )
            },
            "/v1/operations": {
                "get": _operation(
                    "Operations that run, and those that ended within a day; the newest first",
                    {"200": {"description": "One page", "content": {"application/json": {"schema": operations}}}},
                    _parameter("state", _several([each.value for each in OperationState]), "Those in one of these states"),
                    _parameter("verb", {"type": "array", "items": {"type": "string"}}, "Those of one of these verbs"),
                    _parameter(
                        "limit",
                        {"type": "integer", "minimum": 1, "maximum": OPERATIONS_LIMIT_MAX, "default": OPERATIONS_LIMIT},
                        "Operations on the page",
                    ),
                    _parameter("after", {"type": "string"}, "The next_after of the page before"),
                ),
                "post": _operation(
                    "A command that works by itself reports that it has begun; the same report again changes nothing",
                    {"201": {"description": "It is listed", "content": {"application/json": {"schema": operation}}}} | _is(operation),
                )
                | _body(begin),
            },
            "/v1/operations/{id}/progress": {
                "post": _operation("It reports how far it is, every few seconds; cancelling tells it to end", _is(operation))
                | {"parameters": [_ID]}
                | _body(progress)
            },
            "/v1/operations/{id}/end": {
                "post": _operation("It reports what came of it", _is(operation)) | {"parameters": [_ID]} | _body(end)
            },
            "/v1/operations/{id}": {"get": _operation("One operation", _is(operation)) | {"parameters": [_ID]}},
            "/v1/operations/{id}/cancel": {
                "post": _operation("Cancel it: it ends soon. One that has ended stays as it is", _is(operation)) | {"parameters": [_ID]}
            },
            **{f"/v1/{each.name}": {"post": _verb(each, wanted, operation)} for each, wanted in zip(verbs, arguments, strict=True)},
            "/v1/openapi.json": {
                "get": _operation(
                    "This document", {"200": {"description": "OpenAPI", "content": {"application/json": {"schema": {"type": "object"}}}}}
                )
            },
        },
        "components": {
            "schemas": schemas,
            "securitySchemes": {"bearer": {"type": "http", "scheme": "bearer", "description": _BEARER}},
            "responses": {
                "Problem": {
                    "description": "An error; its codes: " + ", ".join(code.value for code in ProblemCode),
                    "content": {MEDIA_TYPE: {"schema": problem}},
                }
            },
        },
    }


def _verb(verb: Verb, arguments: dict[str, Any], operation: dict[str, Any]) -> dict[str, Any]:
    line = {"type": "object", "properties": {"row": {"type": "object"}, "operation": operation}}
    rows = "A line for each row, and lines with the operation: the first, the last, and one after 5 s without a row. Who leaves cancels it"
    return _operation(
        verb.summary,
        {"200": {"description": rows, "content": {JSON_LINES: {"schema": line}}}} | ({} if verb.is_look else _begun(operation)),
        _parameter("wait", {"type": "boolean", "default": verb.is_look}, f"Answer with its rows and its end; so does Accept: {JSON_LINES}"),
        _OPERATION_ID,
    ) | {"requestBody": {"content": {"application/json": {"schema": arguments}}}}


def _body(schema: dict[str, Any]) -> dict[str, Any]:
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}


def _is(schema: dict[str, Any]) -> dict[str, Any]:
    return {"200": {"description": "As it is now", "content": {"application/json": {"schema": schema}}}}


def _begun(operation: dict[str, Any]) -> dict[str, Any]:
    return {"202": {"description": "It has begun; Location leads to it", "content": {"application/json": {"schema": operation}}}}


def _several(choices: Iterable[str]) -> dict[str, Any]:
    return {"type": "array", "items": {"type": "string", "enum": list(choices)}}


def _operation(summary: str, responses: dict[str, Any], *parameters: dict[str, Any]) -> dict[str, Any]:
    return {
        "summary": summary,
        "parameters": list(parameters),
        "responses": responses | {"default": {"$ref": "#/components/responses/Problem"}},
    }


def _parameter(name: str, schema: dict[str, Any], words: str) -> dict[str, Any]:
    return {"name": name, "in": "query", "required": False, "schema": schema, "description": words}


def _health(summary: str, check: str) -> dict[str, Any]:
    done = {"200": {"description": "Yes", "content": _TEXT}, "503": {"description": "No; the checks by name", "content": _TEXT}}
    verbose = _parameter("verbose", {"type": "boolean", "default": False}, "Each check by name, though all hold")
    exclude = _parameter("exclude", {"type": "array", "items": {"type": "string"}}, f"Checks to leave out, such as {check}")
    return _operation(summary, done, verbose, exclude) | {"security": [{}, {"bearer": []}]}
