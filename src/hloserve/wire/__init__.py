"""Bytes: V2 protobuf and JSON codecs, gRPC over HTTP/2, HTTP/1.1, statuses."""
