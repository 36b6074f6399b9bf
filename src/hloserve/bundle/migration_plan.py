"""What a migration of weights has to do, decided from what is on the disk.

What lives here: the state of a bundle as far as migration goes, and the steps from there. What does
not: looking, and doing (`hloserve.bundle.migration`). Pure; any thread.

Rules.
1. Steps follow from the state alone, never from what an earlier run remembers: whatever a crash
   left is a state like any other, and the plan from there is the rest of the work.
2. Between any two steps the bundle loads, and to the same arrays.
3. No step removes the last file that holds the weights, and the manifest never names a file that
   is not there: a copy is named after it was put in place, and removed after it is named no more.

The way of a legacy bundle, in the order of `Step`; `copy` ends after `NAME_COPY`.
"""

from dataclasses import dataclass
from enum import Enum
from typing import Literal, TypeAlias

from hloserve.bundle.active_weights import COPY_FILE
from hloserve.bundle.sections import DEFAULT_WEIGHTS_FILE

__all__ = ["Mode", "State", "Step", "plan_steps", "why_not", "why_nothing"]

Mode: TypeAlias = Literal["copy", "replace"]


class Step(Enum):
    """One step; the value says what it does."""

    MAKE_COPY = f"write {COPY_FILE} and prove it"
    NAME_COPY = f"write 'weights_file: {COPY_FILE}' into manifest.yaml"
    RAISE_VERSION = "write 'format_version: \"2.1\"' into manifest.yaml"
    SWAP = f"prove {COPY_FILE} again, put it in the place of {DEFAULT_WEIGHTS_FILE}, prove that"
    FINISH_SWAP = f"prove that {DEFAULT_WEIGHTS_FILE} is the copy"
    UNNAME_COPY = "remove the weights_file line from manifest.yaml"
    REMOVE_COPY = f"remove the name {COPY_FILE}"


@dataclass(frozen=True, slots=True)
class State:
    """A bundle, as far as migration goes.

    Attributes:
        is_meta: it has no weights that a server reads.
        weights_file: what the manifest names.
        format_version: of the manifest.
        original: the layout of `weights.safetensors`; when the manifest names neither this nor its
            copy, of the file that it names.
        copy: whether `weights.T.safetensors` speaks for it; "unusable" when it is stale or broken.
        is_swapped: the file called `weights.safetensors` is the copy.
    """

    is_meta: bool = False
    weights_file: str = DEFAULT_WEIGHTS_FILE
    format_version: str = "2.0"
    original: Literal["missing", "legacy", "program"] = "legacy"
    copy: Literal["missing", "usable", "unusable"] = "missing"
    is_swapped: bool = False


def why_not(state: State) -> str:
    """Why a bundle that needs a migration cannot have one; nothing when it can."""
    is_ours = state.weights_file in (DEFAULT_WEIGHTS_FILE, COPY_FILE)
    if is_ours or state.is_meta or state.original != "legacy":
        return ""
    return (
        f"the manifest's weights_file is {state.weights_file!r}; only {DEFAULT_WEIGHTS_FILE} is"
        " migrated: give the file that name, and remove the line"
    )


def why_nothing(state: State) -> str:
    """Why there is nothing to do, where there is nothing to do."""
    if state.is_meta:
        return "a meta model has no weights of its own"
    if state.original == "legacy":
        return f"{COPY_FILE} is there, and made of what {DEFAULT_WEIGHTS_FILE} is now"
    return "the weights are in program order"


def plan_steps(state: State, mode: Mode) -> tuple[Step, ...]:
    """The steps from a state to the end; empty when there is nothing to do."""
    if state.is_meta or why_not(state):
        return ()
    if state.original == "legacy":
        return _plan_legacy(state, mode)
    if state.is_swapped:  # the rest of a replacement, whatever the mode is now
        return (*_plan_version(state), Step.FINISH_SWAP, Step.UNNAME_COPY, Step.REMOVE_COPY)
    return ()


def _plan_legacy(state: State, mode: Mode) -> tuple[Step, ...]:
    steps = []
    if state.weights_file != COPY_FILE or state.copy != "usable":
        # A copy that nothing names yet is not trusted: it may be from a run that was cut off.
        steps.append(Step.MAKE_COPY)
    if state.weights_file != COPY_FILE:
        steps.append(Step.NAME_COPY)
    if mode == "copy":
        return tuple(steps)
    return (*steps, *_plan_version(state), Step.SWAP, Step.UNNAME_COPY, Step.REMOVE_COPY)


def _plan_version(state: State) -> tuple[Step, ...]:
    return (Step.RAISE_VERSION,) if state.format_version in ("2.0", "2") else ()
