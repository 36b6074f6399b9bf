"""From settings to a scheduler.

What lives here: the one place that knows which discipline has which name. What does not: the
settings and their defaults (`hloserve.config.scheduling_schema`). Called once per worker, at start.
"""

from hloserve.config.scheduling_schema import SchedulerConfig
from hloserve.core.clock import Clock
from hloserve.engine.scheduling.discipline import Discipline, Fifo
from hloserve.engine.scheduling.edf import Edf
from hloserve.engine.scheduling.fair import Fair, FairSettings
from hloserve.engine.scheduling.model_queue import ModelPolicy
from hloserve.engine.scheduling.scheduler import Scheduler

__all__ = ["build_discipline", "build_scheduler"]


def build_discipline(config: SchedulerConfig) -> Discipline:
    """Make what chooses the next model."""
    if config.discipline == "fair":
        return Fair(
            FairSettings(
                halflife_s=config.ema_halflife_seconds,
                penalty_cap=config.recency_penalty_cap,
                coalescing_discount=config.coalescing_discount,
                formula=config.fair_formula,
            )
        )
    return Edf() if config.discipline == "edf" else Fifo()


def build_scheduler(config: SchedulerConfig, clock: Clock) -> Scheduler:
    """Make the queues of one device, without models."""
    return Scheduler(
        clock,
        build_discipline(config),
        config.max_queue_depth,
        policies={
            name: ModelPolicy(model.weight, round(model.max_queue_delay_seconds * 1e9))
            for name, model in config.models.items()
        },
        weighs_costs=config.batch_planning == "min_cost",
    )
