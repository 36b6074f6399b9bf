"""Talk to a server: the blocking client."""

from hloserve.client.blocking import Client

__all__ = ["Client"]
