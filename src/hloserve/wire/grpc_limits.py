"""The limits of one gRPC connection, with the reason for each number.

Plain data, read by `hloserve.wire.http2` and `hloserve.server.grpc_transport`; any thread.
"""

from dataclasses import dataclass

__all__ = ["GrpcLimits"]

_KIB, _MIB = 1 << 10, 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class GrpcLimits:
    """What a peer may make this side hold or do.

    Windows are credit, not memory: nothing is allocated for them. What a connection can make the
    server hold is `max_partial_bytes` of unfinished requests, plus the requests in the service's
    hands, plus `max_unsent_bytes` and the replies that were in the making when that was reached.

    Attributes:
        max_recv_msg_bytes: one message, after decompression. Enforced at the length prefix.
        max_send_msg_bytes: one message of ours.
        max_concurrent_streams: open requests of one connection; the peer queues the rest itself.
        stream_window_bytes: a request body up to here needs no round trip for credit.
        connection_window_bytes: the same for all bodies of a connection together.
        max_frame_bytes: one DATA frame. Larger frames cost fewer events; 1 MiB is where it stops
            paying.
        max_header_bytes: the headers of one request, as HTTP/2 counts them (gRPC's own default is
            8 KiB, its hard limit 16 KiB).
        max_header_fields: fields of one header block.
        max_partial_bytes: bytes of unfinished requests that a connection may hold.
        max_unsent_bytes: bytes of replies that the peer does not take; requests that come while it
            is exceeded are refused.
        frame_allowance: frames that carry no work (PING, SETTINGS, WINDOW_UPDATE, RST_STREAM, empty
            DATA) that a peer may send in one period; `replenish` starts the next. Requests
            add to it.
    """

    max_recv_msg_bytes: int = 512 * _MIB
    max_send_msg_bytes: int = 512 * _MIB
    max_concurrent_streams: int = 1024
    stream_window_bytes: int = 16 * _MIB
    connection_window_bytes: int = 32 * _MIB
    max_frame_bytes: int = 1 * _MIB
    max_header_bytes: int = 16 * _KIB
    max_header_fields: int = 128
    max_partial_bytes: int = 1024 * _MIB
    max_unsent_bytes: int = 64 * _MIB
    frame_allowance: int = 32_768
