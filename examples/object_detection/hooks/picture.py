"""`model.py` of the detector for JPEG and PNG: fits a picture into the network, and the boxes back.

A meta model rather than a `preprocess`, because what it learns before the call, how the picture was
fitted in, it needs after it.
"""

from pathlib import Path
from typing import Any

import numpy as np

from hloserve import register_meta_model
from hloserve.hooks.vision import decode_image, letterbox

_SIDE = 128
_CLASSES = (Path(__file__).parent / "classes.txt").read_text().splitlines()


def run(inputs: Any, call: Any) -> dict[str, Any]:
    """From the bytes of a picture to boxes in its own pixels, and what is in each."""
    fitted = letterbox(decode_image(inputs["picture"].item()), _SIDE, _SIDE)
    image = np.ascontiguousarray(fitted.image.transpose(2, 0, 1)[None])
    rows = call("shapes", {"INPUT__0": image})["OUTPUT__0"]
    rows[:, :4] = fitted.original_boxes(rows[:, :4])
    names = np.array([_CLASSES[int(number)] for number in rows[:, 5]], object)
    return {"detections": rows, "names": names}


register_meta_model(run=run)
