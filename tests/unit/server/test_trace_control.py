"""Trace settings of a server that does not trace."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.server_services import Services, running_services

from hloserve.core.errors import BadRequest, ModelNotFound, NotImplementedYet
from hloserve.server.trace_control import TraceControl


@pytest.fixture
def services(tmp_path: Path) -> Iterator[Services]:
    """Services with the model "scale"."""
    with running_services(tmp_path) as services:
        yield services


@pytest.fixture
def control(services: Services) -> TraceControl:
    """Control over the settings of these services."""
    return TraceControl(services.registry)


@pytest.mark.parametrize("model", ["", "scale"])
def test_nothing_is_traced(control: TraceControl, model: str) -> None:
    """For the server and for a model the level is OFF."""
    assert control.read(model)["trace_level"] == ("OFF",)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"trace_level": ["OFF"]},
        {"trace_level": []},
        {"trace_rate": ["1000"], "trace_count": ["-1"]},
    ],
)
def test_what_holds_anyway_is_accepted(
    control: TraceControl, changes: dict[str, list[str]]
) -> None:
    """Switching off what is off, and going back to defaults."""
    assert control.read() == control.update(changes, "scale")


@pytest.mark.parametrize(
    "changes", [{"trace_level": ["TIMESTAMPS"]}, {"trace_rate": ["1"]}, {"trace_file": ["/tmp/t"]}]
)
def test_what_would_do_nothing_is_refused(
    control: TraceControl, changes: dict[str, list[str]]
) -> None:
    """Nobody shall wait for traces that never come."""
    with pytest.raises(NotImplementedYet, match="tracing of requests"):
        control.update(changes)


def test_unknown_names_and_levels_are_told_together(control: TraceControl) -> None:
    """The message has what there is."""
    with pytest.raises(BadRequest) as caught:
        control.update({"trace_colour": ["red"], "trace_level": ["ALL"]})

    assert "'trace_colour' is no trace setting; there are trace_file" in str(caught.value)
    assert "trace_level 'ALL' does not exist; there are OFF, TIMESTAMPS" in str(caught.value)


def test_settings_of_an_unknown_model_are_not_found(control: TraceControl) -> None:
    """Reading and changing alike."""
    with pytest.raises(ModelNotFound):
        control.read("nope")
    with pytest.raises(ModelNotFound):
        control.update({}, "nope")
