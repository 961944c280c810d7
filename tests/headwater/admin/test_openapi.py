"""The OpenAPI document says what is answered: paths, parameters, and the shape of answers."""

import inspect
import re
from typing import Any, cast

import msgspec
from starlette.routing import Route

from headwater.admin import admin_routes, operation_routes, topic_routes
from headwater.admin.openapi import openapi_document
from headwater.admin.problem import ProblemCode
from headwater.agent_verbs import AgentVerbs
from headwater.session import Session
from tests.headwater.admin.apps import an_app, some_routes

VERBS = AgentVerbs(cast(Session, None), lambda: None).all()
DOCUMENT = msgspec.json.decode(msgspec.json.encode(openapi_document("1.2.3", VERBS)))


def test_it_has_every_path_and_no_other() -> None:
    app = an_app(routes=some_routes(*VERBS))
    served = {
        (route.path, method) for route in app.routes if isinstance(route, Route) for method in (route.methods or ()) if method != "HEAD"
    }
    assert served == {(path, method.upper()) for path, methods in DOCUMENT["paths"].items() for method in methods}
    assert DOCUMENT["info"]["version"] == "1.2.3"


def test_each_path_has_the_parameters_that_its_handler_knows() -> None:
    source = inspect.getsource(admin_routes) + inspect.getsource(operation_routes) + inspect.getsource(topic_routes)
    known = [re.findall(r'"(\w+)"', arguments) for arguments in re.findall(r"known\(request((?:, \"\w+\")*)\)", source)]
    documented = [
        [each["name"] for each in method["parameters"] if each["in"] == "query"]
        for methods in DOCUMENT["paths"].values()
        for method in methods.values()
    ]
    assert {frozenset(each) for each in known if each} == {frozenset(each) for each in documented if each}


def test_every_reference_leads_somewhere() -> None:
    references = re.findall(r'"\$ref":"#/([^"]+)"', msgspec.json.encode(DOCUMENT).decode())
    assert references
    for reference in references:
        found: Any = DOCUMENT
        for part in reference.split("/"):
            found = found[part]
        assert found


def test_every_code_of_an_error_has_a_status_and_is_named() -> None:
    words = DOCUMENT["components"]["responses"]["Problem"]["description"]
    assert all(code.value in words and code.status >= 400 for code in ProblemCode)


def test_the_fields_of_a_page_are_described() -> None:
    schemas = DOCUMENT["components"]["schemas"]
    assert set(schemas) >= {
        "Operation",
        "OperationPage",
        "ArchiveArguments",
        "CollectionRequest",
        "PauseChange",
        "StatusPage",
        "StatusSum",
        "TopicRow",
        "PartitionRow",
        "Problem",
    }
    assert "high_watermark" in schemas["PartitionRow"]["properties"]
    assert set(schemas["StatusPage"]["required"]) == {
        "at_ms",
        "whole",
        "has_log_directories",
        "listed",
        "unseen",
        "store_failing_s",
        "damaged_topics",
    }
