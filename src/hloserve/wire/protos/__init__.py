"""Protocol definitions and the code generated from them; do not edit `*_pb2.py*`.

What lives here: the V2 service, health checking and reflection, and what `tools/make_protos.py`
makes of them. The generated modules register in `POOL`, a private descriptor pool: tritonclient and
kserve each register the same full names (`inference.ModelInferRequest`, ...) in protobuf's default
pool, and a process that uses either may use us too. Only `hloserve.wire` uses the messages.
"""

from google.protobuf.descriptor_pool import DescriptorPool

__all__ = ["POOL"]

POOL = DescriptorPool()
