"""The transport alone: hloserve's gRPC transport with a method that returns its message."""

import asyncio

import uvloop

from hloserve.core.clock import SystemClock
from hloserve.server.grpc_transport import GrpcServer, Rpc
from hloserve.wire.grpc_limits import GrpcLimits


def echo(rpc: Rpc) -> None:
    """Return what came."""
    rpc.reply(rpc.message)


async def main() -> None:
    """Serve until killed."""
    server = GrpcServer(
        {"/inference.GRPCInferenceService/ModelInfer": echo}, GrpcLimits(), SystemClock()
    )
    _, port = await server.start("127.0.0.1", 0)
    print(port, flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    uvloop.run(main())
