"""Who may call what."""

import itertools

import pytest

from hloserve.core.errors import HloserveError, PermissionDenied, Unauthenticated
from hloserve.server.access import (
    Access,
    GrpcGuard,
    HttpGuard,
    scope_of_admin,
    scope_of_call,
    scope_of_rest,
)
from hloserve.server.tokens import Scope, parse_tokens
from hloserve.wire.protos import control_pb2, inference_pb2

INFER, ADMIN = b"Bearer " + b"i" * 16, b"Bearer " + b"a" * 16
FILE = b"user infer " + b"i" * 16 + b"\nops admin " + b"a" * 16
SERVICE = b"/inference.GRPCInferenceService/"


def _access() -> Access:
    return Access(parse_tokens(FILE, "tokens"))


@pytest.mark.parametrize(
    ("method", "scope"),
    [
        ("ServerLive", None),
        ("ServerReady", None),
        ("ModelReady", Scope.INFER),
        ("ModelInfer", Scope.INFER),
        ("ModelStreamInfer", Scope.INFER),
        ("RepositoryIndex", Scope.INFER),
        ("RepositoryModelLoad", Scope.ADMIN),
        ("RepositoryModelUnload", Scope.ADMIN),
        ("SystemSharedMemoryRegister", Scope.ADMIN),
        ("SystemSharedMemoryStatus", Scope.ADMIN),
        ("TraceSetting", Scope.ADMIN),
        ("LogSettings", Scope.ADMIN),
        ("WhateverComesLater", Scope.ADMIN),
    ],
)
def test_scopes_of_calls(method: str, scope: Scope | None) -> None:
    """Health is open, inference and reading are `infer`, the rest is `admin`."""
    assert scope is scope_of_call(SERVICE + method.encode())


def test_control_is_for_admins_but_for_the_status() -> None:
    """The status has what statistics and metrics have; the rest changes the device."""
    service = control_pb2.DESCRIPTOR.services_by_name["ControlService"]
    scopes = {
        m.name: scope_of_call(f"/{service.full_name}/{m.name}".encode()) for m in service.methods
    }

    assert {
        "ModelControlStatus": Scope.INFER,
        "SetModelResidency": Scope.ADMIN,
        "SetModelPolicy": Scope.ADMIN,
        "CompactMemory": Scope.ADMIN,
    } == scopes


def test_no_method_that_changes_the_server_is_open_or_infer() -> None:
    """Of the methods in the protocol's file, those that are not admin are named here."""
    service = inference_pb2.DESCRIPTOR.services_by_name["GRPCInferenceService"]
    paths = {
        m.name
        for m in service.methods
        if scope_of_call(SERVICE + m.name.encode()) is not Scope.ADMIN
    }

    assert paths <= {
        "ServerLive", "ServerReady", "ServerMetadata", "ModelReady", "ModelMetadata", "ModelInfer",
        "ModelStreamInfer", "ModelConfig", "ModelStatistics", "RepositoryIndex",
        "IsSameIPCNamespace",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("request_line", "scope"),
    [
        ("GET /v2/health/live", None),
        ("HEAD /v2/health/ready?x=1", None),
        ("GET /demo", None),
        ("GET /v2/openapi.json", None),
        ("POST /v2/openapi.json", Scope.ADMIN),
        ("GET /", None),
        ("GET /v2", Scope.INFER),
        ("GET /v2/", Scope.INFER),
        ("GET /v2/models/m", Scope.INFER),
        ("GET /v2/models/m/ready", Scope.INFER),
        ("GET /v2/models/m/stats", Scope.INFER),
        ("GET /v2/models/stats", Scope.INFER),
        ("POST /v2/models/m/infer", Scope.INFER),
        ("POST /v2/models/m/versions/1/infer", Scope.INFER),
        ("POST /v2/models/health%2Flive/infer", Scope.INFER),
        ("POST /v2/repository/index", Scope.INFER),
        ("POST /v2/repository/r/index", Scope.INFER),
        ("POST /v2/repository/models/m/load", Scope.ADMIN),
        ("POST /v2/repository/models/m/lo%61d", Scope.ADMIN),
        ("POST /v2/repository/models/index/load", Scope.ADMIN),
        ("POST /v2/repository/r/models/m/unload", Scope.ADMIN),
        ("POST http://x/v2/repository/models/m/load", Scope.ADMIN),
        ("GET /v2/systemsharedmemory/status", Scope.ADMIN),
        ("POST /v2/trace/setting", Scope.ADMIN),
        ("POST /v2/models/m/trace/setting", Scope.ADMIN),
        ("POST /v2/models/m/versions/1/trace/setting", Scope.ADMIN),
        ("POST /v2/logging", Scope.ADMIN),
        ("POST /v2/health/live", Scope.ADMIN),
        ("GET /v2/anything", Scope.ADMIN),
        ("GET //v2/models/m", None),
        ("POST //v2/models/m/infer", Scope.ADMIN),
    ],
)
def test_scopes_of_requests(request_line: str, scope: Scope | None) -> None:
    """Paths are read as routing reads them, and what is not listed under /v2 is `admin`."""
    method, target = request_line.split(" ")

    assert scope is scope_of_rest(method, target.encode())


@pytest.mark.parametrize(
    ("request_line", "scope"),
    [
        ("GET /healthz", None),
        ("HEAD /readyz", None),
        ("GET /metrics", Scope.INFER),
        ("GET /anything", Scope.ADMIN),
        ("POST /healthz", Scope.ADMIN),
    ],
)
def test_scopes_of_the_admin_port(request_line: str, scope: Scope | None) -> None:
    """Probes are open, metrics take any token."""
    method, target = request_line.split(" ")

    assert scope is scope_of_admin(method, target.encode())


def _ask_http(guard: HttpGuard, call: str, header: bytes | None) -> str:
    method, target = call.split(" ")
    headers = {} if header is None else {b"authorization": header}
    try:
        guard(method, target.encode(), headers)
    except HloserveError as error:
        return type(error).__name__
    return "ok"


@pytest.mark.parametrize("first", [None, INFER, ADMIN, b"Bearer " + b"x" * 16])
def test_what_a_connection_remembers_changes_no_answer(first: bytes | None) -> None:
    """Every order of tokens and calls on one connection gets the answers of fresh ones."""
    calls = ["GET /v2/health/live", "POST /v2/models/m/infer", "POST /v2/repository/models/m/load"]
    headers = [None, INFER, ADMIN, b"Bearer " + b"x" * 16]
    guard = HttpGuard(_access(), scope_of_rest)
    _ask_http(guard, "POST /v2/models/m/infer", first)

    for call, header in itertools.product(calls, headers):
        alone = _ask_http(HttpGuard(_access(), scope_of_rest), call, header)
        assert alone == _ask_http(guard, call, header)


def test_a_token_that_is_taken_away_ends_at_once() -> None:
    """What a connection remembers is of no use when the tokens have changed."""
    access = _access()
    http, grpc = HttpGuard(access, scope_of_rest), GrpcGuard(access)
    assert "ok" == _ask_http(http, "GET /v2", INFER)
    before = grpc.rules

    access.keyring = parse_tokens(b"ops admin " + b"a" * 16, "tokens")

    assert "Unauthenticated" == _ask_http(http, "GET /v2", INFER)
    assert before is not grpc.rules
    with pytest.raises(Unauthenticated):
        grpc.check(SERVICE + b"ModelInfer", INFER)


def test_calls_may_be_remembered_unless_they_change_the_server() -> None:
    """Each call of an administrator is looked at, and logged."""
    guard = GrpcGuard(_access())

    assert guard.check(SERVICE + b"ModelInfer", INFER)
    assert guard.check(SERVICE + b"ServerLive", None)
    assert not guard.check(SERVICE + b"LogSettings", ADMIN)


def test_refusals_are_counted_and_name_the_token() -> None:
    """The count is for the log; the name tells the caller which of its tokens it is."""
    access = _access()
    guard = GrpcGuard(access)
    with pytest.raises(PermissionDenied, match="token 'user' has not the scope 'admin'"):
        guard.check(SERVICE + b"LogSettings", INFER)
    with pytest.raises(Unauthenticated, match="not valid here"):
        guard.check(SERVICE + b"ModelInfer", b"Bearer " + b"z" * 16)

    assert (1, 1) == (access.unauthenticated, access.denied)
