"""The garbage collector of a worker process."""

import gc
import sys

__all__ = ["spare_the_collector"]


def spare_the_collector() -> None:
    """Take what start-up made out of the garbage collector's rounds, and have fewer of them.

    Importing jax leaves some 300,000 objects that live for ever. A request makes a dozen that die
    by reference count; without this, every few dozen requests pay for looking at all of them.
    """
    gc.collect()
    sys.setswitchinterval(0.0005)
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)
