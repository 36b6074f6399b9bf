"""Talk to a server: the blocking client."""

from hloserve.client.blocking import Client
from hloserve.client.shared_memory import SharedArray, SharedMemory

__all__ = ["Client", "SharedArray", "SharedMemory"]
