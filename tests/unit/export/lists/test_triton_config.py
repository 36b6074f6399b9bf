"""`config.pbtxt` of a Triton repository."""

import pytest

from hloserve.core.dtypes import F32, I64, U8
from hloserve.export.lists.triton_config import (
    TritonConfigFault,
    TritonTensor,
    batch_ladder,
    parse_config,
)

CONFIG = """
name: "detector"  # a comment with } in it
platform: "pytorch_libtorch"
max_batch_size: 12
input [
  { name: "INPUT__0" data_type: TYPE_UINT8 dims: [ 3, 640, 640 ] reshape { shape: [ 1 ] } },
  { name: 'ids', data_type: TYPE_INT64; dims: 7 dims: 8 }
]
output { name: "OUTPUT__0" data_type: TYPE_FP32 dims: [ -1, 6 ] label_filename: "a\\"b" }
instance_group [ { kind: KIND_GPU count: 1 } ]
parameters: { key: "x" value: < string_value: "1" > }
"""


def test_tensors_and_batch_size_are_read() -> None:
    """Names, dtypes and dims of inputs and outputs are read, in order."""
    config = parse_config(CONFIG)

    assert 12 == config.max_batch_size
    assert (
        TritonTensor("INPUT__0", U8, (3, 640, 640)),
        TritonTensor("ids", I64, (7, 8)),
    ) == config.inputs
    assert (TritonTensor("OUTPUT__0", F32, (-1, 6)),) == config.outputs


def test_batch_size_is_one_unless_it_is_given() -> None:
    """A missing max_batch_size is 1; 0 says that tensors have no batch axis."""
    tensor = 'input { name: "x" data_type: TYPE_FP32 dims: 1 }'

    assert 1 == parse_config(tensor).max_batch_size
    assert 0 == parse_config(tensor + " max_batch_size: 0").max_batch_size


@pytest.mark.parametrize(
    ("largest", "expected"), [(0, ()), (1, (1,)), (8, (1, 2, 4, 8)), (12, (1, 3, 6, 12))]
)
def test_ladder_halves_down_to_one(largest: int, expected: tuple[int, ...]) -> None:
    """The batch sizes of a model are its largest one, and halves of it."""
    assert expected == batch_ladder(largest)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "declares no input"),
        ('name: "open', "line 1: a text is not closed"),
        ("input {", "expected a field's name, got ''"),
        ("input: }", "field 'input' has no value"),
        ("input: [", "has no value"),
        ("}", "expected a field's name, got '}'"),
        ("input: 3", "input must be a message, got '3'"),
        ("max_batch_size: x input { name: 'x' data_type: TYPE_FP32 }", "must be a whole number"),
        ("input { data_type: TYPE_FP32 }", "input 0 has no name"),
        ("input { name: 'x' }", "input 'x' has no data_type"),
        ("input { name: 'x' data_type: TYPE_STRING }", "data_type TYPE_STRING, which programs"),
        ("input { name: 'x' data_type: TYPE_FP32 dims: [a] }", "expected whole numbers"),
        ("input " + "[" * 5000, "nested deeper than 20 levels"),
        ("a " + "{ a " * 5000, "nested deeper than 20 levels"),
    ],
)
def test_unusable_text_is_refused_with_its_fault(text: str, told: str) -> None:
    """Text that is no configuration, or one of no use, is refused in words."""
    with pytest.raises(TritonConfigFault, match=told.replace("[", r"\[")):
        parse_config(text)
