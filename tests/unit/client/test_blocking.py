"""The blocking client against servers that behave: ours, and grpcio's."""

import ssl
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, TypeAlias

import ml_dtypes
import numpy as np
import pytest
from support.client_servers import SERVERS, Methods, serve_with_grpcio, serve_with_ours

import hloserve
from hloserve.client import Client
from hloserve.core.dtypes import DTYPES, DType
from hloserve.core.errors import (
    BadRequest,
    BodyTooLarge,
    DeadlineExceeded,
    HloserveError,
    HookFailed,
    ModelNotFound,
    NotPossibleNow,
    QueueFull,
    TensorMismatch,
    Unavailable,
)
from hloserve.core.requests import (
    NEVER_NS,
    InferResponse,
    ModelIndexEntry,
    ModelMetadata,
    ModelState,
    Parameter,
    ServerMetadata,
    TensorMetadata,
)
from hloserve.server.grpc_transport import Rpc
from hloserve.wire import v2_protobuf as codec
from hloserve.wire import v2_protobuf_metadata as calls
from hloserve.wire.grpc_limits import GrpcLimits

Serve: TypeAlias = Callable[[Methods], AbstractContextManager[str]]


@pytest.fixture(params=SERVERS)
def serve(request: pytest.FixtureRequest) -> Serve:
    """A server of each make."""
    return SERVERS[request.param]


@pytest.fixture
def echo_client(serve: Serve) -> Iterator[Client]:
    """A client of a server whose only model answers with its inputs."""
    with serve({"ModelInfer": echo}) as address, Client(address) as client:
        yield client


def echo(body: bytes) -> bytes:
    """Answer with the inputs, or the requested ones of them."""
    request = codec.decode_infer_request(body, 0)
    names = request.outputs or tuple(request.inputs)
    outputs = {name: request.inputs[name] for name in names}
    return codec.encode_infer_response(InferResponse(request.model, outputs, request.id))


@pytest.mark.parametrize("dtype", [dtype for dtype in DTYPES if dtype.kserve], ids=str)
def test_arrays_of_every_dtype_come_back_as_they_went(echo_client: Client, dtype: DType) -> None:
    """Dtype, shape and bits survive, BF16 included."""
    sent = {"x": np.ones((2, 3), dtype.numpy), "s": np.ones((), dtype.numpy)}

    got = echo_client.infer("m", sent)

    assert list(got) == ["x", "s"]
    for name, array in sent.items():
        assert (got[name].dtype, got[name].shape) == (array.dtype, array.shape)
        assert got[name].tobytes() == array.tobytes()


def test_bfloat16_is_numpys_extension_type(echo_client: Client) -> None:
    """BF16 is `ml_dtypes.bfloat16`, ready for arithmetic."""
    got = echo_client.infer("m", {"x": np.array([1.5, 2], ml_dtypes.bfloat16)})

    assert got["x"].dtype == ml_dtypes.bfloat16
    assert float(got["x"].sum()) == 3.5


def test_64_bit_integers_are_exact(echo_client: Client) -> None:
    """2**40 does not become 0 on the way."""
    assert echo_client.infer("m", {"x": np.array([2**40, -(2**62)])})["x"].tolist() == [
        2**40,
        -(2**62),
    ]


@pytest.mark.parametrize(
    "array",
    [
        np.arange(24).reshape(2, 3, 4).transpose(2, 0, 1),
        np.arange(20, dtype=np.float32)[::2],
        np.arange(6, dtype=">i4").reshape(2, 3),
        np.asfortranarray(np.arange(90_000, dtype=np.float32).reshape(300, 300)),
        np.broadcast_to(np.float32(2), (3, 4)),
        np.zeros((0, 4), np.float32),
    ],
    ids=["transposed", "strided", "big-endian", "fortran", "broadcast", "empty"],
)
def test_any_memory_layout_is_sent(echo_client: Client, array: Any) -> None:
    """Values and shape arrive whatever the array looks like in memory."""
    np.testing.assert_array_equal(echo_client.infer("m", {"x": array})["x"], array)


@pytest.mark.parametrize(
    ("value", "dtype"), [([1.0, 2.0], np.float64), (3, np.int64), ([[True]], np.bool_)]
)
def test_python_values_become_arrays(echo_client: Client, value: Any, dtype: type) -> None:
    """Lists and scalars get the dtype that `numpy.asarray` gives them."""
    got = echo_client.infer("m", {"x": value})["x"]

    assert got.dtype == dtype
    assert got.tolist() == value


@pytest.mark.parametrize(
    ("value", "expected"),
    [("Bär", "Bär".encode()), ([b"a\0", b""], [b"a\0", b""]), ([["a"]], [[b"a"]])],
)
def test_strings_become_bytes(echo_client: Client, value: Any, expected: object) -> None:
    """Text is sent as UTF-8, bytes as they are."""
    got = echo_client.infer("m", {"x": value})["x"]

    assert got.dtype == object
    assert got.tolist() == expected


@pytest.mark.parametrize("value", [object(), ["a", 1, None], 1j], ids=repr)
def test_values_without_a_datatype_are_refused_before_anything_is_sent(value: Any) -> None:
    """The message names the input; no server is needed to say so."""
    with Client("localhost:1") as client, pytest.raises(BadRequest, match="input 'x'"):
        client.infer("m", {"x": value})


def test_requested_outputs_come_in_the_requested_order(echo_client: Client) -> None:
    """The names go to the server and its order comes back."""
    inputs = {"a": np.zeros(1), "b": np.ones(1), "c": np.ones(2)}

    assert list(echo_client.infer("m", inputs, outputs=["c", "a"])) == ["c", "a"]


def test_one_string_is_no_list_of_outputs() -> None:
    """A forgotten pair of brackets is not taken for one output per letter."""
    with Client("localhost:1") as client, pytest.raises(BadRequest, match="'probs'"):
        client.infer("m", {}, outputs="probs")


def test_classes_are_asked_for_by_output(serve: Serve) -> None:
    """Without `outputs` only those come; with them, the order is that of `outputs`."""
    seen: list[tuple[tuple[str, ...], dict[str, int] | None]] = []

    def look(body: bytes) -> bytes:
        request = codec.decode_infer_request(body, 0)
        seen.append((request.outputs, request.classes))
        return codec.encode_infer_response(InferResponse("m", {}))

    with serve({"ModelInfer": look}) as address, Client(address) as client:
        computed: Any = np.int64(1)
        client.infer("m", {}, classes={"y": 3, "z": computed})
        client.infer("m", {}, outputs=["z", "y"], classes={"y": 2})
        client.infer("m", {}, classes={})

    assert [(("y", "z"), {"y": 3, "z": 1}), (("z", "y"), {"y": 2}), ((), None)] == seen


@pytest.mark.parametrize("count", [0, -1, 1.0, True, "3", None], ids=repr)
def test_counts_of_classes_that_are_none_are_refused(count: Any) -> None:
    """Before anything is sent; the message names the output."""
    with Client("localhost:1") as client, pytest.raises(BadRequest, match="output 'y'"):
        client.infer("m", {}, classes={"y": count})


def test_classes_do_not_go_to_shared_memory() -> None:
    """They are strings, and no array has room for those."""
    place: Any = None  # it is not looked at
    with Client("localhost:1") as client, pytest.raises(BadRequest, match="in classes and in into"):
        client.infer("m", {}, into={"y": place}, classes={"y": 3})


def test_id_and_parameters_reach_the_server(serve: Serve) -> None:
    """What the caller says about a request is in the request."""
    seen: list[tuple[str, dict[str, Parameter]]] = []

    def look(body: bytes) -> bytes:
        request = codec.decode_infer_request(body, 0)
        seen.append((request.id, {"priority": request.priority, **request.parameters}))
        return echo(body)

    with serve({"ModelInfer": look}) as address, Client(address) as client:
        client.infer("m", {}, request_id="req-1", parameters={"priority": 1, "tag": "x"})

    assert seen == [("req-1", {"priority": 1, "tag": "x"})]


@pytest.mark.parametrize("value", [None, [1], b"x"], ids=repr)
def test_parameters_of_other_types_are_refused(value: Any) -> None:
    """A parameter is a bool, a number or a string."""
    with Client("localhost:1") as client, pytest.raises(BadRequest, match="parameter 'p'"):
        client.infer("m", {}, parameters={"p": value})


def test_numpy_scalars_are_parameters_too(echo_client: Client) -> None:
    """A computed number need not be converted by hand."""
    got = echo_client.infer("m", {}, parameters={"timeout": np.int64(10**9), "f": np.float32(1)})

    assert got == {}


def test_large_tensors_cross_both_ways(echo_client: Client) -> None:
    """A body larger than every window and buffer arrives whole."""
    array = np.arange(5_000_000, dtype=np.float32)

    np.testing.assert_array_equal(echo_client.infer("m", {"x": array})["x"], array)


def test_metadata_is_what_the_server_says(serve: Serve) -> None:
    """Server, model and repository metadata, and the three health checks."""
    server = ServerMetadata("hloserve", "1", ("parameters",))
    index = (
        ModelIndexEntry("a", "", ModelState.READY, ""),
        ModelIndexEntry("b", "", ModelState.LOADING, "compiling"),
    )

    def model_metadata(body: bytes) -> bytes:
        name, _ = calls.decode_model_metadata_request(body)
        x, y = TensorMetadata("x", "FP32", (-1, 8)), TensorMetadata("y", "INT64", ())
        return calls.encode_model_metadata(ModelMetadata(name, (), "cpu", (x,), (y,)))

    def repository_index(body: bytes) -> bytes:
        ready_only = calls.decode_repository_index_request(body)
        return calls.encode_repository_index(index[:1] if ready_only else index)

    methods: Methods = {
        "ServerLive": lambda body: calls.encode_server_live(is_live=True),
        "ServerReady": lambda body: calls.encode_server_ready(is_ready=False),
        "ModelReady": lambda body: calls.encode_model_ready(
            is_ready=calls.decode_model_ready_request(body).name == "a"
        ),
        "ServerMetadata": lambda body: calls.encode_server_metadata(server),
        "ModelMetadata": model_metadata,
        "RepositoryIndex": repository_index,
    }
    with serve(methods) as address, Client(address) as client:
        metadata = client.model_metadata("digits")

        assert (metadata.name, metadata.platform) == ("digits", "cpu")
        assert (metadata.inputs[0].name, metadata.inputs[0].datatype) == ("x", "FP32")
        assert metadata.inputs[0].shape == (-1, 8)
        assert metadata.outputs[0].shape == ()
        assert client.server_metadata() == server
        assert client.repository_index() == index
        assert client.repository_index(is_ready_only=True) == index[:1]
        assert client.is_server_live()
        assert not client.is_server_ready()
        assert client.is_model_ready("a")
        assert not client.is_model_ready("b")


@pytest.mark.parametrize(
    ("raised", "expected"),
    [
        (TensorMismatch("input 'x'", "dtype", "f32", "f64"), "BadRequest"),
        (ModelNotFound("m"), "ModelNotFound"),
        (QueueFull("m", 5), "Overloaded"),
        (NotPossibleNow("règle n° 1: 100 % first"), "NotPossibleNow"),
        (DeadlineExceeded("m"), "DeadlineExceeded"),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_errors_of_the_server_come_back_by_type_with_their_words(
    serve: Serve, raised: HloserveError, expected: str
) -> None:
    """Code, retryable and message are the server's; accents and percent signs survive."""

    def fail(body: bytes) -> bytes:
        raise raised

    with (
        serve({"ModelInfer": fail}) as address,
        Client(address) as client,
        pytest.raises(HloserveError) as caught,
    ):
        client.infer("m", {})

    assert type(caught.value).__name__ == expected
    assert caught.value.code is raised.code
    assert caught.value.retryable is raised.retryable
    assert str(caught.value) == str(raised)


def test_internal_errors_of_the_server_keep_their_secrets() -> None:
    """The caller gets the request id to look for in the server's log."""

    def fail(body: bytes) -> bytes:
        raise HookFailed("m", "preprocess", "secret")

    with (
        serve_with_ours({"ModelInfer": fail}) as address,
        Client(address) as client,
        pytest.raises(HloserveError, match="internal error, request id") as caught,
    ):
        client.infer("m", {})

    assert "secret" not in str(caught.value)


def test_a_failed_call_leaves_the_connection_in_use(serve: Serve) -> None:
    """Errors are answers; the next call goes through."""

    def fail_empty(body: bytes) -> bytes:
        if not codec.decode_infer_request(body, 0).inputs:
            raise BadRequest("no inputs")
        return echo(body)

    with serve({"ModelInfer": fail_empty}) as address, Client(address) as client:
        for _ in range(3):
            with pytest.raises(BadRequest):
                client.infer("m", {})
            assert client.infer("m", {"x": 1})["x"] == 1


def test_many_threads_share_a_client(echo_client: Client) -> None:
    """Sixteen threads at once each get their own answers."""

    def work(worker: int) -> None:
        for call in range(10):
            values = np.full((worker + 1,), worker * 1000 + call)
            got = echo_client.infer("m", {"x": values}, request_id=f"{worker}-{call}")
            np.testing.assert_array_equal(got["x"], values)

    with ThreadPoolExecutor(16) as pool:
        list(pool.map(work, range(16)))


def test_calls_of_several_threads_are_under_way_at_once() -> None:
    """No thread waits for another's answer: two calls meet inside the server."""
    meeting = threading.Barrier(2, timeout=20)

    def meet(body: bytes) -> bytes:
        meeting.wait()
        return echo(body)

    with (
        serve_with_grpcio({"ModelInfer": meet}) as address,
        Client(address) as client,
        ThreadPoolExecutor(2) as pool,
    ):
        answers = list(pool.map(lambda i: client.infer("m", {"x": i})["x"].item(), range(2)))

    assert answers == [0, 1]


def test_the_deadline_travels_with_the_call() -> None:
    """The server learns how much time is left; without a limit it learns of none."""
    seen: list[int] = []

    def look(rpc: Rpc) -> None:
        seen.append(rpc.deadline_ns)
        rpc.reply(echo(bytes(rpc.message)))

    with serve_with_ours({}, {"ModelInfer": look}) as address:
        with Client(address, timeout_s=None) as client:
            client.infer("m", {})
        with Client(address, timeout_s=1000) as client:
            client.infer("m", {})
            client.infer("m", {}, timeout_s=50)

    assert seen[0] == NEVER_NS
    assert seen[1] - seen[2] == pytest.approx(950e9, abs=20e9)


def test_a_late_answer_is_not_waited_for() -> None:
    """At the deadline the call ends here, the server hears of it, and the client goes on."""
    has_cancelled = threading.Event()

    def hold(rpc: Rpc) -> None:
        rpc.on_cancel = has_cancelled.set

    with serve_with_ours({"ModelInfer": echo}, {"ServerMetadata": hold}) as address:
        with Client(address, timeout_s=0.05) as client, pytest.raises(DeadlineExceeded) as caught:
            client.server_metadata()
        assert has_cancelled.wait(20)
        with Client(address) as client:
            assert client.infer("m", {"x": 1})["x"] == 1

    assert f"ServerMetadata at {address}: no answer within 0.05 s" in str(caught.value)


def test_an_answer_over_the_limit_is_refused_and_says_what_to_raise(serve: Serve) -> None:
    """The client's limit is its own; the next call goes through."""
    with (
        serve(
            {"ModelInfer": lambda body: echo(body) + bytes([0x7A, 0x80, 0x80, 4]) + bytes(65536)}
        ) as address,
        Client(address, max_message_bytes=10_000) as client,
    ):
        with pytest.raises(BodyTooLarge, match="raise max_message_bytes"):
            client.infer("m", {})
        with pytest.raises(BodyTooLarge):
            client.infer("m", {"x": 1})


def test_a_request_over_the_limit_is_not_sent() -> None:
    """The message has both sizes; no server is needed to say so."""
    with (
        Client("localhost:1", max_message_bytes=1000) as client,
        pytest.raises(BadRequest, match="limit of 1000 bytes"),
    ):
        client.infer("m", {"x": np.zeros(1000)})


def test_a_request_over_the_servers_limit_is_told_while_it_is_sent() -> None:
    """The server answers before it has read all; the client hears it and can go on."""
    limits = GrpcLimits(max_recv_msg_bytes=100_000)
    with (
        serve_with_ours({"ModelInfer": echo}, limits=limits) as address,
        Client(address) as client,
    ):
        with pytest.raises(HloserveError, match="100000 bytes"):
            client.infer("m", {"x": np.zeros(8_000_000)})
        assert client.infer("m", {"x": 1})["x"] == 1


def test_nobody_at_the_address_is_unavailable() -> None:
    """The message has the address and what to look at; a health check is just False."""
    with serve_with_ours({}) as address:
        pass
    with Client(address) as client:
        with pytest.raises(Unavailable, match=rf"cannot connect to {address}.*gRPC port"):
            client.server_metadata()
        assert not client.is_server_live()
        assert not client.is_server_ready()


def test_an_unknown_host_is_unavailable() -> None:
    """A name that does not resolve is told with the address."""
    with (
        Client("no-such-host.invalid:8001") as client,
        pytest.raises(Unavailable, match=r"no-such-host\.invalid:8001"),
    ):
        client.server_metadata()


def test_a_closed_client_says_so(serve: Serve) -> None:
    """Closing is final, and closing twice is fine."""
    with serve({"ModelInfer": echo}) as address:
        client = Client(address)
        client.infer("m", {})
        client.close()
        client.close()

        with pytest.raises(NotPossibleNow, match="closed"):
            client.infer("m", {})


def test_nothing_is_connected_before_the_first_call() -> None:
    """Making a client of a server that is not there yet works."""
    with Client("localhost:1") as client:
        assert client.address == "localhost:1"


@pytest.mark.parametrize(
    ("name", "value"),
    [("timeout_s", 0), ("timeout_s", -1), ("connect_timeout_s", 0), ("max_message_bytes", 0)],
)
def test_numbers_that_cannot_be_used_are_refused(name: str, value: int) -> None:
    """The message names the argument."""
    with pytest.raises(BadRequest, match=f"{name} is {value}"):
        Client("localhost:1", **{name: value})  # type: ignore[arg-type]  # one of several arguments


def test_a_timeout_of_a_call_must_be_above_zero() -> None:
    """NaN is no time either."""
    for value in (0.0, -1.0, float("nan")):
        with Client("localhost:1") as client, pytest.raises(BadRequest, match="timeout_s"):
            client.infer("m", {}, timeout_s=value)


def test_the_client_is_public() -> None:
    """`hloserve.Client` is the one."""
    assert hloserve.Client is Client


def test_importing_the_client_loads_no_framework() -> None:
    """No jax, torch, grpcio or asyncio comes with it."""
    program = (
        f"import sys; sys.path.insert(0, {str(Path(hloserve.__file__).parents[1])!r})\n"
        "from hloserve import Client\n"
        "heavy = {'jax', 'jaxlib', 'torch', 'grpc', 'asyncio', 'uvloop', 'yaml', 'click'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )

    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=50, check=True
    )

    assert done.stdout == "[]\n"


@pytest.mark.parametrize("token", ["", "two words", "line\n", "\xe9", "a=b", "Bearer x"])
def test_a_token_that_no_header_can_hold_is_refused_unseen(token: str) -> None:
    """The message does not repeat it: it may be a secret with a line end."""
    with pytest.raises(BadRequest, match="the token is not a word") as caught:
        Client("localhost:1", token=token)

    assert not token or token not in str(caught.value)


def test_an_address_and_tls_that_contradict_each_other_are_refused() -> None:
    """Whoever writes grpc:// means no TLS."""
    with pytest.raises(BadRequest, match="write grpcs://"):
        Client("grpc://localhost:1", tls=ssl.create_default_context())


def test_a_token_is_sent_with_every_call() -> None:
    """As gRPC's metadata `authorization`."""
    seen: list[object] = []

    def live(rpc: Rpc) -> None:
        seen.append(rpc.metadata("authorization"))
        rpc.reply(b"")

    with (
        serve_with_ours({}, {"ServerLive": live}) as address,
        Client(address, token="abc") as client,
    ):
        client.is_server_live()
        client.is_server_live()

    assert ["Bearer abc"] * 2 == seen


def test_using_the_client_without_tls_imports_no_ssl() -> None:
    """Those who do not need it do not pay for it."""
    program = "import sys, hloserve; hloserve.Client('localhost:1'); sys.exit('ssl' in sys.modules)"

    assert 0 == subprocess.run([sys.executable, "-c", program], timeout=60, check=False).returncode
