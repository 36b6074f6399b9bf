"""What both transports ask of a server besides inference and metadata, in one place.

What lives here: `Operations`, a plain bundle of the parts, and its making. What does not: the
parts. Loop thread.
"""

from dataclasses import dataclass

from hloserve.config.schema import WorkerConfig
from hloserve.core.clock import Clock
from hloserve.core.logging import installed_handler
from hloserve.models.registry import Registry
from hloserve.server.control import Commands, ModelControl
from hloserve.server.log_control import LogControl
from hloserve.server.metrics import RequestMetrics
from hloserve.server.model_reports import ModelReports
from hloserve.server.trace_control import TraceControl

__all__ = ["Operations", "build_operations"]


@dataclass(frozen=True, slots=True)
class Operations:
    """The parts of a server that extensions of the V2 protocol, and the control service, talk to.

    Attributes:
        reports: configuration and statistics of models.
        logs: the log's settings.
        traces: the trace settings.
        control: what operators and controllers see and change of the device.
    """

    reports: ModelReports
    logs: LogControl
    traces: TraceControl
    control: ModelControl


def build_operations(
    config: WorkerConfig,
    registry: Registry,
    scheduler: Commands,
    requests: RequestMetrics,
    clock: Clock,
) -> Operations:
    """The parts for one worker; the log is this process's, if it is ours."""
    return Operations(
        ModelReports(registry, requests, clock, config.runtime.device_ordinal),
        LogControl(installed_handler()),
        TraceControl(registry),
        ModelControl(registry, scheduler, config.scheduler.discipline, config.metas.exposed_models),
    )
