"""Ask a running server for detections in every way, compare them, and draw one picture.

Usage, in the repository's root, against `hloserve serve build/repository`::

    python -m examples.object_detection.compare --http 127.0.0.1:8000 --grpc 127.0.0.1:8001 \
        --picture build/detections.png

Exit status 1 when the two detectors, or the two protocols, do not agree.
"""

import argparse
import json
import struct
import urllib.request
from collections.abc import Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageDraw

import hloserve
from examples.object_detection.shapes import MOST_ROWS, Picture, draw_picture

__all__ = [
    "COUNTS",
    "ask_by_rest",
    "detect_in_file",
    "detect_in_pixels",
    "difference",
    "draw_detections",
    "encode",
    "example_picture",
    "main",
    "picture_of",
]

COUNTS = range(MOST_ROWS + 1)
"""Shapes in a picture: from none to as many as the detector tells of."""

_COLOURS = {"circle": "#ffd166", "rectangle": "#06d6a0", "triangle": "#ef476f"}
_LARGEST_BOX_ERROR, _LARGEST_SCORE_ERROR = 0.01, 1e-4


def picture_of(shapes: int) -> Picture:
    """A picture of the detector's own size with so many shapes."""
    return draw_picture(np.random.default_rng(900 + shapes), shapes, sizes=(16, 22))


def example_picture() -> Picture:
    """A larger one, wider than high, as the README shows it."""
    random = np.random.default_rng(4)
    return draw_picture(random, 9, height=360, width=480, sizes=(60, 130), noise=0)


def encode(picture: Picture, format: str = "JPEG") -> bytes:
    """The picture as a file."""
    file = BytesIO()
    Image.fromarray(picture.pixels).save(file, format, quality=92)
    return file.getvalue()


def detect_in_pixels(client: hloserve.Client, model: str, picture: Picture) -> Any:
    """Ask `shapes` or `shapes_two_stage`: rows of box, score and class, (detections, 6)."""
    image = np.ascontiguousarray(picture.pixels.transpose(2, 0, 1)[None])
    return client.infer(model, {"INPUT__0": image})["OUTPUT__0"]


def detect_in_file(client: hloserve.Client, file: bytes) -> tuple[Any, list[str]]:
    """Ask `shapes_picture`: the rows, in pixels of the file's picture, and what is in each."""
    answer = client.infer("shapes_picture", {"picture": np.array([file], object)})
    return answer["detections"], [name.decode() for name in answer["names"]]


def ask_by_rest(http: str, file: bytes) -> tuple[Any, list[str]]:
    """The same with nothing but the standard library.

    JSON cannot hold a JPEG, so the file follows it, as the protocol's binary extension has it.
    """
    size = {"binary_data_size": 4 + len(file)}
    tensor = {"name": "picture", "datatype": "BYTES", "shape": [1], "parameters": size}
    head = json.dumps({"inputs": [tensor]}).encode()
    request = urllib.request.Request(
        f"http://{http}/v2/models/shapes_picture/infer",
        head + struct.pack("<I", len(file)) + file,
        {"Inference-Header-Content-Length": str(len(head))},
    )
    with urllib.request.urlopen(request, timeout=30) as reply:
        outputs = {each["name"]: each for each in json.load(reply)["outputs"]}
    found = outputs["detections"]
    return np.array(found["data"], np.float32).reshape(found["shape"]), outputs["names"]["data"]


def difference(first: Any, second: Any) -> tuple[float, float]:
    """The largest difference of boxes, in pixels, and of scores; infinite if others were found.

    Detections are paired by class and nearest box: scores that are equal but for rounding may come
    in another order.
    """
    if first.shape != second.shape:
        return np.inf, np.inf
    off = [(0.0, 0.0)]
    left = list(second)
    for row in first:
        same = [at for at, other in enumerate(left) if other[5] == row[5]]
        if not same:
            return np.inf, np.inf
        nearest = min(same, key=lambda at: float(np.abs(left[at][:4] - row[:4]).max()))
        other = left.pop(nearest)
        off.append((float(np.abs(other[:4] - row[:4]).max()), float(abs(other[4] - row[4]))))
    boxes, scores = zip(*off, strict=True)
    return max(boxes), max(scores)


def draw_detections(file: bytes, rows: Any, names: Sequence[str]) -> Image.Image:
    """The picture with a box and a name for each detection."""
    with Image.open(BytesIO(file)) as opened:
        picture = opened.convert("RGB")
    draw = ImageDraw.Draw(picture)
    for (x1, y1, x2, y2, score, _), name in zip(rows.tolist(), names, strict=True):
        text, colour = f"{name} {score:.2f}", _COLOURS[name]
        draw.rectangle((x1, y1, x2, y2), outline=colour, width=2)
        left, top, right, bottom = draw.textbbox((x1 + 4, max(y1 - 13, 1)), text)
        draw.rectangle((left - 4, top - 2, right + 3, bottom + 2), fill=colour)
        draw.text((left, max(y1 - 13, 1)), text, fill="black")
    return picture


def main() -> None:
    """Compare at every count, then by file, and draw."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--http", default="127.0.0.1:8000", metavar="HOST:PORT")
    parser.add_argument("--grpc", default="127.0.0.1:8001", metavar="HOST:PORT")
    parser.add_argument("--picture", type=Path, help="where to write the drawn picture, a PNG")
    options = parser.parse_args()
    worst_box = worst_score = 0.0
    print("one program against two with NumPy between them:")
    with hloserve.Client(options.grpc) as client:
        for shapes in COUNTS:
            picture = picture_of(shapes)
            one = detect_in_pixels(client, "shapes", picture)
            two = detect_in_pixels(client, "shapes_two_stage", picture)
            box, score = difference(one, two)
            print(f"  {shapes:2} shapes, {len(one):2} rows: boxes {box:.1e} px, scores {score:.1e}")
            worst_box, worst_score = max(worst_box, box), max(worst_score, score)
        file = encode(example_picture())
        rows, names = detect_in_file(client, file)
    box, score = difference(rows, ask_by_rest(options.http, file)[0])
    print(f"JPEG of {len(file)} bytes: {', '.join(names)}")
    if options.picture is not None:
        drawn = draw_detections(file, rows, names).quantize(64, dither=Image.Dither.NONE)
        drawn.save(options.picture, optimize=True)
        print(f"wrote {options.picture}, {options.picture.stat().st_size} bytes")
    is_same = max(worst_box, box) < _LARGEST_BOX_ERROR
    raise SystemExit(not (is_same and max(worst_score, score) < _LARGEST_SCORE_ERROR))


if __name__ == "__main__":
    main()
