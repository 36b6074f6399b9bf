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

    from hloserve.core.model_control import ControlStatus
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

    @property
    def control(self) -> "Control": ...


class Control(Protocol):
    """The part of its control calls that is asked here."""

    def status(self) -> "ControlStatus": ...


@click.command()
@connection_options
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def status(url: str, as_json: bool, **connection: Any) -> int:
    """Print whether a server is ready, what it serves, and what is on its device.

    The exit status is 0 when the server is ready, and 1 when it is not or does not answer.

    \b
    Of each model that is loaded, a second table has
      SIZE        of its weights
      FLOOR       what is kept of them: device, system (the host's memory), unpinned (nothing)
      RESIDENT    where they are now
      WEIGHT      its share of the device, beside the others' (hloserve weight)
      QUEUED      requests that wait
      EXECUTIONS  batches that ran, with their ROWS, and the padding beside these
      COMPUTE     seconds of the device

    \b
    Examples:
      hloserve status
      hloserve status --url grpcs://gpu1.example:8001 --token-file token
      hloserve status --json | jq '.models[] | select(.on_device) | .name'
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
    device, on_device = _device(client)
    return {
        "url": url,
        "name": server.name,
        "version": server.version,
        "extensions": list(server.extensions),
        "live": client.is_server_live(),
        "ready": client.is_server_ready(),
        "device": device,
        "models": [
            {
                "name": entry.name,
                "version": entry.version,
                "state": entry.state.index_text,
                "reason": entry.reason,
                **_describe_model(client, entry.name),
                **counts.get(entry.name, {}),
                **on_device.get(entry.name, {}),
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


def _device(client: Server) -> tuple[dict[str, Any] | None, dict[str, dict[str, Any]]]:
    """The device, and what each model has there; nothing of a server that does not tell."""
    try:
        status = client.control.status()
    except HloserveError:
        return None, {}
    device = {
        "discipline": status.discipline,
        "residency_mode": status.residency_mode,
        "has_weight_cache": status.has_weight_cache,
        "weights_max_bytes": status.max_bytes,
        "weights_resident_bytes": status.resident_bytes,
        "weights_pinned_bytes": status.pinned_bytes,
        "scratch_bytes": status.scratch_bytes,
        "weight_loads": status.loads,
        "weight_loaded_bytes": status.loaded_bytes,
        "weight_load_seconds": status.load_seconds,
        "weight_evictions": status.evictions,
        "weight_hits": status.hits,
        "compactions": status.compactions,
    }
    return device, {
        model.name: {
            "weight_bytes": model.weight_bytes,
            "floor": model.floor.value,
            "on_device": model.is_on_device,
            "on_host": model.is_on_host,
            "weight": model.weight,
            "queue_depth": model.queue_depth,
            "compute_seconds": model.compute_seconds,
            "executions": model.dispatch_count,
            "rows_served": model.rows_served,
            "padded_rows": model.padded_rows,
            "requests_expired": model.requests_expired,
        }
        for model in status.models
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
    if found["device"] is not None:
        _print_device(found["device"], [m for m in found["models"] if "floor" in m])


def _print_device(device: dict[str, Any], models: list[dict[str, Any]]) -> None:
    from hloserve.core.units import format_bytes

    click.echo(f"\ndevice: {safe(device['discipline'])}, {_weights(device)}")
    heads = (
        "MODEL", "SIZE", "FLOOR", "RESIDENT", "WEIGHT", "QUEUED", "EXECUTIONS", "ROWS", "PADDING",
        "COMPUTE",
    )  # fmt: skip
    places = ("on_device", "device"), ("on_host", "host")
    rows = [
        (
            model["name"],
            format_bytes(model["weight_bytes"]),
            model["floor"],
            ", ".join(place for key, place in places if model[key]) or "no",
            f"{model['weight']:g}",
            model["queue_depth"],
            model["executions"],
            model["rows_served"],
            max(model["padded_rows"] - model["rows_served"], 0),
            f"{model['compute_seconds']:.3f} s",
        )
        for model in models
    ]
    print_table(heads, rows)


def _weights(device: dict[str, Any]) -> str:
    """Where weights are, in a line."""
    from hloserve.core.units import format_bytes

    if not device["has_weight_cache"]:
        return "all weights are on it"
    names = ("weights_resident_bytes", "weights_max_bytes", "weights_pinned_bytes")
    resident, most, pinned = (format_bytes(device[name]) for name in names)
    return (
        f"{safe(device['residency_mode'])}, {resident} of {most} of weights that come and go,"
        f" {pinned} pinned; loads: {device['weight_loads']}, waited for"
        f" {device['weight_load_seconds']:.3f} s; evictions: {device['weight_evictions']},"
        f" hits: {device['weight_hits']}"
    )


def _tensors(tensors: list[dict[str, Any]]) -> str:
    """Tensors on one line; -1, an open axis, is a question mark."""
    shown = (
        f"{t['name']} {t['datatype']}({', '.join('?' if e < 0 else str(e) for e in t['shape'])})"
        for t in tensors
    )
    return ", ".join(shown) or "-"
