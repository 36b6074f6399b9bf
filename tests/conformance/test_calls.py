"""Configuration, statistics and settings through every client: one golden case each."""

import asyncio
import gzip
import io
import json
import logging
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import httpx
import numpy as np
import pytest
import tritonclient.grpc.aio as triton_grpc_aio
import tritonclient.http.aio as triton_http_aio
from support.conformance_worker import Asker
from support.server_worker import (
    RunningWorker,
    fake_program,
    rows,
    running_worker,
    write_scale,
)
from tritonclient import grpc as triton_grpc
from tritonclient import http as triton_http
from tritonclient.grpc import service_pb2
from tritonclient.utils import InferenceServerException

from hloserve import Client
from hloserve.bundle import IOSpec, write_bundle
from hloserve.core.logging import EventHandler, LogSettings, log_event
from hloserve.wire.protos import inference_pb2

CONFIG = {
    "name": "scale",
    "platform": "fake",
    "backend": "xla",
    "max_batch_size": 8,
    "input": [{"name": "x", "data_type": "TYPE_FP32", "dims": [4]}],
    "output": [{"name": "y", "data_type": "TYPE_FP32", "dims": [4], "label_filename": ""}],
    "instance_group": [{"name": "scale_0", "kind": "KIND_CPU", "count": 1, "gpus": []}],
    "dynamic_batching": {
        "preferred_batch_size": [1, 4, 8],
        "max_queue_delay_microseconds": 0,
        "preserve_ordering": False,
    },
    "model_transaction_policy": {"decoupled": False},
}
LOG = {
    "log_file": "",
    "log_info": True,
    "log_warning": True,
    "log_error": True,
    "log_verbose_level": 0,
    "log_format": "json",
}


@pytest.fixture
def log_text() -> Iterator[io.StringIO]:
    """A log as `serve` sets it up, which the worker of a test finds."""
    stream, root, ours = io.StringIO(), logging.getLogger(), logging.getLogger("hloserve")
    level = ours.level
    handler = EventHandler(LogSettings("json"), stream)
    root.addHandler(handler)
    yield stream
    root.removeHandler(handler)
    ours.setLevel(level)


@pytest.fixture
def worker(tmp_path: Path, log_text: io.StringIO) -> Iterator[RunningWorker]:
    """A worker that serves "scale", whose counters nobody else moves."""
    write_scale(tmp_path)
    with running_worker(tmp_path) as running:
        yield running


@pytest.fixture
def grpc_address(worker: RunningWorker) -> str:
    """Its gRPC address."""
    return "{}:{}".format(*worker.addresses.grpc)


@pytest.fixture
def http_address(worker: RunningWorker) -> str:
    """Its REST address."""
    return "{}:{}".format(*worker.addresses.http)


@pytest.fixture
def over_grpc(grpc_address: str) -> Iterator[Any]:
    """Tritonclient over gRPC."""
    with triton_grpc.InferenceServerClient(grpc_address) as client:
        yield client


@pytest.fixture
def over_http(http_address: str) -> Iterator[Any]:
    """Tritonclient over HTTP."""
    with triton_http.InferenceServerClient(http_address) as client:
        yield client


@pytest.fixture
def client(grpc_address: str) -> Iterator[Client]:
    """Our own."""
    with Client(grpc_address) as client:
        yield client


def test_configuration_over_http(over_http: Any, http_address: str) -> None:
    """By tritonclient and as it is, with and without a version."""
    assert over_http.get_model_config("scale") == CONFIG
    assert over_http.get_model_config("scale", "1") == CONFIG
    assert httpx.get(f"http://{http_address}/v2/models/scale/config").json() == CONFIG


def test_configuration_over_grpc(over_grpc: Any, client: Client) -> None:
    """Triton's message has the same, and so has our client."""
    config = over_grpc.get_model_config("scale").config

    assert (config.name, config.platform, config.backend) == ("scale", "fake", "xla")
    assert config.max_batch_size == 8
    assert [(t.name, t.data_type, list(t.dims)) for t in config.input] == [("x", 11, [4])]
    assert [(t.name, t.data_type, list(t.dims)) for t in config.output] == [("y", 11, [4])]
    assert list(config.dynamic_batching.preferred_batch_size) == [1, 4, 8]
    assert [(g.kind, g.count, list(g.gpus)) for g in config.instance_group] == [(2, 1, [])]
    assert not config.model_transaction_policy.decoupled
    ours = client.model_config("scale")
    assert (ours.max_batch_size, ours.preferred_batch_sizes) == (8, (1, 4, 8))
    assert [(t.name, t.datatype, t.dims) for t in ours.inputs] == [("x", "FP32", (4,))]
    assert (ours.instance_kind, ours.device_ordinals) == ("KIND_CPU", ())


def test_configuration_of_models_that_do_not_coalesce(asker: Asker) -> None:
    """Without a batch axis there is no maximum, and the shape is whole."""
    config = asker.send("GET", "/v2/models/scalar/config").json

    assert (config["max_batch_size"], config["input"][0]["dims"]) == (0, [])
    assert "dynamic_batching" not in config


def test_configuration_names_the_files_of_labels(asker: Asker) -> None:
    """As they are in the bundle, over both transports and in our client."""
    config = asker.send("GET", "/v2/models/labelled/config").json
    message = asker.stub.ModelConfig(service_pb2.ModelConfigRequest(name="labelled"), timeout=20)
    with Client(asker.grpc_address) as client:
        ours = client.model_config("labelled")

    assert "labels.txt" == config["output"][0]["label_filename"]
    assert "labels.txt" == message.config.output[0].label_filename
    assert "labels.txt" == ours.outputs[0].label_filename
    assert "" == ours.inputs[0].label_filename


@pytest.mark.parametrize("token", ["f32", "bf16", "i64", "bool", "u8"])
def test_configuration_has_tritons_names_of_datatypes(asker: Asker, token: str) -> None:
    """``TYPE_`` and V2's name, in JSON and as Triton's number."""
    datatype = asker.send("GET", f"/v2/models/{token}").json["inputs"][0]["datatype"]
    config = asker.send("GET", f"/v2/models/{token}/config").json

    message = asker.stub.ModelConfig(service_pb2.ModelConfigRequest(name=token), timeout=20)
    assert config["input"][0]["data_type"] == f"TYPE_{datatype}"
    number = inference_pb2.DataType.Value(f"TYPE_{datatype}")
    assert message.config.input[0].data_type == number


def _infer(client: Client, *requests: int) -> None:
    for count in requests:
        client.infer("scale", {"x": rows(*range(count))})


def test_statistics_are_what_load_generators_expect(
    over_grpc: Any, over_http: Any, client: Client
) -> None:
    """Differences of two looks add up, and the version is a number: perf_analyzer reads it so."""
    _infer(client, 1)
    before = over_grpc.get_inference_statistics("scale").model_stats[0]
    _infer(client, 1, 3, 4, 8)
    after = over_grpc.get_inference_statistics("scale").model_stats[0]

    moved = {}
    for name in ("success", "queue", "compute_input", "compute_infer", "compute_output"):
        new, old = (getattr(stats.inference_stats, name) for stats in (after, before))
        moved[name] = new.count - old.count, new.ns - old.ns
    assert (after.name, int(after.version)) == ("scale", 1)
    assert {count for count, _ in moved.values()} == {4}
    assert all(ns > 0 for _, ns in moved.values())
    assert sum(ns for name, (_, ns) in moved.items() if name != "success") <= moved["success"][1]
    assert after.inference_count - before.inference_count == 16
    assert after.execution_count - before.execution_count == 4
    assert [(b.batch_size, b.compute_infer.count) for b in after.batch_stats] == [
        (1, 2), (4, 2), (8, 1)
    ]  # fmt: skip
    assert after.last_inference >= before.last_inference > 1.7e12
    same = over_http.get_inference_statistics("scale", "1")["model_stats"][0]
    assert same["inference_stats"]["success"] == {
        "count": after.inference_stats.success.count, "ns": after.inference_stats.success.ns
    }  # fmt: skip


def test_failures_are_counted_apart(over_http: Any, client: Client) -> None:
    """With their time; a model that does not exist counts for none."""
    _infer(client, 2)
    for name, value in (("scale", np.zeros((1, 5), np.float32)), ("nope", rows(1))):
        with pytest.raises(Exception, match=r"scale|nope|x"):
            client.infer(name, {"x": value})

    (stats,) = over_http.get_inference_statistics()["model_stats"]
    assert (stats["inference_stats"]["success"]["count"], stats["inference_count"]) == (1, 2)
    assert stats["inference_stats"]["fail"]["count"] == 1
    assert stats["inference_stats"]["fail"]["ns"] > 0
    assert stats["memory_usage"][0]["type"] == "CPU"


def test_statistics_of_all_models_by_every_way(client: Client, http_address: str) -> None:
    """Our client and plain HTTP tell the same; a model that never ran has zeros."""
    (report,) = client.model_statistics()

    (stats,) = httpx.get(f"http://{http_address}/v2/models/stats").json()["model_stats"]
    assert (report.name, report.version, report.last_inference_ms) == ("scale", "1", 0)
    assert (report.success.count, report.queue.ns, report.batches) == (0, 0, ())
    assert (stats["last_inference"], stats["batch_stats"]) == (0, [])
    assert report.memory[0].nbytes == stats["memory_usage"][0]["byte_size"] > 0


def test_model_named_stats_can_be_asked_about(tmp_path: Path) -> None:
    """Its metadata is at the path that otherwise has everybody's statistics."""
    write_scale(tmp_path, "stats")
    with running_worker(tmp_path) as worker:
        url = "http://{}:{}/v2/models/stats".format(*worker.addresses.http)
        assert httpx.get(url).json()["name"] == "stats"
        assert httpx.get(f"{url}/stats").json()["model_stats"][0]["name"] == "stats"


def test_log_settings_act_over_http(over_http: Any, log_text: io.StringIO) -> None:
    """What is set is read, and shows in the log; null puts it back."""
    log = logging.getLogger("hloserve.tests.calls")
    assert over_http.get_log_settings() == LOG
    assert over_http.update_log_settings({"log_verbose_level": 1})["log_verbose_level"] == 1
    log_event(log, "a_detail", level=logging.DEBUG)
    assert over_http.update_log_settings({"log_verbose_level": None, "log_info": False}) == {
        **LOG, "log_info": False
    }  # fmt: skip
    log_event(log, "normal_event")
    assert over_http.update_log_settings({"log_format": "text", "log_info": True})
    log_event(log, "in_text")

    lines = log_text.getvalue().splitlines()
    assert any(line.startswith("{") and "a_detail" in line for line in lines)
    assert not any("normal_event" in line for line in lines)
    assert any(not line.startswith("{") and "in_text" in line for line in lines)


def test_log_settings_over_grpc(over_grpc: Any, client: Client) -> None:
    """Triton's values have their kinds; ours are plain."""
    settings = over_grpc.update_log_settings(
        {"log_verbose_level": 3, "log_warning": False}
    ).settings

    assert (settings["log_verbose_level"].uint32_param, settings["log_warning"].bool_param) == (
        3, False
    )  # fmt: skip
    assert client.log_settings() == {**LOG, "log_verbose_level": 3, "log_warning": False}
    assert client.update_log_settings(dict.fromkeys(LOG)) == LOG


@pytest.mark.parametrize(
    ("settings", "status", "code", "text"),
    [
        ({"log_info": "yes"}, 400, "INVALID_ARGUMENT", "log_info is 'yes', expected true or false"),
        ({"log_colour": True}, 400, "INVALID_ARGUMENT", "'log_colour' is no log setting"),
        ({"log_file": "/tmp/log"}, 501, "UNIMPLEMENTED", "changing log_file"),
        ({"log_format": "ISO8601"}, 400, "INVALID_ARGUMENT", "expected 'text', 'json'"),
    ],
)
def test_log_settings_that_cannot_act_are_refused(
    over_grpc: Any, http_address: str, settings: dict[str, Any], status: int, code: str, text: str
) -> None:
    """With the name, over both transports, and nothing is changed."""
    answer = httpx.post(f"http://{http_address}/v2/logging", json=settings)
    request = service_pb2.LogSettingsRequest()
    for name, value in settings.items():
        field = "bool_param" if isinstance(value, bool) else "string_param"
        setattr(request.settings[name], field, value)
    with pytest.raises(grpc.RpcError) as caught:
        over_grpc._client_stub.LogSettings(request, timeout=20)

    assert (answer.status_code, text in answer.json()["error"]) == (status, True)
    assert caught.value.code() is getattr(grpc.StatusCode, code)
    assert text in caught.value.details()
    assert httpx.get(f"http://{http_address}/v2/logging").json() == LOG


@pytest.mark.parametrize("model", [None, "scale"])
def test_trace_settings_by_every_way(
    over_grpc: Any, over_http: Any, client: Client, model: str | None
) -> None:
    """Nothing is traced, switching it off is accepted, and switching it on is refused."""
    assert over_http.get_trace_settings(model)["trace_level"] == ["OFF"]
    assert over_http.update_trace_settings(model, {"trace_level": ["OFF"], "trace_rate": None})
    settings = over_grpc.update_trace_settings(model, {"trace_level": "OFF"}).settings
    assert list(settings["trace_level"].value) == ["OFF"]
    assert client.trace_settings(model or "")["trace_count"] == ("-1",)
    for by in (over_grpc, over_http):
        with pytest.raises(InferenceServerException, match="tracing of requests"):
            by.update_trace_settings(model, {"trace_level": ["TIMESTAMPS"]})


@pytest.mark.parametrize(
    "path",
    [
        "repository/index",
        "repository/models/f32/load",
        "repository/models/f32/unload",
        "logging",
        "trace/setting",
        "models/f32/trace/setting",
        "systemsharedmemory/region/r/register",
    ],
)
@pytest.mark.parametrize(
    "body",
    [
        b"[" * 100_000,
        b'{"x":' * 100_000,
        b'{"x":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b"\xff\xfe",
        b'{"parameters": 1, "ready": 1, "key": 1, "log_info": [], "trace_level": {}}',
        b"null",
        b"1e999",
        b'"' + b"x" * 100_000,
    ],
    ids=["arrays", "objects", "closed", "bytes", "types", "null", "number", "string"],
)
def test_hostile_body_of_a_call_is_the_callers_fault(asker: Asker, path: str, body: bytes) -> None:
    """It is refused with a reason, and the server goes on."""
    answer = asker.send("POST", f"/v2/{path}", body)

    assert answer.status == 400
    assert answer.json["error"]


@pytest.mark.parametrize("path", ["repository/index", "logging", "trace/setting"])
def test_call_is_read_up_to_a_megabyte_however_it_is_packed(asker: Asker, path: str) -> None:
    """A bomb of another kind of request is not unpacked, and other codings are not read."""
    bomb = gzip.compress(b" " * 2**24)

    packed = asker.send("POST", f"/v2/{path}", bomb, {"Content-Encoding": "gzip"})
    plain = asker.send("POST", f"/v2/{path}", b" " * (2**20 + 1))
    other = asker.send("POST", f"/v2/{path}", b"{}", {"Content-Encoding": "br"})

    assert (packed.status, plain.status, other.status) == (413, 413, 415)
    assert all(answer.json["error"] for answer in (packed, plain, other))


def test_unknown_models_and_versions_are_not_found(over_grpc: Any, http_address: str) -> None:
    """For configuration, statistics and trace settings."""
    for path in ("nope/config", "nope/stats", "nope/trace/setting", "scale/versions/9/config",
                 "scale/versions/9/stats"):  # fmt: skip
        answer = httpx.get(f"http://{http_address}/v2/models/{path}")
        assert (answer.status_code, list(answer.json())) == (404, ["error"]), path
    for ask in (over_grpc.get_model_config, over_grpc.get_inference_statistics):
        for name, version in (("nope", ""), ("scale", "9")):
            with pytest.raises(InferenceServerException) as caught:
                ask(name, version)
            assert caught.value.status() == "StatusCode.NOT_FOUND"


def test_asyncio_clients_get_the_same(grpc_address: str, http_address: str) -> None:
    """Tritonclient's two asyncio clients."""

    async def run() -> tuple[Any, ...]:
        over_grpc = triton_grpc_aio.InferenceServerClient(grpc_address)
        over_http = triton_http_aio.InferenceServerClient(http_address)
        try:
            return (
                await over_http.get_model_config("scale"),
                (await over_grpc.get_model_config("scale")).config.max_batch_size,
                await over_http.get_inference_statistics("scale"),
                (await over_grpc.get_inference_statistics("scale")).model_stats[0].name,
                await over_http.get_log_settings(),
                (await over_grpc.get_trace_settings()).settings["trace_level"].value[:],
            )
        finally:
            await over_grpc.close()
            await over_http.close()

    config, largest, stats, name, log, level = asyncio.run(run())

    assert (config, largest, name) == (CONFIG, 8, "scale")
    assert stats["model_stats"][0]["version"] == "1"
    assert (log, level) == (LOG, ["OFF"])


def test_methods_and_extensions_are_those_of_the_definition(
    over_http: Any, grpc_address: str
) -> None:
    """Every method of the service answers with a status that has a text, or with success."""
    service = inference_pb2.DESCRIPTOR.services_by_name["GRPCInferenceService"]
    with grpc.insecure_channel(grpc_address) as channel:
        for method in service.methods:
            path = f"/{service.full_name}/{method.name}"
            outcome = channel.unary_unary(path).future(b"", timeout=20)
            assert outcome.code() is not grpc.StatusCode.UNKNOWN
            assert outcome.code() is grpc.StatusCode.OK or outcome.details(), method.name
    extensions = over_http.get_server_metadata()["extensions"]
    assert {"model_configuration", "statistics", "trace", "logging"} <= set(extensions)


@pytest.mark.parametrize("coding", ["gzip", "deflate"])
def test_bodies_are_compressed_both_ways(over_http: Any, coding: str) -> None:
    """By tritonclient, with binary tensors and with JSON."""
    values = np.tile(np.arange(4, dtype=np.float32), (3000, 1))
    for is_binary in (False, True):
        given = triton_http.InferInput("x", list(values.shape), "FP32")
        given.set_data_from_numpy(values, binary_data=is_binary)
        wanted = triton_http.InferRequestedOutput("y", binary_data=is_binary)
        result = over_http.infer(
            "scale", [given], outputs=[wanted],
            request_compression_algorithm=coding, response_compression_algorithm=coding,
        )  # fmt: skip
        np.testing.assert_array_equal(2 * values, result.as_numpy("y"))


@pytest.mark.parametrize(
    ("accepted", "coding", "unpack"),
    [
        ("gzip", "gzip", gzip.decompress),
        ("deflate", "deflate", zlib.decompress),
        ("br, gzip;q=0.2", "gzip", gzip.decompress),
        ("br", None, bytes),
        ("gzip;q=0", None, bytes),
    ],
)
def test_large_answer_has_the_coding_that_is_accepted(
    asker: Asker, accepted: str, coding: str | None, unpack: Any
) -> None:
    """And says that it depends on it; small answers are left alone."""
    large = asker.send("GET", "/v2/openapi.json", headers={"Accept-Encoding": accepted})
    small = asker.send("GET", "/v2", headers={"Accept-Encoding": accepted})

    assert large.headers.get("content-encoding") == coding
    assert (large.headers.get("vary") == "Accept-Encoding") is (coding is not None)
    assert json.loads(unpack(large.body))["openapi"] == "3.1.0"
    assert "content-encoding" not in small.headers


def test_large_json_is_read_and_written_apart(tmp_path: Path) -> None:
    """Long requests and answers, and short ones on the same connection, each with its own."""
    wide = 30_000
    write_bundle(
        tmp_path / "wide", "wide",
        [IOSpec("x", "f64", (1, wide), batch_axis=0)],
        [IOSpec("y", "f64", (1, wide), batch_axis=0)],
        {1: fake_program("identity", [f"1x{wide}xf64"], [f"1x{wide}xf64"])}, {},
    )  # fmt: skip
    values = np.random.default_rng(5).standard_normal((1, wide))
    given = {"name": "x", "datatype": "FP64", "shape": [1, wide], "data": values.tolist()}
    bad = {**given, "data": [[*values[0, 1:].tolist(), "a"]]}

    with (
        running_worker(tmp_path) as worker,
        httpx.Client(base_url="http://{}:{}".format(*worker.addresses.http)) as client,
    ):
        answers = [
            client.post("/v2/models/wide/infer", json={"id": "a", "inputs": [given]}),
            client.get("/v2/models/wide"),
            client.post("/v2/models/wide/infer", json={"id": "b", "inputs": [bad]}),
            client.post("/v2/models/nope/infer", json={"id": "c", "inputs": [given]}),
        ]

    assert [200, 200, 400, 404] == [answer.status_code for answer in answers]
    assert answers[0].json()["id"] == "a"
    np.testing.assert_array_equal(values[0], answers[0].json()["outputs"][0]["data"])
    assert "value 29999 is the string 'a'" in answers[2].json()["error"]
