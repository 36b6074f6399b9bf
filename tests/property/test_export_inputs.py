"""Texts that an export reads: whatever they hold, they are read or refused."""

import itertools
from contextlib import suppress

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from hloserve.core.errors import ConfigProblem
from hloserve.export.lists.error_text import short_error
from hloserve.export.lists.export_list import load_export_list
from hloserve.export.lists.triton_config import TritonConfigFault, batch_ladder, parse_config

_WORDS = ("input", "output", "name", "data_type", "dims", "max_batch_size", "TYPE_FP32", "3", '"x"')
_KEYS = st.sampled_from(
    ("source_dirs", "output_root", "report_path", "exclude", "handlers", "targets", "file",
     "models", "options", "target", "reason", "remove_existing", "batch_sizes", "m", "a/b")
)  # fmt: skip
_LEAVES = st.none() | st.booleans() | st.integers() | st.sampled_from((".", "a:b", "m", "", "x.py"))
_TREES = st.recursive(
    _LEAVES,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(_KEYS, inner, max_size=5),
    max_leaves=20,
)


@given(st.lists(st.sampled_from((*_WORDS, *"{}[]<>:,;#'\"\n ")) | st.text(max_size=3)))
def test_any_triton_config_is_read_or_refused(pieces: list[str]) -> None:
    """No text makes the reader of config.pbtxt fail in another way than it says."""
    with suppress(TritonConfigFault):
        parse_config(" ".join(pieces))


@given(st.dictionaries(_KEYS, _TREES) | _TREES)
def test_any_list_is_read_or_refused_with_places(
    tmp_path_factory: pytest.TempPathFactory, tree: object
) -> None:
    """No YAML makes the reader of a list fail in another way; every finding has its place."""
    file = tmp_path_factory.mktemp("list") / "list.yaml"
    file.write_text(yaml.safe_dump(tree))

    found: tuple[ConfigProblem, ...] = ()
    try:
        load_export_list(file)
    except ConfigProblem as problem:
        found = (problem, *problem.others)

    assert all(each.at.startswith("$") for each in found)


@given(st.integers(1, 2**31))
def test_ladder_goes_from_one_to_the_largest(largest: int) -> None:
    """Batch sizes ascend from 1, and none is more than about twice the one before."""
    ladder = batch_ladder(largest)

    assert (1, largest) == (ladder[0], ladder[-1])
    assert all(low < high <= 2 * low + 1 for low, high in itertools.pairwise(ladder))


@given(st.text())
def test_short_error_is_short(text: str) -> None:
    """Whatever an error says, a report gets at most 3 lines and 500 characters of it."""
    short = short_error(text)

    assert len(short) <= 500
    assert len(short.splitlines()) <= 3
