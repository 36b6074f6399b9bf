"""The OpenAPI document against the server: what it allows is sent, what is answered is compared."""

import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from jsonschema_rs import Draft202012Validator
from schemathesis import GenerationMode
from schemathesis.checks import load_all_checks
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)
from support.conformance_worker import Asker

from hloserve.server.openapi import build_openapi
from hloserve.server.openapi_schemas import SCHEMAS

ROOT = Path(__file__).resolve().parents[2]
DOCUMENT = build_openapi()
OPERATIONS = [
    (path, verb)
    for path, item in DOCUMENT["paths"].items()
    for verb in item
    if verb != "parameters"
]
SCHEMA = schemathesis.openapi.from_dict(DOCUMENT)
SCHEMA.config.generation.update(modes=[GenerationMode.POSITIVE])
load_all_checks()
CHECKS = (status_code_conformance, content_type_conformance, response_schema_conformance)


def test_served_document_is_the_committed_one(asker: Asker) -> None:
    """`docs/openapi.json` is what the server serves."""
    answer = asker.send("GET", "/v2/openapi.json")

    assert answer.status == 200
    assert answer.headers["content-type"] == "application/json"
    assert json.loads((ROOT / "docs" / "openapi.json").read_text()) == answer.json


def test_references_of_the_document_lead_somewhere() -> None:
    """And every schema is used."""
    text = json.dumps(DOCUMENT)
    names = set(re.findall(r'"#/components/schemas/(\w+)"', text))

    assert names == set(SCHEMAS)
    for name in re.findall(r'"#/components/responses/(\w+)"', text):
        assert name in DOCUMENT["components"]["responses"]


def test_operations_have_names_of_their_own() -> None:
    """Generated clients call them by these."""
    names = [DOCUMENT["paths"][path][verb]["operationId"] for path, verb in OPERATIONS]

    assert len(names) == len(set(names))


@pytest.mark.parametrize("path", DOCUMENT["paths"])
def test_each_path_takes_the_methods_of_the_document_and_no_others(asker: Asker, path: str) -> None:
    """Another method is answered 405, with those that there are."""
    expected = {verb.upper() for verb in DOCUMENT["paths"][path] if verb != "parameters"}
    expected |= {"HEAD"} if "GET" in expected else set()
    target = path.replace("{model}", "f32").replace("{version}", "1").replace("{region}", "r")

    answer = asker.send("PATCH", target)

    assert answer.status == 405
    assert expected == set(answer.headers["allow"].split(", "))
    assert "PATCH is not for this path" in answer.json["error"]


@pytest.mark.parametrize(
    ("path", "verb", "model"),
    [
        (path, verb, model)
        for path, verb in OPERATIONS
        for model in (("any", "f32") if "{model}" in path else ("",))
    ],
)
def test_answers_are_what_the_document_says(asker: Asker, path: str, verb: str, model: str) -> None:
    """Status, content type and body of the answers to generated requests."""

    def check(case: Any) -> None:
        if model == "f32":
            case.path_parameters["model"] = model
        response = case.call(base_url=asker.url)
        assert response.status_code != 500, response.text
        for each in CHECKS:
            case.validate_response(response, checks=[each])

    operation = SCHEMA[path][verb]
    few = settings(
        max_examples=8,
        deadline=None,
        database=None,
        derandomize=True,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    few(given(case=operation.as_strategy())(check))()


def test_good_request_is_allowed_and_its_answer_is(asker: Asker) -> None:
    """The example of the protocol's core passes both schemas, compressed or not."""
    components = {"components": DOCUMENT["components"]}
    request = {
        "id": "1",
        "inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 3], "data": [1, 2, 3]}],
    }
    for name, value in (
        ("InferRequest", request),
        ("InferResponse", asker.infer("f32", request).json),
        ("Statistics", asker.send("GET", "/v2/models/stats").json),
        ("ModelConfig", asker.send("GET", "/v2/models/f32/config").json),
    ):
        schema = {"$ref": f"#/components/schemas/{name}", **components}
        Draft202012Validator(schema).validate(value)


class _Links(HTMLParser):
    """Collects what a page loads, and its elements by id."""

    def __init__(self) -> None:
        super().__init__()
        self.loaded: list[str] = []
        self.ids: list[str] = []
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note what is loaded by itself."""
        values = dict(attrs)
        if tag in ("script", "link", "img", "iframe", "source", "object"):
            self.loaded += [v for k in ("src", "href", "data") if (v := values.get(k)) is not None]
        if (name := values.get("id")) is not None:
            self.ids.append(name)
        if tag not in ("meta", "link", "input"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        """Elements close in order."""
        assert self.open.pop() == tag


@pytest.mark.parametrize("path", ["/docs", "/docs/"])
def test_page_needs_no_network(asker: Asker, path: str) -> None:
    """It is well-formed HTML that loads nothing but the document of the same server."""
    answer = asker.send("GET", path)
    page = _Links()
    text = answer.body.decode()
    page.feed(text)

    assert (answer.status, answer.headers["content-type"]) == (200, "text/html; charset=utf-8")
    assert page.loaded == ["data:,"]
    assert not page.open
    assert not re.findall(r"https?://|@import|url\(", text)
    assert set(re.findall(r'fetch\("([^"]+)"', text)) == {
        "/v2/openapi.json",
        "/v2/repository/index",
    }
    assert set(re.findall(r'byId\("(\w+)"\)', text)) <= set(page.ids)
    assert "prefers-color-scheme: dark" in text
