"""A V2 server as one writes it with grpcio: generated messages, NumPy, no checks.

It serves "look" (the first four numbers of x) and "same" (x), like `benchmarks.inline`'s bundles.
"""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import numpy as np

from hloserve.wire.protos import inference_pb2 as pb

_UNLIMITED = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]


def infer(request: Any, context: Any) -> Any:
    """Answer one request."""
    x = np.frombuffer(request.raw_input_contents[0], np.float32)
    y = x[:4] if request.model_name == "look" else x
    response = pb.ModelInferResponse(model_name=request.model_name, id=request.id)
    response.outputs.add(name="y", datatype="FP32", shape=[1, y.size])
    response.raw_output_contents.append(y.tobytes())
    return response


class Inference(grpc.GenericRpcHandler):  # type: ignore[misc]  # grpcio has no types
    """Serves ModelInfer under every name."""

    def service(self, handler_call_details: Any) -> Any:
        """One handler for all."""
        return grpc.unary_unary_rpc_method_handler(
            infer, pb.ModelInferRequest.FromString, pb.ModelInferResponse.SerializeToString
        )


def main() -> None:
    """Serve until killed."""
    server = grpc.server(ThreadPoolExecutor(8), handlers=[Inference()], options=_UNLIMITED)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    print(port, flush=True)
    server.wait_for_termination()


if __name__ == "__main__":
    main()
