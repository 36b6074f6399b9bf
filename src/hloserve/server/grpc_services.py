"""All gRPC services of a worker in one table: inference, control, health, reflection.

What lives here: putting their methods together. What does not: the services. Loop thread.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from hloserve.core.clock import Clock
from hloserve.models.registry import Registry
from hloserve.server.catalog import Catalog
from hloserve.server.control_grpc import control_methods
from hloserve.server.grpc_call import Handler
from hloserve.server.grpc_service import GrpcInferenceService
from hloserve.server.grpc_stream import StreamHandler
from hloserve.server.health import HealthService
from hloserve.server.inference import InferenceService
from hloserve.server.operations import Operations
from hloserve.server.reflection import ReflectionService
from hloserve.server.repository_control import RepositoryControl
from hloserve.wire.control_protobuf import CONTROL_SERVICE

__all__ = ["GrpcServices", "build_grpc_services"]

_INFERENCE = "inference.GRPCInferenceService"
_HEALTH = "grpc.health.v1.Health"


@dataclass(frozen=True, slots=True)
class GrpcServices:
    """What the gRPC port serves.

    Attributes:
        methods: handlers of unary methods by full path.
        streams: handlers of streaming methods by full path.
    """

    methods: Mapping[str, Handler]
    streams: Mapping[str, StreamHandler]


def build_grpc_services(
    service: InferenceService,
    catalog: Catalog,
    control: RepositoryControl,
    operations: Operations,
    clock: Clock,
    registry: Registry,
) -> GrpcServices:
    """Put the services together; whoever watches health is told when `registry` changes."""
    inference = GrpcInferenceService(service, catalog, control, operations, clock)
    names = (_INFERENCE, CONTROL_SERVICE, _HEALTH)
    health = HealthService(catalog, names)
    reflection = ReflectionService(names)
    registry.watch(health.changed)
    return GrpcServices(
        {**inference.methods(), **control_methods(operations.control), **health.methods()},
        {**inference.streams(), **health.streams(), **reflection.streams()},
    )
