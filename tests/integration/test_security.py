"""A worker with tokens and TLS, as its clients see it."""

import asyncio
import http.client
import json
import socket
import ssl
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

import grpc
import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.http
from support.certificates import Authority, Pair, client_context
from support.server_worker import (
    RunningWorker,
    rows,
    running_worker,
    start_listening,
    write_scale,
)

from hloserve import Client
from hloserve.cli.main import run
from hloserve.client.streaming import InferStream
from hloserve.core.errors import (
    BadRequest,
    ConfigProblem,
    HloserveError,
    NotPossibleNow,
    PermissionDenied,
    Unauthenticated,
    Unavailable,
)

INFER, ADMIN, OTHER = "i" * 32, "a" * 32, "x" * 32
TOKENS = f"# who  may  with\nuser infer {INFER}\nops admin {ADMIN}\n"


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    """Signs the certificates."""
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def server_pair(authority: Authority) -> Pair:
    """The server's certificate and key."""
    return authority.issue("server")


def _secret(folder: Path, text: str = TOKENS) -> Path:
    file = folder / "tokens"
    file.write_text(text)
    file.chmod(0o600)
    return file


def _tls(pair: Pair) -> dict[str, object]:
    return {"tls.certificate": str(pair.certificate), "tls.key": str(pair.key)}


@pytest.fixture(scope="module")
def secure(tmp_path_factory: pytest.TempPathFactory, server_pair: Pair) -> Iterator[RunningWorker]:
    """Serves `scale` with tokens over TLS; models are loaded by whoever may."""
    folder = tmp_path_factory.mktemp("secure")
    repository = folder / "models"
    write_scale(repository)
    settings = {
        "access.tokens_file": str(_secret(folder)),
        "model_control_mode": "explicit",
        **_tls(server_pair),
    }
    with running_worker(repository, settings=settings) as worker:
        yield worker


def _address(worker: RunningWorker, port: str = "grpc") -> str:
    return "{}:{}".format(*getattr(worker.addresses, port))


def _fetch(
    worker: RunningWorker,
    authority: Authority,
    call: str,
    headers: Sequence[tuple[str, str]] = (),
    *,
    port: str = "http",
    body: bytes | None = None,
) -> tuple[int, http.client.HTTPMessage, bytes]:
    context = client_context(authority)
    host, number = getattr(worker.addresses, port)
    connection = http.client.HTTPSConnection(host, number, context=context, timeout=20)
    method, path = call.split(" ")
    try:
        connection.putrequest(method, path)
        for name, value in headers:
            connection.putheader(name, value)
        if body is not None:
            connection.putheader("Content-Length", str(len(body)))
        connection.endheaders(body)
        answer = connection.getresponse()
        return answer.status, answer.headers, answer.read()
    finally:
        connection.close()


def _bearer(token: str) -> tuple[tuple[str, str]]:
    return (("Authorization", f"Bearer {token}"),)


def _ask_with(worker: RunningWorker, authority: Authority, token: str | None) -> Client:
    return Client(_address(worker), token=token, tls=client_context(authority), timeout_s=20)


def test_our_client_asks_with_its_token_over_tls(
    secure: RunningWorker, authority: Authority
) -> None:
    """Small and large tensors, on several connections."""
    with _ask_with(secure, authority, INFER) as client:
        for values in ((1.0,), tuple(float(n) for n in range(8_000))):
            outputs = client.infer("scale", {"x": rows(*values)})
            np.testing.assert_array_equal(2 * rows(*values), outputs["y"])
        assert "scale" in [entry.name for entry in client.repository_index()]


def test_calls_without_a_good_token_are_unauthenticated(
    secure: RunningWorker, authority: Authority
) -> None:
    """The message says what to send; health is answered all the same."""
    for token, told in ((None, "needs a token and has none"), (OTHER, "is not valid here")):
        with _ask_with(secure, authority, token) as client:
            with pytest.raises(Unauthenticated, match=f"{told}.*authorization: Bearer TOKEN"):
                client.infer("scale", {"x": rows(1.0)})
            assert client.is_server_live()
            assert client.is_server_ready()


def test_changes_of_the_server_need_an_admin(secure: RunningWorker, authority: Authority) -> None:
    """A token for inference loads nothing; one for administration does, and infers too."""
    with _ask_with(secure, authority, INFER) as client, pytest.raises(PermissionDenied) as caught:
        client.unload_model("scale")
    assert "token 'user' has not the scope 'admin'" in str(caught.value)

    with _ask_with(secure, authority, ADMIN) as client:
        client.load_model("scale")
        client.infer("scale", {"x": rows(1.0)})


@pytest.mark.parametrize(
    ("headers", "status", "challenge"),
    [
        ((), 401, 'Bearer realm="hloserve"'),
        (_bearer(OTHER), 401, 'Bearer realm="hloserve", error="invalid_token"'),
        ((("Authorization", "Basic dTpw"),), 401, "invalid_token"),
        ((*_bearer(ADMIN), *_bearer(ADMIN)), 401, "invalid_token"),
        ((("Authorization", "Bearer " + "x" * 9000),), 401, "invalid_token"),
        ((("Authorization", "Bearer \xe9"),), 401, "invalid_token"),
        ((("AUTHORIZATION", f"bearer   {ADMIN}  "),), 200, None),
    ],
)
def test_http_says_who_may_come_in(
    secure: RunningWorker,
    authority: Authority,
    headers: Sequence[tuple[str, str]],
    status: int,
    challenge: str | None,
) -> None:
    """401 with what is wanted, in JSON like every error; no answer repeats a token."""
    got, answer, body = _fetch(secure, authority, "GET /v2/models/scale", headers)

    assert status == got
    if challenge is not None:
        assert challenge in (answer["WWW-Authenticate"] or "")
        assert list(json.loads(body)) == ["error"]
        assert ADMIN.encode() not in body


def test_http_tells_a_missing_scope(secure: RunningWorker, authority: Authority) -> None:
    """403, with the scope that is needed."""
    status, headers, _ = _fetch(
        secure, authority, "POST /v2/repository/models/scale/unload", _bearer(INFER), body=b""
    )

    assert 403 == status
    assert 'error="insufficient_scope", scope="admin"' in (headers["WWW-Authenticate"] or "")


@pytest.mark.parametrize(
    "call",
    [
        "POST /v2/logging",
        "GET /v2/logging",
        "POST /v2/trace/setting",
        "POST /v2/models/scale/trace/setting",
        "POST /v2/models/scale/versions/1/trace/setting",
        "GET /v2/systemsharedmemory/status",
        "POST /v2/systemsharedmemory/region/r/register",
        "POST /v2/systemsharedmemory/unregister",
        "POST /v2/repository/models/scale/load",
        "POST /v2/repository/here/models/scale/lo%61d",
    ],
)
def test_no_request_that_changes_the_server_takes_a_token_for_inference(
    secure: RunningWorker, authority: Authority, call: str
) -> None:
    """Whatever the spelling of the path."""
    assert 403 == _fetch(secure, authority, call, _bearer(INFER), body=b"{}")[0]
    assert 401 == _fetch(secure, authority, call, body=b"{}")[0]


def test_no_call_that_changes_the_server_takes_a_token_for_inference(
    secure: RunningWorker, authority: Authority
) -> None:
    """Of all methods that the server has, over gRPC."""
    credentials = grpc.ssl_channel_credentials(authority.certificate.read_bytes())
    metadata = (("authorization", f"Bearer {INFER}"),)
    refused = set()
    with grpc.secure_channel(_address(secure), credentials) as channel:
        for path in secure.worker._listeners._grpc.methods:
            answers = channel.unary_stream(path.decode())(b"", timeout=20, metadata=metadata)
            try:
                next(answers, None)
                answers.cancel()  # some of them go on
            except grpc.RpcError as error:
                if error.code() is grpc.StatusCode.PERMISSION_DENIED:
                    refused.add(path.decode().rpartition("/")[2])

    assert refused >= {
        "RepositoryModelLoad", "RepositoryModelUnload", "LogSettings", "TraceSetting",
        "SystemSharedMemoryRegister", "SystemSharedMemoryUnregister", "SystemSharedMemoryStatus",
    }  # fmt: skip
    assert not refused & {"ModelInfer", "ModelMetadata", "ModelStatistics", "Check", "Watch"}


def test_health_needs_no_token_and_metrics_do(secure: RunningWorker, authority: Authority) -> None:
    """Probes have none; Prometheus can have one."""
    assert 200 == _fetch(secure, authority, "GET /v2/health/ready")[0]
    assert 200 == _fetch(secure, authority, "GET /healthz", port="admin")[0]
    assert 200 == _fetch(secure, authority, "GET /readyz", port="admin")[0]
    assert 401 == _fetch(secure, authority, "GET /metrics", port="admin")[0]

    status, _, text = _fetch(secure, authority, "GET /metrics", _bearer(INFER), port="admin")

    assert 200 == status
    assert b"worker_" in text
    assert not any(token.encode() in text for token in (INFER, ADMIN))


def test_a_stranger_uploads_nothing(secure: RunningWorker, authority: Authority) -> None:
    """The refusal comes before the body is asked for, and before it is sent."""
    context = client_context(authority)
    with (
        socket.create_connection(secure.addresses.http, 20) as plain,
        context.wrap_socket(plain, server_hostname="127.0.0.1") as peer,
    ):
        peer.sendall(
            b"POST /v2/models/scale/infer HTTP/1.1\r\nHost: x\r\nContent-Length: 500000000\r\n"
            b"Expect: 100-continue\r\n\r\n"
        )
        answer = b""
        while piece := peer.recv(10_000):
            answer += piece

    assert answer.startswith(b"HTTP/1.1 401 ")
    assert b"Connection: close" in answer


def test_a_large_call_of_a_stranger_is_refused_by_its_head(
    secure: RunningWorker, authority: Authority
) -> None:
    """A gRPC client hears why, although its message was not read."""
    with _ask_with(secure, authority, OTHER) as client, pytest.raises(Unauthenticated):
        client.infer("scale", {"x": np.zeros((1_000_000, 4), np.float32)})


def test_tokens_of_one_connection_are_not_mixed_up(
    secure: RunningWorker, authority: Authority
) -> None:
    """Callers that share a connection, as behind a proxy, have each their own rights."""
    credentials = grpc.ssl_channel_credentials(authority.certificate.read_bytes())
    with grpc.secure_channel(_address(secure), credentials) as channel:
        index = channel.unary_unary("/inference.GRPCInferenceService/RepositoryIndex")
        for token, code in (
            (INFER, None), (OTHER, grpc.StatusCode.UNAUTHENTICATED), (INFER, None), (ADMIN, None),
            (None, grpc.StatusCode.UNAUTHENTICATED), (INFER, None), (INFER, None),
        ):  # fmt: skip
            metadata = () if token is None else (("authorization", f"Bearer {token}"),)
            if code is None:
                assert index(b"", timeout=20, metadata=metadata)
                continue
            with pytest.raises(grpc.RpcError) as caught:
                index(b"", timeout=20, metadata=metadata)
            assert code is caught.value.code()
        twice = [("authorization", f"Bearer {ADMIN}")] * 2
        with pytest.raises(grpc.RpcError, match="is given twice"):
            index(b"", timeout=20, metadata=twice)


def test_credentials_of_grpcio_work(secure: RunningWorker, authority: Authority) -> None:
    """Call credentials carry the token, as in gRPC's own guides."""
    credentials = grpc.composite_channel_credentials(
        grpc.ssl_channel_credentials(authority.certificate.read_bytes()),
        grpc.access_token_call_credentials(INFER),
    )
    with grpc.secure_channel(_address(secure), credentials) as channel:
        live = channel.unary_unary("/inference.GRPCInferenceService/ServerMetadata")
        assert b"hloserve" in live(b"", timeout=20)
        with pytest.raises(grpc.RpcError, match="has not the scope"):
            channel.unary_unary("/inference.GRPCInferenceService/RepositoryModelUnload")(
                b"", timeout=20
            )


def test_tritonclient_works(secure: RunningWorker, authority: Authority) -> None:
    """Both of its transports, with its own names for the settings."""
    given = tritonclient.grpc.InferInput("x", [1, 4], "FP32")
    given.set_data_from_numpy(rows(3.0))
    over_grpc = tritonclient.grpc.InferenceServerClient(
        _address(secure), ssl=True, root_certificates=str(authority.certificate)
    )
    headers = {"authorization": f"Bearer {INFER}"}
    with over_grpc:
        answer = over_grpc.infer("scale", [given], headers=headers)
    np.testing.assert_array_equal(2 * rows(3.0), answer.as_numpy("y"))

    asked = tritonclient.http.InferInput("x", [1, 4], "FP32")
    asked.set_data_from_numpy(rows(3.0))
    over_http = tritonclient.http.InferenceServerClient(
        _address(secure, "http"),
        ssl=True,
        ssl_context_factory=lambda: client_context(authority),
    )
    with over_http:
        answer = over_http.infer("scale", [asked], headers=headers)
    np.testing.assert_array_equal(2 * rows(3.0), answer.as_numpy("y"))


def test_curl_works(secure: RunningWorker, authority: Authority) -> None:
    """As the page on security has it."""
    command = [
        "curl", "-sS", "--cacert", str(authority.certificate), "-w", "%{http_code}",
        f"https://{_address(secure, 'http')}/v2", "-H",
    ]  # fmt: skip

    for token, status in ((INFER, "200"), (OTHER, "401")):
        done = subprocess.run(
            [*command, f"Authorization: Bearer {token}"], capture_output=True, text=True, timeout=20
        )
        assert done.stdout.endswith(status), done.stderr


def test_commands_take_a_token_and_an_authority(
    secure: RunningWorker, authority: Authority, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`infer` and `status` reach a server that is guarded, and show no token."""
    token = tmp_path / "token"
    token.write_text(f"{INFER}\n")
    there = ["--url", f"grpcs://{_address(secure)}", "--ca-file", str(authority.certificate)]

    assert 0 == run(["status", *there, "--token-file", str(token)])
    assert 0 == run(["infer", "scale", "x=ones:1,4", *there, "--token-file", str(token)])
    assert 1 == run(["status", *there])
    token.write_text(f"user infer {INFER}")
    assert 2 == run(["status", *there, "--token-file", str(token)])

    out, err = capsys.readouterr()
    assert "needs a token and has none" in err
    assert "must hold one token" in err
    assert INFER not in out + err


def test_nothing_that_is_shown_holds_a_secret(
    server_pair: Pair, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`config show` prints the names of files, never what is in them."""
    node = tmp_path / "node.yaml"
    node.write_text(
        f"access: {{tokens_file: {_secret(tmp_path)}}}\n"
        f"tls: {{certificate: {server_pair.certificate}, key: {server_pair.key}}}\n"
    )

    assert 0 == run(["config", "show", str(node), "--json"])

    out = capsys.readouterr().out
    assert str(server_pair.key) in out
    assert INFER not in out
    assert "PRIVATE KEY" not in out


def _look(worker: RunningWorker) -> None:
    """Let the worker look at its files until it has taken up what has changed."""
    listeners = worker.worker._listeners
    for _ in range(2):
        asyncio.run_coroutine_threadsafe(listeners.look_at_files(), worker._loop).result(20)


def test_certificates_and_tokens_change_under_way(
    authority: Authority, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Connections go on, new ones see the new certificate, and old tokens end at once."""
    pair, renewed = authority.issue("first"), authority.issue("second")
    tokens = _secret(tmp_path)
    write_scale(tmp_path / "models")
    settings = {"access.tokens_file": str(tokens), **_tls(pair)}
    with (
        running_worker(tmp_path / "models", settings=settings) as worker,
        _ask_with(worker, authority, INFER) as client,
    ):
        client.infer("scale", {"x": rows(1.0)})
        before = ssl.get_server_certificate(worker.addresses.grpc)
        pair.replace_by(renewed)
        _look(worker)

        client.infer("scale", {"x": rows(1.0)})
        assert 1 == len(client._idle)
        for port in ("grpc", "http", "admin"):
            shown = ssl.get_server_certificate(getattr(worker.addresses, port))
            assert renewed.certificate.read_text().strip() == shown.strip() != before.strip()

        tokens.write_text(f"user infer {OTHER}\n")
        _look(worker)
        with pytest.raises(Unauthenticated):
            client.infer("scale", {"x": rows(1.0)})
        with _ask_with(worker, authority, OTHER) as other:
            other.infer("scale", {"x": rows(1.0)})
        _look(worker)

    told = [record.getMessage() for record in caplog.records]
    assert "calls_refused" in told
    assert not any(token in caplog.text for token in (INFER, ADMIN, OTHER))


def _ask_again(stream: InferStream) -> None:
    stream.send("scale", {"x": rows(1.0)})
    list(stream)


def test_streams_end_with_the_token_that_they_began_with(
    authority: Authority, tmp_path: Path
) -> None:
    """Those of other tokens go on."""
    tokens = _secret(tmp_path)
    write_scale(tmp_path / "models")
    settings = {"access.tokens_file": str(tokens), **_tls(authority.issue("first"))}
    with running_worker(tmp_path / "models", settings=settings) as worker:
        asked = [_ask_with(worker, authority, token) for token in (INFER, ADMIN)]
        with asked[0] as gone, asked[1] as kept, gone.stream() as ending, kept.stream() as going:
            for stream in (ending, going):
                stream.send("scale", {"x": rows(1.0)})
                next(iter(stream))
            tokens.write_text(f"ops admin {ADMIN}\n")
            _look(worker)
            grpc_server = worker.worker._listeners._grpc
            worker.on_loop(grpc_server.sweep)
            worker.on_loop(grpc_server.flush)
            going.send("scale", {"x": rows(1.0)})
            assert rows(2.0).tobytes() == next(iter(going)).outputs["y"].tobytes()
            with pytest.raises(Unauthenticated):
                _ask_again(ending)


@pytest.mark.parametrize("is_admin_asked", [True, False])
def test_clients_must_show_a_certificate(
    authority: Authority, server_pair: Pair, tmp_path: Path, is_admin_asked: bool
) -> None:
    """Mutual TLS on all ports, or on all but the admin port."""
    write_scale(tmp_path)
    own = authority.issue("client")
    stranger = Authority(tmp_path, "strangers").issue("stranger")
    settings = {
        "tls.client_ca": str(authority.certificate),
        "tls.client_ca_on_admin_port": is_admin_asked,
        **_tls(server_pair),
    }
    with running_worker(tmp_path, settings=settings) as worker:
        address = _address(worker)
        with Client(address, tls=client_context(authority, own)) as client:
            client.infer("scale", {"x": rows(1.0)})
        for context in (client_context(authority), client_context(authority, stranger)):
            with (
                Client(address, tls=context) as client,
                pytest.raises(HloserveError, match="certificate"),
            ):
                client.infer("scale", {"x": rows(1.0)})
        if is_admin_asked:
            with pytest.raises(OSError, match=r"."):
                _fetch(worker, authority, "GET /healthz", port="admin")
        else:
            assert 200 == _fetch(worker, authority, "GET /healthz", port="admin")[0]


def test_what_a_client_is_told_when_there_is_no_trust(authority: Authority, tmp_path: Path) -> None:
    """The reason in words, for each way in which a certificate can be wrong."""
    write_scale(tmp_path / "models")
    expired = authority.issue("expired", days=10)
    elsewhere = authority.issue("elsewhere", hosts=("example.org",))
    for pair, told in ((expired, "has expired"), (elsewhere, "is not for '127.0.0.1'")):
        with running_worker(tmp_path / "models", settings=_tls(pair)) as worker:
            with (
                Client(_address(worker), tls=client_context(authority)) as client,
                pytest.raises(NotPossibleNow, match=told),
            ):
                client.server_metadata()
            with (
                Client(f"grpcs://{_address(worker)}") as client,
                pytest.raises(
                    NotPossibleNow, match=r"authority .*not trusted.*--ca-file|has expired"
                ),
            ):
                client.server_metadata()


def test_tls_and_plain_do_not_meet_in_silence(
    authority: Authority, server_pair: Pair, tmp_path: Path
) -> None:
    """A client that means the other kind is told, and hangs nowhere."""
    write_scale(tmp_path)
    with running_worker(tmp_path) as worker:
        for port in ("grpc", "http"):
            with (
                Client(f"grpcs://{_address(worker, port)}") as client,
                pytest.raises((BadRequest, Unavailable), match="speak TLS"),
            ):
                client.server_metadata()
    with (
        running_worker(tmp_path, settings=_tls(server_pair)) as worker,
        Client(_address(worker)) as client,
        pytest.raises(Unavailable, match="does it speak TLS"),
    ):
        client.server_metadata()


def test_a_public_address_is_not_bound_by_accident(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`serve`, `demo` and `config check` refuse it; the text says what to set."""
    write_scale(tmp_path)
    node = tmp_path / "node.yaml"
    node.write_text(f"model_dirs: [{tmp_path}]\nendpoints: {{host: 0.0.0.0}}\n")

    for command in (
        ["serve", str(tmp_path), "--host", "0.0.0.0"],
        ["demo", "--host", "::"],
        ["config", "check", str(node)],
    ):
        assert 2 == run(command)
        err = capsys.readouterr().err
        assert "can be reached from other machines" in err
        assert "--insecure" in err


def test_a_public_address_is_bound_when_told(tmp_path: Path) -> None:
    """--insecure is enough, and so are tokens."""
    write_scale(tmp_path / "models")
    for more in ({"endpoints.insecure": True}, {"access.tokens_file": str(_secret(tmp_path))}):
        settings = {"endpoints.host": "0.0.0.0", **more}
        with running_worker(tmp_path / "models", settings=settings) as worker:
            _, port = worker.addresses.grpc
            with Client(f"127.0.0.1:{port}", token=INFER) as client:
                client.infer("scale", {"x": rows(1.0)})


def test_a_broken_file_ends_the_start(tmp_path: Path) -> None:
    """With the file, the setting and the line, and no port bound."""
    tokens = _secret(tmp_path, "user infer\n")
    with pytest.raises(ConfigProblem, match="line 1: must be three words"):
        start_listening({"access.tokens_file": str(tokens)})
