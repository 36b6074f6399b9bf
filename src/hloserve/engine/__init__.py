"""One device: backend, programs, weights, queues, dispatch."""
