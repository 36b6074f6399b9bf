"""Runs the fuzz targets, each in a process of its own: `make fuzz`."""

import argparse
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
HOME = ROOT / ".fuzz"
ATHERIS = "atheris==3.0.0"
TARGETS = (
    "protobuf", "json", "answers", "http1", "http2",
    "frames", "messages", "shared-memory", "safetensors", "manifest",
)  # fmt: skip


def main() -> int:
    """Parse the command line; install, run, and say what was found."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("target", nargs="?", choices=TARGETS)
    parser.add_argument("inputs", nargs="*", type=Path, help="run these once, and fuzz nothing")
    parser.add_argument("--seconds", type=int, default=60)
    options = parser.parse_args()
    if not (HOME / "atheris").exists():
        install = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target"]
        subprocess.run([*install, HOME / "atheris", ATHERIS], check=True)
    targets = [options.target] if options.target else TARGETS
    failed = [target for target in targets if not _run(target, options.inputs, options.seconds)]
    for target in failed:
        print(f"{target}: the input that failed is in .fuzz/{target}/", file=sys.stderr)
    return 1 if failed else 0


def _run(target: str, inputs: list[Path], seconds: int) -> bool:
    corpus = HOME / target / "corpus"
    corpus.mkdir(parents=True, exist_ok=True)
    work = [str(path.resolve()) for path in inputs] or [str(corpus), f"-max_total_time={seconds}"]
    limits = ["-timeout=5", "-rss_limit_mb=2048", "-max_len=4096", "-print_final_stats=1"]
    program = str(Path(__file__).with_name("targets.py"))
    command = [sys.executable, program, target, *work, *limits]
    print(f"--- {target}", flush=True)
    paths = f"{HOME / 'atheris'}:{ROOT / 'src'}:{ROOT / 'tests'}"
    environment = {"PYTHONPATH": paths, "PATH": ""}
    return subprocess.run(command, env=environment, cwd=corpus.parent, check=False).returncode == 0


if __name__ == "__main__":
    sys.exit(main())
