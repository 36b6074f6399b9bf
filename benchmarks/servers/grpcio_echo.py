"""The usual way in Python: grpcio's synchronous server with the same echo."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc


class Echo(grpc.GenericRpcHandler):  # type: ignore[misc]  # grpcio has no types
    """Answers every method with its message, as bytes."""

    def service(self, handler_call_details: Any) -> Any:
        """One handler for all."""
        return grpc.unary_unary_rpc_method_handler(lambda message, _: message)


def main() -> None:
    """Serve until killed."""
    unlimited = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
    server = grpc.server(ThreadPoolExecutor(8), handlers=[Echo()], options=unlimited)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    print(port, flush=True)
    server.wait_for_termination()


if __name__ == "__main__":
    main()
