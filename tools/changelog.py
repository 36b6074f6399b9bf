"""Changelog fragments: `python tools/changelog.py --check` or `python tools/changelog.py VERSION`.

A change that users notice adds ``changes/NNN.added.md`` (or changed, fixed, removed; NNN is the
issue), one sentence in the past tense. A release moves them all into `CHANGELOG.md`.
"""

import datetime
import re
import sys
from pathlib import Path

FRAGMENTS, CHANGELOG = Path("changes"), Path("CHANGELOG.md")
KINDS = ("added", "changed", "fixed", "removed")
NAME = re.compile(rf"\d+[a-z0-9-]*\.({'|'.join(KINDS)})\.md")
MARK = "<!-- releases -->"


def fragments() -> list[Path]:
    """The fragments in the order of their issues."""
    found = (f for f in FRAGMENTS.glob("*") if f.name != "README.md")
    return sorted(found, key=lambda f: (int((re.match(r"\d+", f.name) or ["0"])[0]), f.name))


def findings() -> list[str]:
    """What is wrong with the fragments, one sentence each."""
    wrong = []
    for file in fragments():
        if not NAME.fullmatch(file.name):
            wrong.append(f"{file}: the name must be like changes/12.added.md ({', '.join(KINDS)})")
        elif not file.read_text(encoding="utf-8").strip().endswith("."):
            wrong.append(f"{file}: write whole sentences")
    if MARK not in CHANGELOG.read_text(encoding="utf-8"):
        wrong.append(f"{CHANGELOG}: the line {MARK} is missing")
    return wrong


def release(version: str) -> None:
    """Move the fragments into the changelog under a heading for `version`."""
    date = datetime.datetime.now(tz=datetime.UTC).date()
    section = f"{MARK}\n\n## {version} ({date})\n"
    files = fragments()
    for kind in KINDS:
        lines = [f.read_text(encoding="utf-8").strip() for f in files if f".{kind}." in f.name]
        if lines:
            section += f"\n### {kind.capitalize()}\n\n" + "".join(f"- {line}\n" for line in lines)
    text = CHANGELOG.read_text(encoding="utf-8")
    CHANGELOG.write_text(text.replace(MARK, section.rstrip("\n"), 1), encoding="utf-8")
    for file in files:
        file.unlink()


def main(arguments: list[str]) -> int:
    """Check the fragments, or release them; the exit status."""
    wrong = findings()
    if wrong:
        print("\n".join(wrong))
        return 1
    if arguments == ["--check"]:
        print(f"{len(fragments())} changes wait for a release")
    elif len(arguments) == 1 and re.fullmatch(r"\d+\.\d+\.\d+\w*", arguments[0]):
        release(arguments[0])
    else:
        print(__doc__, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
