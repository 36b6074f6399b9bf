"""gRPC server reflection, as grpcio's descriptor database and its stubs see it."""

from collections.abc import Iterator
from typing import Any

import grpc
import pytest
from google.protobuf import descriptor_pb2
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass
from grpc_reflection.v1alpha import reflection_pb2
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import (
    ProtoReflectionDescriptorDatabase,
)
from support.conformance_worker import Asker

_VERSIONS = ("v1", "v1alpha")


@pytest.fixture
def channel(asker: Asker) -> Iterator[grpc.Channel]:
    """A channel to the worker."""
    with grpc.insecure_channel(asker.grpc_address) as channel:
        yield channel


def _ask(
    channel: grpc.Channel, version: str, *requests: reflection_pb2.ServerReflectionRequest
) -> list[Any]:
    """The stub for v1 is not in grpcio; its messages are those of v1alpha under other names."""
    call = channel.stream_stream(
        f"/grpc.reflection.{version}.ServerReflection/ServerReflectionInfo",
        request_serializer=reflection_pb2.ServerReflectionRequest.SerializeToString,
        response_deserializer=reflection_pb2.ServerReflectionResponse.FromString,
    )
    return list(call(iter(requests), timeout=20))


def _request(**kind: Any) -> reflection_pb2.ServerReflectionRequest:
    return reflection_pb2.ServerReflectionRequest(**kind)


@pytest.mark.parametrize("version", _VERSIONS)
def test_services_are_listed(channel: grpc.Channel, version: str) -> None:
    """All that are served, and themselves."""
    (answer,) = _ask(channel, version, _request(host="h", list_services="*"))

    names = [service.name for service in answer.list_services_response.service]
    assert names == [
        "grpc.health.v1.Health",
        "grpc.reflection.v1.ServerReflection",
        "grpc.reflection.v1alpha.ServerReflection",
        "inference.GRPCInferenceService",
        "reactant_control.ControlService",
    ]
    assert (answer.valid_host, answer.original_request.list_services) == ("h", "*")


@pytest.mark.parametrize("version", _VERSIONS)
@pytest.mark.parametrize(
    ("symbol", "package"),
    [
        ("inference.GRPCInferenceService", "inference"),
        ("inference.GRPCInferenceService.ModelInfer", "inference"),
        ("inference.ModelInferRequest.InferInputTensor", "inference"),
        ("grpc.health.v1.Health", "grpc.health.v1"),
        ("reactant_control.ControlService.SetModelPolicy", "reactant_control"),
        ("grpc.reflection.v1.ServerReflection", "grpc.reflection.v1"),
        ("grpc.reflection.v1alpha.ServerReflection", "grpc.reflection.v1alpha"),
    ],
)
def test_symbols_are_found_in_their_files(
    channel: grpc.Channel, version: str, symbol: str, package: str
) -> None:
    """Services, methods and messages; the file is complete by itself."""
    (answer,) = _ask(channel, version, _request(file_containing_symbol=symbol))

    (data,) = answer.file_descriptor_response.file_descriptor_proto
    file = descriptor_pb2.FileDescriptorProto.FromString(data)
    assert (file.package, list(file.dependency)) == (package, [])
    (again,) = _ask(channel, version, _request(file_by_filename=file.name))
    assert list(again.file_descriptor_response.file_descriptor_proto) == [data]


@pytest.mark.parametrize(
    "request_",
    [
        _request(file_containing_symbol="inference.Nope"),
        _request(file_by_filename="nope.proto"),
        _request(all_extension_numbers_of_type="inference.Nope"),
        _request(
            file_containing_extension=reflection_pb2.ExtensionRequest(
                containing_type="inference.ModelConfig", extension_number=1
            )
        ),
    ],
)
def test_what_is_not_known_is_an_error_in_the_answer(
    channel: grpc.Channel, request_: reflection_pb2.ServerReflectionRequest
) -> None:
    """The stream goes on: the next question is answered."""
    bad, good = _ask(channel, "v1", request_, _request(list_services=""))

    assert bad.error_response.error_code == grpc.StatusCode.NOT_FOUND.value[0]
    assert good.list_services_response.service


def test_empty_question_is_an_error_in_the_answer(channel: grpc.Channel) -> None:
    """It asks for nothing that we know."""
    (answer,) = _ask(channel, "v1", _request())

    assert answer.error_response.error_code == grpc.StatusCode.INVALID_ARGUMENT.value[0]


def test_messages_have_no_extensions(channel: grpc.Channel) -> None:
    """Proto3 has none."""
    (answer,) = _ask(channel, "v1", _request(all_extension_numbers_of_type="inference.ModelConfig"))

    numbers = answer.all_extension_numbers_response
    assert (numbers.base_type_name, list(numbers.extension_number)) == ("inference.ModelConfig", [])


def test_many_questions_on_one_stream_are_answered_in_order(channel: grpc.Channel) -> None:
    """A thousand, while the caller reads: 30 MB of answers through bounded memory."""
    symbols = ["inference.ModelConfig", "grpc.health.v1.Health"] * 500
    answers = _ask(channel, "v1", *(_request(file_containing_symbol=s) for s in symbols))

    assert symbols == [answer.original_request.file_containing_symbol for answer in answers]


def test_a_call_can_be_made_from_reflection_alone(channel: grpc.Channel) -> None:
    """What grpcurl does: learn the service, its messages, and call."""
    database = ProtoReflectionDescriptorDatabase(channel)
    pool = DescriptorPool(database)
    method = pool.FindServiceByName("inference.GRPCInferenceService").FindMethodByName(
        "ModelMetadata"
    )
    request = GetMessageClass(method.input_type)(name="f32")
    answer = channel.unary_unary(
        f"/{method.containing_service.full_name}/{method.name}",
        request_serializer=lambda message: message.SerializeToString(),
        response_deserializer=GetMessageClass(method.output_type).FromString,
    )(request, timeout=20)

    assert "inference.GRPCInferenceService" in database.get_services()
    assert [tensor.name for tensor in answer.inputs] == ["x"]
