"""Images for hooks: whatever bytes arrive, they are decoded or refused."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.image_files import many_scans, with_orientation

from hloserve.core.errors import InvalidInput
from hloserve.hooks import vision

_FILES = (
    with_orientation("PNG", 6),
    with_orientation("JPEG", 6),
    many_scans(1),
)


@given(st.sampled_from(_FILES), st.data())
@pytest.mark.filterwarnings("ignore")  # Pillow may warn of what is damaged
def test_damaged_image_is_decoded_or_refused(file: bytes, data: st.DataObject) -> None:
    """Bytes that are changed, left out or repeated never end in another error."""
    damaged = bytearray(file)
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(damaged) - 1))
        length = data.draw(st.integers(0, 8))
        with_what = data.draw(st.one_of(st.binary(max_size=8), st.just(bytes(damaged[:99]))))
        damaged[at : at + length] = with_what

    try:
        image = vision.decode_image(bytes(damaged), max_pixels=10_000)
    except InvalidInput:
        return
    assert np.uint8 == image.dtype
    assert image.size <= 3 * 10_000


@given(st.binary(max_size=60), st.sampled_from([b"", b"\xff\xd8", b"\x89PNG\r\n\x1a\n"]))
def test_noise_is_refused(noise: bytes, start: bytes) -> None:
    """Also when it begins like an image."""
    with pytest.raises(InvalidInput):
        vision.decode_image(start + noise)


@given(st.integers(1, 60), st.integers(1, 60), st.integers(1, 60), st.integers(1, 60))
def test_letterbox_keeps_the_shape_of_the_image(
    tall: int, wide: int, height: int, width: int
) -> None:
    """Both scales are the same but for whole pixels, one side is filled, and nothing is cut off."""
    fitted = vision.letterbox(np.full((tall, wide), 9, np.uint8), height, width)

    inner = tuple(
        round(scale * extent) for scale, extent in zip(fitted.scale, (tall, wide), strict=True)
    )
    share = min(height / tall, width / wide)
    assert (height, width) == fitted.image.shape
    assert inner[0] * inner[1] == np.count_nonzero(fitted.image == 9)
    assert height == inner[0] or width == inner[1]
    assert all(
        abs(got - share * extent) <= 0.5 or got == 1
        for got, extent in zip(inner, (tall, wide), strict=True)
    )
