"""What an error came of. Functions of their arguments; any thread."""

from collections.abc import Iterator

__all__ = ["causes"]


def causes(error: BaseException | None, *, with_contexts: bool = True) -> Iterator[BaseException]:
    """The error, what it was raised from, what that was raised from, and so on, each once.

    Authors' errors may go round in a circle: ``raise error from error`` is its own cause.

    Args:
        error: where to begin; of None nothing comes.
        with_contexts: where an error has no cause, go on with what was being handled at the time.
    """
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        before = error.__context__ if with_contexts else None
        error = before if error.__cause__ is None else error.__cause__
