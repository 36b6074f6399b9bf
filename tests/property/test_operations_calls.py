"""Bytes that nobody meant for the calls besides inference."""

from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.server_services import Services, running_services

from hloserve.core.dtypes import DTYPES
from hloserve.core.errors import BadRequest, ModelNotFound, NotImplementedYet, NotPossibleNow
from hloserve.core.model_reports import (
    BatchReport,
    Duration,
    MemoryReport,
    ModelConfig,
    ModelReport,
    TensorConfig,
)
from hloserve.server.operations_grpc import operations_answers
from hloserve.wire import control_protobuf as control_codec
from hloserve.wire import v2_protobuf_reports as codec
from hloserve.wire.grpc_health import decode_check_request
from hloserve.wire.grpc_reflection import answer_reflection

_FEW = settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
_COUNTS = st.integers(0, 2**63 - 1)
_NAMES = st.text(max_size=20)
_DURATIONS = st.builds(Duration, _COUNTS, _COUNTS)
_DATATYPES = st.sampled_from([dtype.kserve for dtype in DTYPES if dtype.kserve is not None])
_DIMS = st.lists(st.integers(-1, 2**62)).map(tuple)
_INPUTS = st.lists(st.builds(TensorConfig, _NAMES, _DATATYPES, _DIMS), max_size=3).map(tuple)
_OUTPUTS = st.lists(st.builds(TensorConfig, _NAMES, _DATATYPES, _DIMS, _NAMES), max_size=3).map(
    tuple
)
_CONFIGS = st.builds(
    ModelConfig,
    name=_NAMES,
    platform=_NAMES,
    backend=_NAMES,
    max_batch_size=st.integers(0, 2**31 - 1),
    inputs=_INPUTS,
    outputs=_OUTPUTS,
    preferred_batch_sizes=st.lists(st.integers(1, 2**31 - 1), max_size=4).map(tuple),
    instance_kind=st.sampled_from(["KIND_CPU", "KIND_GPU"]),
    device_ordinals=st.lists(st.integers(0, 1023), max_size=2).map(tuple),
)
_REPORTS = st.builds(
    ModelReport,
    name=_NAMES,
    version=_NAMES,
    last_inference_ms=_COUNTS,
    inference_count=_COUNTS,
    execution_count=_COUNTS,
    success=_DURATIONS,
    fail=_DURATIONS,
    queue=_DURATIONS,
    compute_input=_DURATIONS,
    compute_infer=_DURATIONS,
    compute_output=_DURATIONS,
    batches=st.lists(
        st.builds(BatchReport, _COUNTS, _DURATIONS, _DURATIONS, _DURATIONS), max_size=3
    ).map(tuple),
    memory=st.lists(
        st.builds(MemoryReport, st.sampled_from(["CPU", "GPU"]), st.integers(0, 9), _COUNTS),
        max_size=2,
    ).map(tuple),
)


@pytest.fixture
def services(tmp_path: Path) -> Iterator[Services]:
    """Services with the model "scale"."""
    with running_services(tmp_path) as services:
        yield services


def _refuse_gently(answer: Callable[[], object]) -> None:
    with suppress(BadRequest, ModelNotFound, NotImplementedYet, NotPossibleNow):
        answer()


@_FEW
@given(st.data())
def test_any_bytes_are_answered_or_refused(services: Services, data: st.DataObject) -> None:
    """No message makes a call fail in a way of its own."""
    body = data.draw(st.binary(max_size=200))
    for answer in operations_answers(services.operations).values():
        _refuse_gently(lambda answer=answer: answer(body))  # type: ignore[misc]  # bound early
    _refuse_gently(lambda: answer_reflection(body, ["a.B"]))
    _refuse_gently(lambda: decode_check_request(body))
    for decode in (
        control_codec.decode_status_request,
        control_codec.decode_residency_request,
        control_codec.decode_policy_request,
        control_codec.decode_compact_request,
    ):
        _refuse_gently(lambda decode=decode: decode(body))  # type: ignore[misc]  # bound early


@_FEW
@given(
    st.dictionaries(
        _NAMES | st.sampled_from(["log_info", "log_verbose_level", "log_format", "log_file"]),
        st.none() | st.booleans() | st.integers(0, 2**32 - 1) | _NAMES,
        max_size=5,
    )
)
def test_any_log_settings_are_answered_or_refused(
    services: Services, changes: dict[str, bool | int | str | None]
) -> None:
    """And what comes over the wire is what was sent."""
    body = codec.encode_log_request(changes)

    assert changes == codec.decode_log_request(body)
    _refuse_gently(lambda: services.operations.logs.update(changes))


@_FEW
@given(st.dictionaries(_NAMES, st.lists(_NAMES, max_size=3).map(tuple), max_size=4), _NAMES)
def test_any_trace_settings_are_answered_or_refused(
    services: Services, changes: dict[str, tuple[str, ...]], model: str
) -> None:
    """And what comes over the wire is what was sent."""
    body = codec.encode_trace_request(changes, model)

    assert (model, changes) == codec.decode_trace_request(body)
    _refuse_gently(lambda: services.operations.traces.update(changes, model))


@_FEW
@given(_CONFIGS)
def test_configuration_survives_the_wire(config: ModelConfig) -> None:
    """Encoding and decoding a configuration is the identity."""
    assert config == codec.decode_model_config(codec.encode_model_config(config))


@_FEW
@given(st.lists(_REPORTS, max_size=3).map(tuple))
def test_statistics_survive_the_wire(reports: tuple[ModelReport, ...]) -> None:
    """Encoding and decoding statistics is the identity."""
    assert reports == codec.decode_statistics(codec.encode_statistics(reports))
