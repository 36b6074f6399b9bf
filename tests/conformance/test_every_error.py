"""One golden case for each kind of error: its status over gRPC and REST, and its text."""

import gc
import logging
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import grpc
import numpy as np
import pytest
from support.conformance_worker import Asker, rpc_tensor, tensor
from support.server_worker import running_worker, write_scale

from hloserve.core import errors
from hloserve.core.errors import HloserveError
from hloserve.core.requests import InferRequest
from hloserve.core.tensors import Array
from hloserve.engine.fake_backend import FakeBackend

HIDDEN = "internal error, request id "
LARGE_ROWS = 5000


class Case(NamedTuple):
    """A request of rows of one value for a model, and how it ends."""

    model: str
    value: int
    status: int
    code: str
    text: str
    rows: int = 1


CASES: Mapping[type[HloserveError], Case] = {
    errors.ModelNotFound: Case("nobody", 1, 404, "NOT_FOUND", "'nobody'"),
    errors.ModelNotReady: Case("broken", 1, 503, "UNAVAILABLE", "weights.safetensors"),
    errors.InvalidInput: Case("hooked", 1, 400, "INVALID_ARGUMENT", "ones are not taken"),
    errors.HookFailed: Case("hooked", 2, 500, "INTERNAL", HIDDEN),
    errors.BackendFailed: Case("scale", 13, 500, "INTERNAL", HIDDEN),
    errors.BodyTooLarge: Case("scale", 1, 413, "RESOURCE_EXHAUSTED", "_bytes", LARGE_ROWS),
    errors.TensorMismatch: Case("other", 1, 400, "INVALID_ARGUMENT", "input 'x': extent of axis 1"),
}

_CLIENTS, _BUSY = "conformance/test_every_client.py::", "conformance/test_overload.py::"
_BY_CLIENT = f"{_CLIENTS}test_every_error_has_its_status_and_names_its_cause"
_SHARED = "conformance/test_shared_memory.py::"
_CONTROL = "unit/server/test_repository_control.py::"
_SECURITY = "integration/test_security.py::"

ELSEWHERE: Mapping[type[HloserveError], str] = {
    errors.UnknownTensor: _BY_CLIENT,
    errors.DuplicateTensor: _BY_CLIENT,
    errors.MissingTensor: _BY_CLIENT,
    errors.TensorProblems: "unit/server/test_tensor_check.py::",
    errors.MalformedBody: "conformance/test_hostile_requests.py::"
    "test_wrong_json_is_a_client_error_that_names_the_place",
    errors.UnsupportedMedia: "conformance/test_hostile_requests.py::"
    "test_content_codings_are_read_or_named",
    errors.Unauthenticated: f"{_SECURITY}test_calls_without_a_good_token_are_unauthenticated",
    errors.PermissionDenied: f"{_SECURITY}test_changes_of_the_server_need_an_admin",
    errors.BundleNotFound: f"{_CONTROL}test_unknown_model_is_not_found",
    errors.NotImplementedYet: f"{_SHARED}test_cuda_shared_memory_is_unimplemented",
    errors.NotPossibleNow: f"{_CONTROL}test_other_modes_refuse",
    errors.RegionNotRegistered: f"{_SHARED}test_places_that_are_none_are_refused",
    errors.RegionCutShort: f"{_SHARED}test_object_that_was_cut_fails_its_requests_and_nobody_else",
    errors.Overloaded: f"{_SHARED}test_more_than_may_be_copied_is_refused_until_later",
    errors.QueueFull: f"{_BUSY}test_full_queue_is_told",
    errors.TooManyInFlight: f"{_BUSY}test_only_inference_is_capped",
    errors.DeadlineExceeded: f"{_BUSY}test_budgets_end_a_request_while_the_device_is_busy",
    errors.SubCallFailed: "integration/test_meta_models.py::"
    "test_what_is_wrong_is_told_to_who_can_mend_it",
    errors.ShuttingDown: "integration/test_worker.py::"
    "test_drain_answers_what_is_in_flight_and_refuses_what_comes",
    errors.DeviceMemoryFull: "unit/engine/test_dispatcher.py::",
    errors.DeviceLost: "unit/engine/test_recovery.py::",
    errors.WeightsNotResident: "integration/test_residency_changes.py::"
    "test_others_than_the_pinned_models_wait_for_a_controller",
    errors.WeightsUnreadable: "unit/engine/test_dispatcher_residency.py::",
}
"""Where the others have theirs, as they need a server of their own."""

NEVER_ANSWERS = (
    errors.BadRequest,
    errors.Unavailable,
    errors.Cancelled,
    errors.BundleProblem,
    errors.ExportProblem,
    errors.ConfigProblem,
    errors.MissingExtra,
    errors.UntestedVersion,
)
"""Those that only others are made of, that nobody waits for, and those of commands and start-up."""

HOOKS = """
from hloserve import InvalidInput, register_model


def preprocess(inputs):
    if inputs["x"][0, 0] == 1:
        raise InvalidInput("ones are not taken")
    raise RuntimeError("secret")


def postprocess(outputs):
    return outputs


register_model(preprocess=preprocess, postprocess=postprocess)
"""


def _fails(arguments: Sequence[Array]) -> bool:
    return bool(arguments[0][0, 0] == 13)


@pytest.fixture(name="asker", scope="module")
def start_worker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Asker]:
    """A worker on which each of the requests fails in its own way."""
    repository = tmp_path_factory.mktemp("repository")
    write_scale(repository)
    write_scale(repository, "other")
    (write_scale(repository, "broken") / "weights.safetensors").write_bytes(b"nonsense")
    write_scale(repository, "hooked", files={"model.py": HOOKS})
    settings = {"http.max_body_bytes": 2**16, "grpc.max_recv_msg_bytes": 2**16}
    with running_worker(repository, FakeBackend(fail_when=_fails), settings) as worker:
        asker = Asker(worker)
        asker.connect()
        asker.infer("hooked", tensor("FP32", [1, 4], [1] * 4))  # starts threads, which stay
        yield asker
        asker.close()


def _kinds(kind: type[HloserveError]) -> Iterator[type[HloserveError]]:
    for each in kind.__subclasses__():
        if each.__module__.startswith("hloserve.core."):
            yield each
            yield from _kinds(each)


def test_every_kind_has_its_golden_case() -> None:
    """Here or in the test that is named, which exists."""
    bundle_problems = set(_kinds(errors.BundleProblem)) | set(_kinds(errors.ExportProblem))
    cases = [set(CASES), set(ELSEWHERE), {*NEVER_ANSWERS, *bundle_problems}]

    assert set(_kinds(HloserveError)) == set().union(*cases)
    assert sum(map(len, cases)) == len(set().union(*cases))
    for place in ELSEWHERE.values():
        file, _, test = place.partition("::")
        assert f"def {test}" in (Path(__file__).parents[1] / file).read_text()


@pytest.mark.parametrize("kind", CASES, ids=lambda kind: kind.__name__)
def test_error_has_its_status_over_both_transports(asker: Asker, kind: type[HloserveError]) -> None:
    """And the same words; what is not the caller's to know is hidden, and the next is served."""
    case = CASES[kind]
    shape = [case.rows, 3 if case.model == "other" else 4]
    values = np.full(shape, case.value, np.float32)

    rest = asker.infer(case.model, tensor("FP32", shape, values.reshape(-1).tolist()))
    code, text = asker.rpc(rpc_tensor(case.model, "FP32", shape, values.tobytes()))
    after = asker.rpc(rpc_tensor("scale", "FP32", [1, 4], bytes(16)))

    assert (case.status, ["error"]) == (rest.status, list(rest.json))
    assert getattr(grpc.StatusCode, case.code) is code
    for told in (rest.json["error"], text):
        assert case.text in told
        assert "secret" not in told
        assert "Traceback" not in told
    assert (case.status in (429, 503)) is ("retry-after" in rest.headers)
    assert after[0] is grpc.StatusCode.OK


def test_failed_requests_are_let_go_at_once(asker: Asker, caplog: pytest.LogCaptureFixture) -> None:
    """Their tensors do not wait for the collector, which may be thousands of requests away."""
    asker.rpc(rpc_tensor("scale", "FP32", [1, 4], bytes(16)))
    caplog.set_level(logging.CRITICAL, "hloserve")  # what pytest captures keeps tracebacks
    gc.collect()
    gc.disable()
    try:
        for model, datatype, shape, value in (
            ("scale", "INT32", [1, 4], 1),
            ("scale", "FP32", [2, 2], 1),
            ("scale", "FP32", [4], 1),
            ("nobody", "FP32", [1, 4], 1),
            ("broken", "FP32", [1, 4], 1),
            ("hooked", "FP32", [1, 4], 1),
            ("hooked", "FP32", [1, 4], 2),
        ):
            for _ in range(3):
                data = np.full(4, value, np.float32)
                assert asker.rpc(rpc_tensor(model, datatype, shape, data.tobytes()))[0].value[0]
                assert asker.infer(model, tensor(datatype, shape, [value] * 4)).status >= 400
        left = sum(type(each) is InferRequest for each in gc.get_objects())
    finally:
        gc.enable()

    assert left <= 2, "more than the last of each transport"
