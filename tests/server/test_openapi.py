"""The OpenAPI document tells the truth: what schemathesis makes of it is answered as it says."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, settings

import afterlog
from afterlog.server.openapi import document
from afterlog.server.running import Options, Serving
from afterlog.server.table import ENDPOINTS, Routes
from tests.campaigns import examples
from tests.server.support import Setting, run
from tests.support import PATIENCE_S

NAMES = {"topic": "mail", "subscription": "sender", "group": "g", "schedule": "weekly"}
OPEN_DOCUMENT = json.loads(json.dumps(document(ENDPOINTS)))
for operations in OPEN_DOCUMENT["paths"].values():
    for operation in operations.values():
        operation["security"] = []  # else it tries tokens that nobody has, and hardly anything else
SCHEMA = schemathesis.openapi.from_dict(OPEN_DOCUMENT)
SCHEMA.config.phases.update(phases=["fuzzing"])
SCHEMA.config.generation.update(with_security_parameters=False)
schemathesis.checks.load_all_checks()
CHECKS = schemathesis.checks.CHECKS.get_by_names(
    ["status_code_conformance", "content_type_conformance", "response_schema_conformance"]
)


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder: Path = tmp_path_factory.mktemp("served")
    with afterlog.open(folder / "data", config=afterlog.Config(durability=afterlog.OS)) as store:
        serving = Serving(store, Options(socket=False, listen=("127.0.0.1", 0), no_auth=True))
        serving.start()
        yield serving.addresses[0]
        serving.stop()
        assert serving.join(PATIENCE_S)


@SCHEMA.parametrize()
@settings(max_examples=examples(2, whole=100), deadline=None, suppress_health_check=[*HealthCheck])
def test_what_is_asked_is_answered_as_described(case: Any, address: str) -> None:
    requests.post(f"{address}/v1/topics", json={"names": ["mail"]}, timeout=PATIENCE_S)
    case.path_parameters = {name: NAMES[name] for name in case.path_parameters or {}}
    if isinstance(case.body, dict) and "wait_ms" in case.body:
        case.body["wait_ms"] = 0
    (case.query or {}).pop("wait_ms", None)
    answer = case.call(base_url=address, timeout=PATIENCE_S)
    case.validate_response(answer, checks=CHECKS)
    assert b"ServerFailed" not in answer.content


class TestDocument:
    def test_it_is_served_and_is_one(self) -> None:
        async def test(setting: Setting) -> None:
            told = await setting.client.get("/v1/openapi.json")
            assert told == json.loads(json.dumps(document(ENDPOINTS)))
            assert "3.1.0" == told["openapi"]

        run(test)

    def test_every_schema_in_it_is_one(self) -> None:
        for path, operations in document(ENDPOINTS)["paths"].items():
            for method, told in operations.items():
                schemas = [parameter["schema"] for parameter in told["parameters"]]
                contents = [told["requestBody"]] if "requestBody" in told else []
                for said in [*contents, *told["responses"].values()]:
                    schemas += [each["schema"] for each in said.get("content", {}).values()]
                for schema in schemas:
                    jsonschema.Draft202012Validator.check_schema(schema)
                assert schemas or method == "get", path

    def test_everything_that_is_routed_is_told(self) -> None:
        told = {(method.upper(), path) for path, each in document(ENDPOINTS)["paths"].items() for method in each}
        assert {(endpoint.method, endpoint.path) for endpoint in ENDPOINTS} == told
        for endpoint in ENDPOINTS:
            route = Routes(ENDPOINTS).find(endpoint.path.replace("{", "").replace("}", ""))
            assert route is not None
            assert endpoint is route.methods[endpoint.method]

    def test_its_operations_have_names_of_their_own(self) -> None:
        names = [each["operationId"] for path in document(ENDPOINTS)["paths"].values() for each in path.values()]
        assert len(names) == len(set(names))
