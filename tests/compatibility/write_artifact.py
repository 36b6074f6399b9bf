"""Run by an old Python: `python write_artifact.py DIRECTORY`.

Writes what that version's `jax.export` makes of the reference model, and what it computes.
"""

import sys
from pathlib import Path
from typing import Any

import jax
import numpy as np

directory = Path(sys.argv[1])
# Not imported: artifacts hold the paths of source files, and these are to be the same everywhere.
source = Path(__file__).with_name("reference_model.py").read_text()
model: dict[str, Any] = {"__name__": "reference_model"}
exec(compile(source, "reference_model.py", "exec"), model)
jax.config.update("jax_traceback_in_locations_limit", 1)
predict, arguments = model["predict"], model["example"]()
exported = model["export_model"]()
results = jax.jit(predict)(*arguments)
directory.mkdir(parents=True, exist_ok=True)
(directory / "program.mlir").write_bytes(exported.mlir_module_serialized)
values: dict[str, Any] = {f"argument_{number}": value for number, value in enumerate(arguments)}
values |= {f"result_{number}": np.asarray(value) for number, value in enumerate(results)}
np.savez(directory / "values.npz", **values)
