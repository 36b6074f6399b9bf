"""`hloserve pin`, `unpin`, `weight` and `compact`: operate the device of a running server.

The work is `hloserve.client`; what the server says is printed. Main thread.
"""

import math
from collections.abc import Callable
from typing import Any, TypeVar

import click

from hloserve.cli.connecting import connection_options, open_client, parse_timeout
from hloserve.cli.printing import safe
from hloserve.core.model_control import WEIGHT_RANGE, is_weight

__all__ = ["compact", "pin", "unpin", "weight"]

Decorated = TypeVar("Decorated", bound=Callable[..., Any])


def _options(command: Decorated) -> Decorated:
    """The way to the server, and how long it may take."""
    timeout = click.option(
        "--timeout",
        default="5m",
        show_default=True,
        metavar="TIME",
        help="How long to wait. What the server has begun, it ends.",
    )
    return connection_options(timeout(command))


@click.command()
@click.argument("model")
@click.option(
    "--to",
    "place",
    type=click.Choice(["device", "system"]),
    default="device",
    show_default=True,
    help="On the device, or in the memory of its host.",
)
@_options
def pin(model: str, place: str, timeout: str, **connection: Any) -> int:
    """Keep the weights of MODEL on the device, or in its host's memory.

    Done when they are there. Weights on the device are never evicted; a copy in the memory of the
    host makes loading them quick, and takes that memory. It holds until the model is unloaded.

    The server must run with a weight cache, and with runtime.residency_mode: external; otherwise it
    decides by itself, and scheduler.models.MODEL.residency in its configuration pins a model.

    \b
    Examples:
      hloserve pin resnet
      hloserve pin minilm --to system --url grpcs://gpu1.example:8001 --token-file admin-token
    """
    with open_client(timeout_s=parse_timeout(timeout), **connection) as client:
        floor = client.control.set_residency(model, place)
    where = {"device": "on the device", "system": "in the memory of the host"}
    click.echo(f"{safe(model)}: weights are kept {where.get(floor.value, floor.value)}")
    return 0


@click.command()
@click.argument("model")
@_options
def unpin(model: str, timeout: str, **connection: Any) -> int:
    """Keep nothing of the weights of MODEL: they may leave the device, and the host's memory.

    With runtime.residency_mode: external, requests to the model are answered UNAVAILABLE until it
    is pinned again.

    \b
    Example:
      hloserve unpin resnet --url gpu1.example:8001
    """
    with open_client(timeout_s=parse_timeout(timeout), **connection) as client:
        client.control.set_residency(model, "unpinned")
    click.echo(f"{safe(model)}: weights are not kept")
    return 0


def _parse_weight(context: click.Context, parameter: click.Parameter, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not is_weight(value):
        raise click.BadParameter(f"{text!r} is not {WEIGHT_RANGE}")
    return value


# So that "-1" is a number that is refused as one, and no unknown option.
@click.command(context_settings={"ignore_unknown_options": True})
@click.argument("model")
@click.argument("number", metavar="WEIGHT", callback=_parse_weight)
@_options
def weight(model: str, number: float, timeout: str, **connection: Any) -> int:
    """Set the share of the device that MODEL gets, beside the weights of the other models.

    A model of weight 2 gets twice the time of one of weight 1, while both have requests. The
    discipline 'fair' heeds it; with others it is kept, and changes nothing. It holds until the
    server ends; scheduler.models.MODEL.weight in the configuration is what it starts with.

    \b
    Examples:
      hloserve weight resnet 2
      hloserve weight batch-jobs 0.1 --url gpu1.example:8001
    """
    with open_client(timeout_s=parse_timeout(timeout), **connection) as client:
        client.control.set_weight(model, number)
    click.echo(f"{safe(model)}: weight {number:g}")
    return 0


@click.command()
@click.argument("models", nargs=-1, metavar="[MODEL]...")
@_options
def compact(models: tuple[str, ...], timeout: str, **connection: Any) -> int:
    """Join the free memory of the device: take all weights off it that are not pinned.

    The weights of each MODEL that is named are loaded again at once, in this order; the others come
    back when they are asked for. No request is served meanwhile. A server without a weight cache
    does nothing.

    \b
    Examples:
      hloserve compact
      hloserve compact resnet minilm --url gpu1.example:8001
    """
    from hloserve.core.units import format_bytes

    with open_client(timeout_s=parse_timeout(timeout), **connection) as client:
        done = client.control.compact(models)
    click.echo(
        f"{done.reloaded_models} of {len(models)} models loaded again;"
        f" {format_bytes(done.resident_bytes)} of weights that are not pinned are on the device"
    )
    return 0
