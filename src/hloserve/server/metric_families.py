"""Metrics of one value each.

What lives here: their making. What does not: which there are (`hloserve.server.metrics`).
"""

from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

__all__ = ["counter", "gauge"]


def counter(name: str, text: str, value: float) -> Metric:
    """Something that only grows."""
    return CounterMetricFamily(name, text, value=value)


def gauge(name: str, text: str, value: float) -> Metric:
    """Something that grows and shrinks."""
    return GaugeMetricFamily(name, text, value=value)
