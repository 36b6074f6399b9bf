"""One worker process: inference service, transports, metrics, lifecycle."""
