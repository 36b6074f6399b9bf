"""The V2 endpoints over REST: routes, answers and refusals."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.server_services import Services, running_services
from support.wire_callers import RestCaller

from hloserve.core.clock import SystemClock
from hloserve.server.rest_service import RestInferenceService

_ONE_ROW = {
    "id": "a",
    "inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 4], "data": [1, 2, 3, 4]}],
}


@pytest.fixture
def services(tmp_path: Path) -> Iterator[Services]:
    """One model that serves."""
    with running_services(tmp_path) as made:
        yield made


def _ask(
    services: Services,
    method: str,
    target: str,
    body: object = None,
    pages: "dict[str, Path] | None" = None,
) -> RestCaller:
    service = RestInferenceService(
        services.inference,
        services.catalog,
        services.control,
        services.operations,
        SystemClock(),
        pages or {},
    )
    caller = RestCaller(method, target, b"" if body is None else json.dumps(body).encode())
    service(caller.exchange)
    return caller


@pytest.mark.parametrize("version", ["", "/versions/1"])
def test_inference_is_answered_when_its_batch_has_run(services: Services, version: str) -> None:
    """With the id of the request, under no version and under "1"."""
    caller = _ask(services, "POST", f"/v2/models/scale{version}/infer", _ONE_ROW)
    assert caller.status == 0
    services.deliver()

    assert (caller.status, caller.json["id"]) == (200, "a")
    assert caller.json["outputs"][0]["data"] == [2, 4, 6, 8]


def test_caller_that_leaves_takes_its_request_with_it(services: Services) -> None:
    """Nothing stays in the queue."""
    services.engine.hold_device(services.model.device)
    caller = _ask(services, "POST", "/v2/models/scale/infer", _ONE_ROW)

    caller.exchange.disconnected()

    assert caller.status == 0
    assert (
        services.engine.scheduler.depth(services.model.device),
        services.inference.in_flight,
    ) == (0, 0)


@pytest.mark.parametrize(
    ("method", "target", "status"),
    [
        ("GET", "/v2", 200),
        ("GET", "/v2/health/live", 200),
        ("HEAD", "/v2/health/ready", 200),
        ("GET", "/v2/models/scale", 200),
        ("GET", "/v2/models/scale/ready", 200),
        ("GET", "/v2/models/never/ready", 404),
        ("GET", "/v2/models/scale/versions/2", 404),
        ("POST", "/v2/repository/index", 200),
        ("POST", "/v2/repository/any/index", 200),
        ("GET", "/v2/nothing", 404),
        ("GET", "/v2/models/scale/nothing", 404),
    ],
)
def test_endpoints(services: Services, method: str, target: str, status: int) -> None:
    """Every endpoint answers at once, in JSON."""
    caller = _ask(services, method, target)

    assert status == caller.status
    assert isinstance(caller.json, dict | list)


@pytest.mark.parametrize("model", ["scale", "later", "broken"])
@pytest.mark.parametrize(
    ("method", "endpoint"),
    [
        ("GET", ""),
        ("GET", "/ready"),
        ("GET", "/config"),
        ("GET", "/stats"),
        ("GET", "/trace/setting"),
        ("POST", "/trace/setting"),
        ("POST", "/infer"),
    ],
)
def test_version_that_cannot_exist_is_not_found_whatever_the_model_is_doing(
    services: Services, model: str, method: str, endpoint: str
) -> None:
    """Nobody is told to come again for a version that a model will not have once it is loaded."""
    services.registry.set_loading("later")
    services.registry.set_failed("broken", "no weights")
    body = _ONE_ROW if endpoint == "/infer" else {}

    caller = _ask(services, method, f"/v2/models/{model}/versions/7{endpoint}", body)

    assert caller.status == 404
    assert f"model '{model}' version '7' is not served here" in caller.json["error"]


def test_raw_body_for_a_version_that_cannot_exist_is_not_found(services: Services) -> None:
    """Though what it is read by are the inputs of the model."""
    services.registry.set_loading("later")
    headers = {b"inference-header-content-length": b"0"}
    caller = RestCaller("POST", "/v2/models/later/versions/7/infer", bytes(16), headers)

    RestInferenceService(
        services.inference,
        services.catalog,
        services.control,
        services.operations,
        SystemClock(),
        {},
    )(caller.exchange)

    assert (caller.status, "version '7'" in caller.json["error"]) == (404, True)


@pytest.mark.parametrize(
    ("path", "body", "text"),
    [
        ("logging", {"log_info": {}, "log_format": []}, "'log_info': Expected"),
        ("logging", {"log_info": {}, "log_format": []}, "'log_format': Expected"),
        ("logging", {"log_verbose_level": 1.5}, "log_verbose_level is 1.5, expected an integer"),
        ("trace/setting", {"trace_rate": 1000}, "'trace_rate': Expected"),
        ("models/scale/trace/setting", {"trace_level": ["OFF", 1]}, "'trace_level': Expected"),
        ("repository/models/scale/load", {"parameters": {"config": []}}, "'config': Expected"),
        ("repository/models/scale/unload", {"parameters": {"x": None}}, "'x': Expected"),
    ],
)
def test_setting_of_a_wrong_type_is_told_by_its_name(
    services: Services, path: str, body: object, text: str
) -> None:
    """And nothing is changed."""
    caller = _ask(services, "POST", f"/v2/{path}", body)

    assert caller.status == 400
    assert text in caller.json["error"]


def test_draining_server_is_live_and_not_ready(services: Services) -> None:
    """A balancer sends no more, and nobody restarts it."""
    services.catalog.is_draining = True

    assert [
        _ask(services, "GET", target).status
        for target in ("/v2/health/live", "/v2/health/ready", "/v2/models/scale/ready")
    ] == [200, 503, 503]


def test_server_whose_device_is_lost_is_not_live(services: Services) -> None:
    """Nor ready: whoever restarts it need not wait for its end."""
    services.catalog.is_live = False

    assert [
        _ask(services, "GET", target).status
        for target in ("/v2/health/live", "/v2/health/ready", "/v2/models/scale/ready")
    ] == [503, 503, 503]
    assert {"live": False} == _ask(services, "GET", "/v2/health/live").json


def test_wrong_method_is_told_the_right_one(services: Services) -> None:
    """405 names what the path takes."""
    caller = _ask(services, "GET", "/v2/models/scale/infer")

    assert (caller.status, caller.headers["Allow"]) == (405, "POST")


def test_index_of_those_that_serve(services: Services) -> None:
    """A body may ask for it; one that is not JSON is refused."""
    services.registry.set_failed("broken", "no weights")

    assert len(_ask(services, "POST", "/v2/repository/index").json) == 2
    ready = _ask(services, "POST", "/v2/repository/index", {"ready": True})
    assert ["scale"] == [entry["name"] for entry in ready.json]
    assert _ask(services, "POST", "/v2/repository/index", [1]).status == 400


def test_refused_request_is_answered_at_once(services: Services) -> None:
    """A tensor that does not fit is named."""
    wrong = {"inputs": [{"name": "z", "datatype": "FP32", "shape": [1, 4], "data": [0] * 4}]}

    caller = _ask(services, "POST", "/v2/models/scale/infer", wrong)

    assert caller.status == 400
    assert "'x'" in caller.json["error"]


def test_page_is_served_under_its_path(services: Services, tmp_path: Path) -> None:
    """With and without a slash at the end."""
    page = tmp_path / "page.html"
    page.write_text("<p>hello")

    for target in ("/demo", "/demo/"):
        caller = _ask(services, "GET", target, pages={"/demo": page})
        assert (caller.status, caller.body) == (200, b"<p>hello")
        assert caller.headers["Content-Type"].startswith("text/html")
