"""What serves a worker's device, as it is configured: its weights and its dispatcher.

What lives here: their making, so the choice between having all weights on the device and a budget
for them, and that of the watch over its executions. What does not: any of these
(`hloserve.engine`). Loop thread.
"""

import logging
from collections.abc import Callable

from hloserve.config.resolving import resolve_dispatches_in_flight
from hloserve.config.schema import WorkerConfig
from hloserve.core.clock import Clock, Later
from hloserve.core.logging import log_event
from hloserve.engine.backend import Backend
from hloserve.engine.dispatcher import Dispatcher
from hloserve.engine.execution_watch import ExecutionWatch
from hloserve.engine.residency.budget import MemoryLimits
from hloserve.engine.residency.floors import ResidencyMode
from hloserve.engine.residency.host_weights import HostStore, PrivateStore
from hloserve.engine.residency.placement import AllOnDevice, DeviceWeights
from hloserve.engine.residency.shared_store import SharedStore
from hloserve.engine.residency.weight_cache import WeightCache
from hloserve.engine.scheduling.scheduler import Scheduler
from hloserve.server.listeners import Listeners

__all__ = ["build_dispatcher", "open_weights", "watch_executions"]

log = logging.getLogger(__name__)


def open_weights(
    config: WorkerConfig, backend: Backend, scheduler: Scheduler, clock: Clock
) -> DeviceWeights:
    """Make what has charge of the weights on a device.

    Args:
        config: says whether there is a budget, who decides, and where copies are kept.
        backend: the device; its memory is part of the budget, where it tells.
        scheduler: says for which models requests wait.
        clock: measures loading.
    """
    runtime = config.runtime
    store = _open_store(config)
    stats = backend.memory()
    arena_bytes = stats.limit_bytes if stats and runtime.weight_cache_fraction else None
    if arena_bytes is None and runtime.weight_cache_bytes is None:
        if runtime.residency_mode == "external":
            log_event(
                log, "no_weight_budget", level=logging.WARNING, setting="runtime.residency_mode",
                hint="all weights stay on the device; set runtime.weight_cache_bytes",
            )  # fmt: skip
        return AllOnDevice(backend, store)
    limits = MemoryLimits(
        arena_bytes,
        runtime.weight_cache_fraction,
        runtime.weight_cache_wiggle_fraction,
        runtime.weight_cache_bytes,
    )
    weights = WeightCache(
        backend,
        limits,
        clock,
        is_external=runtime.residency_mode == "external",
        is_awaited=lambda model: scheduler.depth(model) > 0,
        store=store,
        compaction_interval=config.scheduler.compaction_interval,
    )
    log_event(
        log, "weights_on_demand", residency_mode=runtime.residency_mode,
        budget_bytes=weights.status().max_bytes, shared_host_weights=runtime.shared_host_weights,
    )  # fmt: skip
    return weights


def _open_store(config: WorkerConfig) -> HostStore:
    if not config.runtime.shared_host_weights:
        return PrivateStore()
    mode = int(config.runtime.shared_host_weights_mode, 8)
    if mode & 0o002:
        log_event(
            log, "shared_weights_writable_by_all", level=logging.WARNING,
            setting="runtime.shared_host_weights_mode", mode=f"{mode:o}",
            hint="every user of this machine can change what models answer",
        )  # fmt: skip
    return SharedStore(mode)


def build_dispatcher(
    config: WorkerConfig,
    backend: Backend,
    weights: DeviceWeights,
    scheduler: Scheduler,
    clock: Clock,
    listeners: Listeners,
    on_end: Callable[[Exception | None], object],
) -> Dispatcher:
    """The dispatcher of a device, not yet started.

    Args:
        config: says how many batches the device is given at once.
        backend: the device.
        weights: what it holds.
        scheduler: where batches come from.
        clock: measures computing.
        listeners: bring replies to the loop.
        on_end: called on the loop when the dispatch thread has ended.
    """
    # On the CPU a cheap program runs where it was asked for. An accelerator may be slow, or hang,
    # for reasons of its own, and must not take the loop with it.
    is_here = backend.platform == "cpu" and not backend.runs_ahead
    soon = listeners.soon if is_here else None
    # Where all weights are there, leases would mean nothing, and so cost nothing.
    has_budget = weights.status().mode is not ResidencyMode.EVERYTHING
    in_flight = resolve_dispatches_in_flight(config.runtime, runs_ahead=backend.runs_ahead)
    log_event(log, "dispatches_in_flight", most=in_flight.value, reason=in_flight.reason)
    return Dispatcher(
        backend,
        scheduler,
        clock,
        listeners.post,
        on_end=on_end,
        soon=soon,
        residency=weights if has_budget else None,
        in_flight=in_flight.value,
    )


def watch_executions(
    config: WorkerConfig, dispatcher: Dispatcher, clock: Clock, later: Later
) -> None:
    """Have an execution noticed that does not end, from now on, unless that is switched off.

    Args:
        config: says how long one may take.
        dispatcher: is given up then.
        clock: measures.
        later: `loop.call_later`.
    """
    timeout_s = config.runtime.execution_timeout_seconds
    if timeout_s:
        ExecutionWatch(
            dispatcher.under_way,
            dispatcher.give_up,
            clock,
            later,
            timeout_s,
            "runtime.execution_timeout_seconds",
        ).start()
