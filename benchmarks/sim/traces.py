"""Recorded requests: files that can be replayed.

What lives here: reading and writing them. What does not: serving what they say
(`benchmarks.sim.device`).

One request per line, in the order of time, either as CSV with a first line of names or as JSON::

    at_s,model,rows,timeout_s
    0.0125,search,1,0.2
    0.0180,embed,4,

    {"at_s": 0.0125, "model": "search", "rows": 1, "timeout_s": 0.2}

`at_s` counts from the beginning; `rows` is 1 and `timeout_s` none unless given. Empty lines are
passed over.
"""

import csv
import json
from collections.abc import Callable, Iterable, Mapping
from math import isfinite
from pathlib import Path
from typing import Any

from benchmarks.sim.traffic import Arrival

__all__ = ["TraceProblem", "read_trace", "write_trace"]

COLUMNS = ("at_s", "model", "rows", "timeout_s")


class TraceProblem(ValueError):
    """A line of a trace does not say what it should."""

    def __init__(self, source: str, line: int, reason: str) -> None:
        self.source, self.line, self.reason = source, line, reason
        super().__init__(f"{source}, line {line}: {reason}")


def read_trace(path: Path) -> list[Arrival]:
    """Read a trace; its first line tells which of the two kinds it is.

    Raises:
        TraceProblem: a line is wrong, or comes before the one above it in time; or there is none.
        OSError: the file cannot be read.
    """
    source = str(path)
    lines = [
        (number, line)
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if line.strip()
    ]
    parse: Callable[[str], Mapping[str, Any]] = _parse_json
    if lines and not lines[0][1].lstrip().startswith("{"):
        names = _split(lines[0][1])
        if not {"at_s", "model"} <= set(names) <= set(COLUMNS):
            told = f"expected names of {', '.join(COLUMNS)} or a JSON object, got {lines[0][1]!r}"
            raise TraceProblem(source, lines[0][0], told)
        parse = _csv_parser(names)
        del lines[0]
    if not lines:
        raise TraceProblem(source, 1, "expected requests, found none")
    arrivals: list[Arrival] = []
    for number, line in lines:
        try:
            arrival = _arrival(parse(line))
        except ValueError as error:
            raise TraceProblem(source, number, str(error)) from None
        if arrivals and arrival.at_ns < arrivals[-1].at_ns:
            raise TraceProblem(source, number, "comes before the request above it; sort by at_s")
        arrivals.append(arrival)
    return arrivals


def _split(line: str) -> list[str]:
    return [cell.strip() for cell in next(csv.reader([line]))]


def _csv_parser(names: list[str]) -> Callable[[str], Mapping[str, Any]]:
    def parse(line: str) -> Mapping[str, Any]:
        cells = _split(line)
        if len(cells) != len(names):
            raise ValueError(f"expected {len(names)} values, got {len(cells)}")
        return {name: cell for name, cell in zip(names, cells, strict=True) if cell}

    return parse


def _parse_json(line: str) -> Mapping[str, Any]:
    try:
        found = json.loads(line)
    except json.JSONDecodeError as error:
        raise ValueError(f"not JSON: {error}") from None
    if not isinstance(found, dict):
        raise ValueError(f"expected a JSON object, got {line.strip()!r}")
    unknown = sorted(set(found) - set(COLUMNS))
    if unknown:
        raise ValueError(f"{unknown[0]!r} is none of {', '.join(COLUMNS)}")
    return {name: value for name, value in found.items() if value is not None}


def _arrival(values: Mapping[str, Any]) -> Arrival:
    for name in ("at_s", "model"):
        if name not in values:
            raise ValueError(f"{name} is missing")
    model = values["model"]
    if not isinstance(model, str):
        raise ValueError(f"model is {model!r}, expected a name")
    at_s = _number(values, "at_s")
    if at_s < 0:
        raise ValueError(f"at_s is {at_s}, expected 0 or more")
    rows = _number(values, "rows") if "rows" in values else 1
    if rows < 1 or rows != int(rows):
        raise ValueError(f"rows is {values['rows']}, expected a whole number from 1 on")
    timeout_s = _number(values, "timeout_s") if "timeout_s" in values else None
    if timeout_s is not None and timeout_s <= 0:
        raise ValueError(f"timeout_s is {timeout_s}, expected more than 0")
    return Arrival(round(at_s * 1e9), model, int(rows), timeout_s)


def _number(values: Mapping[str, Any], name: str) -> float:
    value = values[name]
    try:
        if isinstance(value, bool):
            raise TypeError
        number = float(value)
    except (TypeError, ValueError):
        raise ValueError(f"{name} is {value!r}, expected a number") from None
    if not isfinite(number):
        raise ValueError(f"{name} is {value!r}, expected a number")
    return number


def write_trace(path: Path, arrivals: Iterable[Arrival]) -> None:
    """Write a trace as CSV."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(COLUMNS)
        for arrival in arrivals:
            timeout_s = "" if arrival.timeout_s is None else arrival.timeout_s
            writer.writerow([f"{arrival.at_ns * 1e-9:.9f}", arrival.model, arrival.rows, timeout_s])
