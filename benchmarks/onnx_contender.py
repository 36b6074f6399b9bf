"""Run an ONNX model with onnxruntime, one batch per line of standard input.

Usage, by `benchmarks.programs`, in an environment that has onnxruntime and NumPy, no more::

    python onnx_contender.py MODEL.onnx INPUTS.npz OUTPUT.npy THREADS

Answers each line with the seconds that a run took. The output of the first run goes to the file.
"""

import sys
import time

import numpy as np
import onnxruntime  # type: ignore[import-not-found,import-untyped,unused-ignore]

__all__ = ["main"]


def main() -> None:
    """Load, run once, and then as often as asked."""
    model, inputs, output, threads = sys.argv[1:]
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = int(threads)
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    feed = dict(np.load(inputs))
    np.save(output, session.run(None, feed)[0])
    print(onnxruntime.__version__, flush=True)
    for _ in sys.stdin:
        started = time.perf_counter()
        session.run(None, feed)
        print(time.perf_counter() - started, flush=True)


if __name__ == "__main__":
    main()
