"""Generate the protobuf code of `src/hloserve/wire/protos`, or check that it is current.

    python tools/make_protos.py            # write
    python tools/make_protos.py --check    # exit status 1 when the checked-in files differ

protoc's Python output registers in the process-wide default pool, where tritonclient and kserve
already own the same names; the generated modules are rewritten to use our private pool.
"""

import argparse
import sys
import tempfile
from pathlib import Path

PROTOS = Path(__file__).resolve().parent.parent / "src" / "hloserve" / "wire" / "protos"

PACKAGE = "hloserve.wire.protos"


def generate(source: Path) -> dict[str, str]:
    """Run protoc on one .proto file; file name to text."""
    from grpc_tools import protoc  # type: ignore[import-untyped]  # it has no stubs

    with tempfile.TemporaryDirectory() as out:
        status = protoc.main(
            ["protoc", f"-I{source.parent}", f"--python_out={out}", f"--pyi_out={out}", source.name]
        )
        if status != 0:
            raise SystemExit(f"protoc failed on {source} with status {status}")
        texts = {path.name: path.read_text() for path in Path(out).iterdir()}
    return {name: rewrite(name, text) for name, text in texts.items()}


def rewrite(name: str, text: str) -> str:
    """Point a generated module at the private pool; spare a stub the strict type checks."""
    if name.endswith(".pyi"):
        return "# mypy: disable-error-code=type-arg\n" + text
    module = name.removesuffix(".py")
    for theirs, ours in (
        (
            "from google.protobuf import descriptor_pool as _descriptor_pool\n",
            f"from {PACKAGE} import POOL as _POOL\n",
        ),
        ("_descriptor_pool.Default()", "_POOL"),
        # protoc runs in the directory of the files and does not know the package
        (f"(DESCRIPTOR, '{module}', _globals)", f"(DESCRIPTOR, '{PACKAGE}.{module}', _globals)"),
    ):
        if text.count(theirs) != 1:
            raise SystemExit(f"{name}: expected {theirs!r} once; did protoc's output change?")
        text = text.replace(theirs, ours)
    return text


def main(arguments: list[str] | None = None) -> int:
    """Write the files, or say which are not current."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--check", action="store_true", help="write nothing; fail on a difference")
    parser.add_argument("--protos", type=Path, default=PROTOS, help="the directory of .proto files")
    options = parser.parse_args(arguments)
    stale = []
    for source in sorted(options.protos.glob("*.proto")):
        for name, text in generate(source).items():
            path = options.protos / name
            if path.exists() and path.read_text() == text:
                continue
            stale.append(path)
            if not options.check:
                path.write_text(text)
    for path in stale:
        print(f"{path}: not current; run `make protos`" if options.check else f"wrote {path}")
    return 1 if options.check and stale else 0


if __name__ == "__main__":
    sys.exit(main())
