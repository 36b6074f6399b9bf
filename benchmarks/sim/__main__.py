"""Traffic against disciplines, batch planning and residency, on a clock: the pictures of the pages.

    python -m benchmarks.sim                        all scenarios, pictures into docs/pictures
    python -m benchmarks.sim hits --seed 7 --out /tmp/pictures
    python -m benchmarks.sim --trace FILE --models FILE [--budget BYTES]

The real scheduler, disciplines, batch planning and choice of evictions run on a clock that moves by
what a table says a batch or a load takes; so the same seed gives the same figures on any machine.
"""

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.sim.drawing import save, style
from benchmarks.sim.replaying import read_models, replayed
from benchmarks.sim.scenarios import SCENARIOS, rounded
from benchmarks.sim.traces import read_trace

__all__ = ["main"]


def _run(names: list[str], seed: int, out: Path, kind: str, figures: Path) -> None:
    found: dict[str, Any] = {}
    for name in names:
        scenario = SCENARIOS[name]
        began = time.perf_counter()
        found[name] = rounded(scenario.simulate(seed))
        path = out / f"{name}.{kind}"
        with style():
            save(scenario.draw(found[name]), path)
        took_s = time.perf_counter() - began
        print(f"{name:12s} {took_s:5.1f} s, {path.stat().st_size / 1000:5.1f} kB  {path}")
    figures.parent.mkdir(parents=True, exist_ok=True)
    figures.write_text(json.dumps(found, indent=2) + "\n")
    print(f"figures written to {figures}")


def _replay(trace: Path, models: Path, budget_bytes: int | None) -> None:
    found = replayed(read_trace(trace), read_models(models), budget_bytes)
    for kind, values in found.items():
        hits = values["hit_fraction"]
        told = "" if hits is None else f"; hits {hits:.1%}, {values['load_s']:.2f} s of loading"
        print(f"{kind}{told}")
        for name, each in values["models"].items():
            print(
                f"  {name:24s} share {each['share']:6.1%}  p50 {each['p50_s'] * 1e3:9.2f} ms"
                f"  p99 {each['p99_s'] * 1e3:9.2f} ms  in time {each['in_time']:7.2%}"
            )


def main(arguments: list[str] | None = None) -> int:
    """Run what is asked for; 2 when a file does not say what it should."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.sim",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("scenario", nargs="*", help=f"of {', '.join(SCENARIOS)}; all by default")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("docs/pictures"))
    parser.add_argument("--kind", choices=("svg", "png"), default="svg", help="of the pictures")
    parser.add_argument("--figures", type=Path, default=Path(".benchmarks/sim.json"))
    parser.add_argument("--trace", type=Path, help="recorded requests, replayed instead")
    parser.add_argument("--models", type=Path, help="of the trace: costs, weights and bytes")
    parser.add_argument("--budget", type=int, help="bytes of weights that fit, for a trace")
    options = parser.parse_args(arguments)
    unknown = [name for name in options.scenario if name not in SCENARIOS]
    if unknown:
        parser.error(f"no scenario {unknown[0]!r}; there are {', '.join(SCENARIOS)}")
    if (options.trace is None) != (options.models is None):
        parser.error("--trace and --models belong together")
    try:
        if options.trace is not None:
            _replay(options.trace, options.models, options.budget)
        else:
            names = options.scenario or list(SCENARIOS)
            _run(names, options.seed, options.out, options.kind, options.figures)
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
