"""The detector of shapes: exported in two ways, checked, served, asked by pixels and by files."""

import os
import re
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from support.image_files import many_scans, png_of_size
from support.server_process import HLOSERVE, ServerProcess, running_server

import hloserve
from examples.object_detection.compare import (
    COUNTS,
    ask_by_rest,
    detect_in_file,
    detect_in_pixels,
    difference,
    encode,
    example_picture,
    picture_of,
)
from examples.object_detection.shapes import CLASSES, draw_picture
from hloserve.hooks.vision import iou

_SCRIPT_S, _START_S = 600, 200

pytestmark = [
    pytest.mark.integration,
    pytest.mark.xla,
    # Four programs are proved, checked and served, in processes of their own: 30 s of CPU time,
    # and ten times that on a machine with other work. The first test waits for both fixtures.
    pytest.mark.timeout(_SCRIPT_S + _START_S + 100),
]

_ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Example:
    """What the example's script left behind."""

    repository: Path
    picture: Path
    output: str


@pytest.fixture(scope="module")
def example(tmp_path_factory: pytest.TempPathFactory) -> Example:
    """The script, run as its README says: export, check, serve, compare, draw."""
    directory = tmp_path_factory.mktemp("example")
    picture, repository = directory / "drawn" / "detections.png", directory / "repository"
    done = subprocess.run(
        ["examples/object_detection/run.sh", str(picture), str(repository)],
        capture_output=True,
        text=True,
        timeout=_SCRIPT_S,
        check=False,
        cwd=_ROOT,
        env={**os.environ, "PATH": f"{Path(HLOSERVE).parent}{os.pathsep}{os.environ['PATH']}"},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return Example(repository, picture, done.stdout)


@pytest.fixture(scope="module")
def server(example: Example, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server of its bundles."""
    output = tmp_path_factory.mktemp("detection")
    with running_server(output, "serve", str(example.repository), start_s=_START_S) as server:
        yield server


@pytest.fixture
def client(server: ServerProcess) -> Iterator[hloserve.Client]:
    """A client of that server."""
    with hloserve.Client(server.grpc) as client:
        yield client


def test_script_checks_compares_and_draws(example: Example) -> None:
    """Five bundles without a warning, both detectors alike, and a small picture with boxes."""
    assert "5 of 5 bundles ok, 0 errors, 0 warnings" in example.output
    assert len(COUNTS) == len(re.findall(r"(\d+) shapes, +\1 rows: boxes \d", example.output))
    assert len(example.picture.read_bytes()) < 60_000
    with Image.open(example.picture) as opened:
        drawn = np.asarray(opened.convert("RGB")).astype(int)
    plain = example_picture().pixels
    assert plain.shape == drawn.shape
    assert 0.01 < (abs(drawn - plain).max(axis=2) > 60).mean() < 0.3  # lines and names


@pytest.mark.parametrize("shapes", COUNTS)
def test_both_detectors_give_the_same_rows_at_every_count(
    client: hloserve.Client, shapes: int
) -> None:
    """One program or two with NumPy between: exactly one row per shape, box by box the same."""
    picture = picture_of(shapes)

    one = detect_in_pixels(client, "shapes", picture)
    two = detect_in_pixels(client, "shapes_two_stage", picture)

    assert (shapes, 6) == one.shape == two.shape
    assert np.float32 == one.dtype == two.dtype
    boxes_off, scores_off = difference(one, two)
    assert boxes_off < 0.01
    assert scores_off < 1e-4
    assert sorted(picture.classes.tolist()) == sorted(one[:, 5].tolist())
    if shapes:
        assert (iou(picture.boxes, one[:, :4]).max(axis=1) > 0.5).all()


def test_more_shapes_than_rows_fill_the_buffer(client: hloserve.Client) -> None:
    """The best `max_detections` come back, and no more."""
    picture = draw_picture(np.random.default_rng(3), COUNTS[-1] + 3, sizes=(15, 18))

    one = detect_in_pixels(client, "shapes", picture)
    two = detect_in_pixels(client, "shapes_two_stage", picture)

    assert (COUNTS[-1], 6) == one.shape == two.shape
    assert (np.diff(one[:, 4]) <= 0).all()


@pytest.mark.parametrize("format", ["JPEG", "PNG"])
def test_boxes_of_a_file_are_in_its_own_pixels(
    server: ServerProcess, client: hloserve.Client, format: str
) -> None:
    """A picture of another size and shape, over gRPC and over REST."""
    picture = example_picture()
    file = encode(picture, format)

    rows, names = detect_in_file(client, file)
    by_rest, names_by_rest = ask_by_rest(server.http, file)

    overlap = iou(picture.boxes, rows[:, :4])
    found = overlap.argmax(axis=1)
    assert len(picture.boxes) == len(rows)
    assert (overlap.max(axis=1) > 0.5).all()
    assert [CLASSES[number] for number in picture.classes] == [names[at] for at in found]
    np.testing.assert_allclose(by_rest, rows, rtol=1e-6)
    assert names == names_by_rest


def test_picture_that_shows_nothing_has_no_rows(client: hloserve.Client) -> None:
    """No detections are an answer, with no names either."""
    rows, names = detect_in_file(client, encode(picture_of(0)))

    assert (0, 6) == rows.shape
    assert [] == names


@pytest.mark.parametrize(
    ("file", "text"),
    [
        (b"", "the image is empty"),
        (b"not a picture", "neither JPEG nor PNG"),
        (encode(picture_of(0))[:400], "cannot be decoded|cut off"),
        (png_of_size(50_000, 50_000), "50000 x 50000 pixels large"),
        (many_scans(200), "more than 100 scans"),
    ],
    ids=["empty", "other", "truncated", "huge", "scans"],
)
def test_hostile_picture_is_its_senders_mistake(
    client: hloserve.Client, file: bytes, text: str
) -> None:
    """INVALID_ARGUMENT with the reason; the server answers the next one."""
    with pytest.raises(hloserve.HloserveError, match=text) as refusal:
        detect_in_file(client, file)

    assert refusal.value.code.value == "INVALID_ARGUMENT"
    assert len(detect_in_file(client, encode(picture_of(1)))[0]) == 1
