"""`hloserve demo`: serve the bundle that the package brings, and show how to ask it.

What lives here: the text that the terminal shows, the page at `/demo`, and `run`. What does not:
the server (`hloserve.server.serving`), the bundle's making (`examples/digits`) and the command's
flags (`hloserve.cli.demo`). Called on the main thread; `run`'s announcement is made on the loop
thread, once.
"""

import json
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path

from hloserve.config import LoadedConfig, WorkerConfig
from hloserve.server.listeners import Addresses
from hloserve.server.serving import serve

__all__ = [
    "DEMO_PATH",
    "Sample",
    "announcement",
    "curl_line",
    "draw",
    "load_samples",
    "python_line",
    "run",
    "what_else_is_needed",
]

DEMO_PATH = "/demo"
"""Where the REST port shows the page."""

_MODEL = "digits"
_SHOWN_LABEL = 3
_FULL_INK = 16
_SHADES, _PLAIN_SHADES = " ░▒▓█", " .:+#"


@dataclass(frozen=True, slots=True)
class Sample:
    """A digit that the model was not trained on.

    Attributes:
        label: which digit it is.
        image: 8 rows of 8 pixels, 0 (paper) to 16 (ink).
    """

    label: int
    image: Sequence[Sequence[int]]


def run(loaded: LoadedConfig, *, ports_file: Path | None, show_progress: bool) -> int:
    """Serve until told to stop; print how to ask the model once it can answer.

    Args:
        loaded: settings whose `model_dirs` is the package's demo repository.
        ports_file: gets the ports once all listen.
        show_progress: draw progress while the model loads.

    Returns:
        The exit status.
    """
    shown = next(sample for sample in load_samples() if sample.label == _SHOWN_LABEL)
    shades = _SHADES if _can_write(_SHADES) else _PLAIN_SHADES

    def announce(addresses: Addresses) -> None:
        sys.stdout.write(announcement(addresses, shown, python=sys.executable, shades=shades))
        sys.stdout.write(what_else_is_needed(loaded.config))
        sys.stdout.flush()

    with resources.as_file(_package_files() / "server" / "pages" / "demo.html") as page:
        return serve(
            loaded,
            ports_file=ports_file,
            show_progress=show_progress,
            on_ready=announce,
            pages={DEMO_PATH: page},
        )


def load_samples() -> tuple[Sample, ...]:
    """Read the samples that the package brings, one per digit."""
    text = (_package_files() / "demo_repository" / "samples.json").read_text("utf-8")
    return tuple(Sample(entry["label"], entry["image"]) for entry in json.loads(text))


def announcement(addresses: Addresses, sample: Sample, *, python: str, shades: str) -> str:
    """What the terminal shows once the model can answer.

    Args:
        addresses: where the server listens.
        sample: the digit that the lines ask about.
        python: an interpreter that has hloserve.
        shades: characters from paper to ink.
    """
    here = replace(
        addresses,
        http=_reachable(*addresses.http),
        grpc=_reachable(*addresses.grpc),
        admin=_reachable(*addresses.admin),
    ).urls
    facts = (
        "",
        f"hloserve serves the model {_MODEL!r}.",
        "",
        f"page   {here['rest']}{DEMO_PATH}",
        f"REST   {here['rest']}",
        f"gRPC   {here['grpc']}",
        f"admin  {here['admin']}/metrics",
        "",
    )
    picture = draw(sample, shades)
    beside = (f"  {left}   {right}".rstrip() for left, right in zip(picture, facts, strict=True))
    return "\n".join(
        (
            "",
            *beside,
            "",
            f"This is a {sample.label} that the model was not trained on. Ask what it is:",
            "",
            curl_line(here["rest"], sample),
            "",
            python_line(here["grpc"], sample, python=python),
            "",
            f"The first answers with all probabilities and digit {sample.label},"
            f" the second prints {sample.label}. Ctrl-C ends the server.",
            "",
            "",
        )
    )


def what_else_is_needed(config: WorkerConfig) -> str:
    """What the printed lines lack where the server is guarded; a token is not printed."""
    lines = ""
    if config.access.tokens_file:
        lines += (
            "Calls need a token: add -H 'Authorization: Bearer TOKEN' to the first line, token=..."
            " to the second.\n\n"
        )
    if config.tls.certificate:
        lines += (
            "The certificate must be trusted: add --cacert FILE to the first line,"
            " tls=ssl.create_default_context(cafile=...) to the second.\n\n"
        )
    return lines


def draw(sample: Sample, shades: str) -> tuple[str, ...]:
    """The image as lines of text, two characters per pixel."""
    top = len(shades) - 1
    return tuple(
        "".join(shades[round(pixel * top / _FULL_INK)] * 2 for pixel in row) for row in sample.image
    )


def curl_line(url: str, sample: Sample) -> str:
    """A shell command that asks over REST."""
    tensor = {
        "name": "image",
        "datatype": "UINT8",
        "shape": [1, len(sample.image), len(sample.image[0])],
        "data": [pixel for row in sample.image for pixel in row],
    }
    body = json.dumps({"inputs": [tensor]}, separators=(",", ":"))
    return f"curl -s {url}/v2/models/{_MODEL}/infer -d {shlex.quote(body)}"


def python_line(grpc: str, sample: Sample, *, python: str) -> str:
    """A shell command that asks over gRPC with this package's client."""
    pixels = json.dumps([sample.image], separators=(",", ":"))
    program = (
        f"import hloserve, numpy as np; image = np.uint8({pixels});"
        f' print(hloserve.Client("{grpc}").infer("{_MODEL}", {{"image": image}})["digit"][0])'
    )
    return f"{shlex.quote(python)} -c {shlex.quote(program)}"


def _reachable(host: str, port: int) -> tuple[str, int]:
    """An address that a client on this machine can use."""
    return {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host), port


def _can_write(characters: str) -> bool:
    try:
        characters.encode(sys.stdout.encoding or "ascii")
    except UnicodeEncodeError:
        return False
    return True


def _package_files() -> Traversable:
    return resources.files("hloserve")
