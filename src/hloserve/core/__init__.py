"""Vocabulary shared by every room: dtypes, tensors, requests, errors, clock, tickets.

Nothing here does I/O, starts a thread or imports another room.
"""
