"""The error tree as a whole."""

import inspect

from hloserve.core import errors


def _tree(error: type[errors.HloserveError]) -> list[type[errors.HloserveError]]:
    below = [e for e in error.__subclasses__() if e.__module__.startswith("hloserve.core.")]
    return [error, *(e for child in below for e in _tree(child))]


def test_every_error_is_drawn_and_exported() -> None:
    """The tree at the top of the module names every error, and so does its list of exports."""
    drawn = inspect.getdoc(errors) or ""
    for error in _tree(errors.HloserveError):
        assert error.__name__ in drawn, f"{error.__name__} is missing in the drawing"
        assert error.__name__ in errors.__all__


def test_retryable_errors_are_those_that_pass() -> None:
    """Only overload and unavailability may succeed when the same call is made again."""
    retryable = {e.code for e in _tree(errors.HloserveError) if e.retryable}

    assert {errors.Code.RESOURCE_EXHAUSTED, errors.Code.UNAVAILABLE} == retryable


def test_config_problem_tells_all_that_is_wrong() -> None:
    """The message of a configuration problem has one line for each thing that is wrong."""
    other = errors.ConfigProblem("HLOSERVE_X", "", "is not a setting")
    problem = errors.ConfigProblem("node.yaml", "$.a", "is bad", [other])

    assert "node.yaml: $.a: is bad\nHLOSERVE_X: is not a setting" == str(problem)
