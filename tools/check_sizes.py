"""Report files over 400 lines and functions over 60: `python tools/check_sizes.py [DIRECTORY...]`.

A long file has two subjects and a long function two steps. Docstrings of functions and generated
code do not count. Tests mirror the modules, so they may be longer, in proportion. A file that is
better whole says so on one of its first lines: ``# size: REASON``.
"""

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

FILE_LINES, TEST_FILE_LINES, FUNCTION_LINES = 400, 600, 60
GENERATED = ("_pb2.py", "_pb2.pyi")


def findings(file: Path) -> Iterator[str]:
    """What is too long in one file, one sentence each."""
    text = file.read_text(encoding="utf-8")
    lines = text.count("\n")
    most = TEST_FILE_LINES if file.name.startswith("test_") else FILE_LINES
    if lines > most and "# size: " not in "".join(text.splitlines(keepends=True)[:10]):
        yield f"{file}: {lines} lines, at most {most}"
    for node in ast.walk(ast.parse(text, str(file))):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = _lines(node) - (_lines(node.body[0]) if ast.get_docstring(node) else 0)
            if length > FUNCTION_LINES:
                where = f"{file}:{node.lineno}: {node.name}"
                yield f"{where} has {length} lines, at most {FUNCTION_LINES}"


def _lines(node: ast.stmt) -> int:
    return (node.end_lineno or node.lineno) - node.lineno + 1


def main(roots: list[str]) -> int:
    """Print every finding; 1 when there are any."""
    files = sorted(f for root in roots for f in Path(root).rglob("*.py"))
    found = [line for f in files if not f.name.endswith(GENERATED) for line in findings(f)]
    print("\n".join(found) or f"{len(files)} files within bounds")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:] or ["src", "tests", "tools", "benchmarks", "examples"]))
