"""JSON objects whose values are of one kind."""

import msgspec
import pytest

from hloserve.core.errors import MalformedBody
from hloserve.wire.v2_json_values import decode_object

_numbers = msgspec.json.Decoder[int | None](int | None)


def test_values_are_read_under_their_names() -> None:
    """The last one counts where a name is there twice, as everywhere in JSON."""
    assert decode_object(b'{"a": 1, "b": null, "a": 3}', _numbers, "x") == {"a": 3, "b": None}


@pytest.mark.parametrize("body", [b"", b" \r\n", b"{}"])
def test_body_of_no_values_is_an_object_of_none(body: bytes) -> None:
    """Clients that have nothing to say send nothing."""
    assert decode_object(body, _numbers, "x") == {}


def test_every_value_of_another_kind_is_told_by_its_name() -> None:
    """All at once, and with what it should have been."""
    with pytest.raises(MalformedBody) as caught:
        decode_object(b'{"good": 1, "b": [], "c\\"": "d"}', _numbers, "settings")

    assert str(caught.value) == (
        "settings: 'b': Expected `int | null`, got `array`; 'c\"': Expected `int | null`, got `str`"
    )


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (b"[1]", "settings: Expected `object`, got `array`"),
        (b'{"a": 1', "settings: Input data was truncated"),
        (b'{"\xff": 1}', "settings: Invalid UTF-8"),
        (b'{"a": 1e999}', "'a': .*out of range"),
        (b'{"a": ' + b"[" * 100_000, "settings: the JSON is nested too deeply"),
    ],
)
def test_what_is_no_such_object_is_refused(body: bytes, text: str) -> None:
    """With the parser's reason."""
    with pytest.raises(MalformedBody, match=text):
        decode_object(body, _numbers, "settings")
