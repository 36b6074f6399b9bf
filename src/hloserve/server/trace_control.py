"""The trace extension of V2, of a server that does not trace requests.

What lives here: the settings that hold, and the refusal of those that would do nothing. What does
not: bytes (the services of the transports). Loop thread.

Source: Triton's trace extension.
"""

from collections.abc import Mapping, Sequence

from hloserve.core.errors import BadRequest, NotImplementedYet
from hloserve.models.registry import Registry
from hloserve.server.inference import check_version

__all__ = ["TraceControl"]

_OFF: Mapping[str, tuple[str, ...]] = {
    "trace_file": ("",),
    "trace_level": ("OFF",),
    "trace_rate": ("1000",),
    "trace_count": ("-1",),
    "log_frequency": ("0",),
    "trace_mode": ("triton",),
}
"""What a server says whose tracing is off, by the published names."""

_LEVELS = ("OFF", "TIMESTAMPS", "TENSORS")


class TraceControl:
    """Tells that nothing is traced, and accepts what leaves it at that.

    Args:
        registry: knows the models that settings may be about.
    """

    def __init__(self, registry: Registry) -> None:
        self._registry = registry

    def read(self, model: str = "", version: str = "") -> dict[str, tuple[str, ...]]:
        """The settings of a model, or of the server when `model` is empty.

        Raises:
            ModelNotFound, ModelNotReady: it is not there, or not yet.
        """
        check_version(model, version)
        if model:
            self._registry.get(model)
        return dict(_OFF)

    def update(
        self, changes: Mapping[str, Sequence[str]], model: str = "", version: str = ""
    ) -> dict[str, tuple[str, ...]]:
        """Accept settings that hold anyway; returns all.

        Args:
            changes: values by name; none put a setting back to its default.
            model: the model that they are for; empty for the server.
            version: which of the model.

        Raises:
            ModelNotFound, ModelNotReady: it is not there, or not yet.
            BadRequest: a name or a level does not exist; all are told.
            NotImplementedYet: something would have to be traced.
        """
        held = self.read(model, version)
        findings = [
            f"{name!r} is no trace setting; there are {', '.join(_OFF)}"
            for name in changes
            if name not in _OFF
        ]
        findings += [
            f"trace_level {level!r} does not exist; there are {', '.join(_LEVELS)}"
            for level in changes.get("trace_level", ())
            if level not in _LEVELS
        ]
        if findings:
            raise BadRequest("; ".join(findings))
        for name, values in changes.items():
            if values and tuple(values) != held[name]:
                raise NotImplementedYet(
                    f"tracing of requests, which {name} {', '.join(values)!r} asks for,"
                )
        return held
