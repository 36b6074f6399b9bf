"""What a migration has to do, from each state that a bundle can be in."""

import pytest

from hloserve.bundle.active_weights import COPY_FILE
from hloserve.bundle.migration_plan import Mode, State, Step, plan_steps, why_not, why_nothing

LEGACY = State()
NAMED = State(weights_file=COPY_FILE, copy="usable")
REST = (Step.SWAP, Step.UNNAME_COPY, Step.REMOVE_COPY)
SWAPPED = (Step.FINISH_SWAP, Step.UNNAME_COPY, Step.REMOVE_COPY)


@pytest.mark.parametrize(
    ("state", "mode", "steps"),
    [
        (LEGACY, "copy", (Step.MAKE_COPY, Step.NAME_COPY)),
        (LEGACY, "replace", (Step.MAKE_COPY, Step.NAME_COPY, Step.RAISE_VERSION, *REST)),
        (State(format_version="2.1"), "replace", (Step.MAKE_COPY, Step.NAME_COPY, *REST)),
        # A copy that nothing names is made again, a stale one too.
        (State(copy="usable"), "copy", (Step.MAKE_COPY, Step.NAME_COPY)),
        (State(weights_file=COPY_FILE, copy="unusable"), "copy", (Step.MAKE_COPY,)),
        (State(weights_file=COPY_FILE, copy="missing"), "copy", (Step.MAKE_COPY,)),
        (NAMED, "copy", ()),
        (NAMED, "replace", (Step.RAISE_VERSION, *REST)),
        # A replacement that was cut off is finished in either mode.
        (State(format_version="2.1", original="program", is_swapped=True), "copy", SWAPPED),
        (
            State(original="program", is_swapped=True, format_version="2"),
            "replace",
            (Step.RAISE_VERSION, *SWAPPED),
        ),
        (State(original="program"), "replace", ()),
        (State(original="missing", weights_file=COPY_FILE), "replace", ()),
        (State(is_meta=True), "replace", ()),
        (State(weights_file="mine.safetensors"), "copy", ()),
    ],
)
def test_steps_follow_from_the_state(state: State, mode: Mode, steps: tuple[Step, ...]) -> None:
    """Whatever an earlier run did or began."""
    assert steps == plan_steps(state, mode)


def test_other_names_of_weights_are_not_migrated() -> None:
    """The copy's record speaks of `weights.safetensors`."""
    assert "'mine.safetensors'" in why_not(State(weights_file="mine.safetensors"))
    assert "" == why_not(State(weights_file="mine.safetensors", original="program"))
    assert "" == why_not(LEGACY)


def test_nothing_to_do_has_a_reason() -> None:
    """For the report of an offline run."""
    assert "meta" in why_nothing(State(is_meta=True))
    assert COPY_FILE in why_nothing(NAMED)
    assert "program order" in why_nothing(State(original="program"))
