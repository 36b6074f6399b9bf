"""Run by an old Python: `python run_program.py PROGRAM ARGUMENTS.npz RESULTS.npz`.

Loads a portable artifact with that version's StableHLO, runs it with that version's XLA and writes
the results. `ARGUMENTS.npz` holds the arguments in order, then under ``like_0``... arrays of the
results' types.
"""

import dataclasses
import sys
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax import export

jax.config.update("jax_enable_x64", True)
program, source, target = map(Path, sys.argv[1:])
with np.load(source) as file:
    arguments = [file[name] for name in file.files if name.startswith("argument_")]
    like = [file[name] for name in file.files if name.startswith("like_")]
types = [jax.ShapeDtypeStruct(a.shape, a.dtype) for a in arguments]
# A function of the same types, whose program is then exchanged: the way in that every version has.
stand_in = jax.jit(lambda *_: tuple(like), keep_unused=True)
exported = export.export(stand_in, platforms=["cpu"])(*types)
exchanged = dataclasses.replace(exported, mlir_module_serialized=program.read_bytes())
results = jax.jit(exchanged.call)(*arguments)
values: dict[str, Any] = {f"result_{n}": np.asarray(value) for n, value in enumerate(results)}
np.savez(target, **values)
