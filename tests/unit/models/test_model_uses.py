"""When a model that was retired may be freed."""

from hloserve.models.model import Uses


def test_retired_model_is_idle_when_its_last_request_ends() -> None:
    """Requests that found it before are served to their end; it is told once."""
    uses, told = Uses(), []
    uses.count += 2

    uses.retire(lambda: told.append("idle"))
    uses.end()
    assert told == []
    uses.end()

    assert ["idle"] == told


def test_retired_model_that_nobody_uses_is_idle_at_once() -> None:
    """There is nothing to wait for."""
    told: list[str] = []

    Uses().retire(lambda: told.append("idle"))

    assert ["idle"] == told


def test_model_that_serves_is_never_idle() -> None:
    """Without retirement the end of a request tells nobody, and later requests are counted."""
    uses, told = Uses(), []
    uses.count += 1
    uses.end()
    uses.count += 1

    uses.retire(lambda: told.append("idle"))

    assert told == []
    uses.end()
    assert ["idle"] == told
