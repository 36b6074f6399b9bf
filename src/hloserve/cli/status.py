"""`hloserve status`: what a running server serves.

The work is `hloserve.client`. Main thread.
"""

from typing import TYPE_CHECKING, Any, Protocol

import click

from hloserve.cli.connecting import connection_options, open_client
from hloserve.cli.printing import print_json, print_table, safe
from hloserve.core.errors import HloserveError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hloserve.core.model_reports import ModelReport
    from hloserve.core.requests import (
        ModelIndexEntry,
        ModelMetadata,
        ServerMetadata,
        TensorMetadata,
    )

__all__ = ["Server", "describe_server", "print_status", "status"]


class Server(Protocol):
    """The part of `hloserve.Client` that is asked here."""

    def server_metadata(self) -> "ServerMetadata": ...

    def is_server_live(self) -> bool: ...

    def is_server_ready(self) -> bool: ...

    def repository_index(self) -> "Sequence[ModelIndexEntry]": ...

    def model_metadata(self, model: str) -> "ModelMetadata": ...

    def model_statistics(self) -> "Sequence[ModelReport]": ...


@click.command()
@connection_options
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def status(url: str, as_json: bool, **connection: Any) -> int:
    """Print whether a server is ready, and what it serves.

    The exit status is 0 when the server is ready, and 1 when it is not or does not answer.

    \b
    Example:
      hloserve status --url grpcs://gpu1.example:8001 --token-file token
    """
    with open_client(url, timeout_s=10.0, **connection) as client:
        found = describe_server(client, url)
    if as_json:
        print_json(found)
    else:
        print_status(found)
    return 0 if found["ready"] else 1


def describe_server(client: Server, url: str) -> dict[str, Any]:
    """What the server says about itself and its models, as JSON values."""
    server = client.server_metadata()
    counts = _counts(client)
    return {
        "url": url,
        "name": server.name,
        "version": server.version,
        "extensions": list(server.extensions),
        "live": client.is_server_live(),
        "ready": client.is_server_ready(),
        "models": [
            {
                "name": entry.name,
                "version": entry.version,
                "state": entry.state.index_text,
                "reason": entry.reason,
                **_describe_model(client, entry.name),
                **counts.get(entry.name, {}),
            }
            for entry in client.repository_index()
        ],
    }


def _counts(client: Server) -> dict[str, dict[str, int]]:
    """What each model has done; nothing of a server that does not tell."""
    try:
        reports = client.model_statistics()
    except HloserveError:
        return {}
    return {
        report.name: {
            "requests_served": report.success.count,
            "requests_failed": report.fail.count,
            "rows_served": report.inference_count,
            "executions": report.execution_count,
        }
        for report in reports
    }


def _describe_model(client: Server, model: str) -> dict[str, Any]:
    try:
        metadata = client.model_metadata(model)
    except HloserveError:  # not loaded, or gone since the index was read
        return {"inputs": [], "outputs": [], "batch_sizes": []}
    return {
        "inputs": [_describe_tensor(tensor) for tensor in metadata.inputs],
        "outputs": [_describe_tensor(tensor) for tensor in metadata.outputs],
        "batch_sizes": list(metadata.batch_sizes),
    }


def _describe_tensor(tensor: "TensorMetadata") -> dict[str, Any]:
    return {"name": tensor.name, "datatype": tensor.datatype, "shape": list(tensor.shape)}


def print_status(found: dict[str, Any]) -> None:
    """Print what `describe_server` found, a line per model."""
    state = "ready" if found["ready"] else "live, not ready" if found["live"] else "not live"
    click.echo(f"{safe(found['name'])} {safe(found['version'])} at {safe(found['url'])}: {state}")
    rows = []
    for model in found["models"]:
        tensors = [_tensors(model[side]) for side in ("inputs", "outputs")]
        sizes = ",".join(map(str, model["batch_sizes"])) or "-"
        counts = [
            str(model.get(key, "-"))
            for key in ("requests_served", "requests_failed", "rows_served")
        ]
        rows.append(
            (model["name"], model["state"], *tensors, sizes, *counts, model["reason"] or "-")
        )
    if not rows:
        click.echo("no models")
    heads = ("MODEL", "STATE", "INPUTS", "OUTPUTS", "BATCHES", "SERVED", "FAILED", "ROWS", "REASON")
    print_table(heads, rows)


def _tensors(tensors: list[dict[str, Any]]) -> str:
    """Tensors on one line; -1, an open axis, is a question mark."""
    shown = (
        f"{t['name']} {t['datatype']}({', '.join('?' if e < 0 else str(e) for e in t['shape'])})"
        for t in tensors
    )
    return ", ".join(shown) or "-"
