"""`model.py` of the detector that is one program: clients get the rows that there are."""

from hloserve import register_model
from hloserve.hooks import trim_rows

register_model(postprocess=trim_rows("NUM_DETECTIONS", {"DETECTIONS": "OUTPUT__0"}))
