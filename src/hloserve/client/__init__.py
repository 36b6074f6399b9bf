"""Talk to a server: the blocking client."""

from hloserve.client.blocking import Client
from hloserve.client.shared_memory import SharedArray, SharedMemory
from hloserve.client.streaming import InferStream, StreamResult

__all__ = ["Client", "InferStream", "SharedArray", "SharedMemory", "StreamResult"]
