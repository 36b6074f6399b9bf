"""What a two-stage detector is, beside its networks.

What lives here: `DetectorConfig`, checked. What does not: what is done with it
(`hloserve.export.detection.detector`). Pure; any thread.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from hloserve.bundle.axes import is_whole
from hloserve.bundle.findings import describe

__all__ = ["DetectorConfig"]

_COUNTS = ("pre_nms_top", "post_nms_top", "pooled_size", "sampling_ratio", "max_detections")
_SHARES = ("proposal_nms_threshold", "proposal_score_threshold", "nms_threshold", "score_threshold")
_FOURS = ("proposal_weights", "box_weights")
_ADAPTIVE = (
    "sampling_ratio: 0 takes as many samples as a region is large, which a program of fixed shapes"
    " cannot; give a number, 2 is usual"
)


@dataclass(frozen=True, kw_only=True)
class DetectorConfig:
    """The constants of a two-stage detector. The defaults are torchvision's.

    Attributes:
        cell_anchors: per feature map of the first network, the anchors of its first cell: [a, 4],
            corners around the origin. `hloserve.hooks.vision.cell_anchors` makes them.
        anchor_strides: per such map, pixels from one cell to the next. None: the extent of the
            image over that of the map, rounded down, as torchvision has it.
        proposal_weights: what the first network's box predictions are divided by.
        pre_nms_top: anchors that are taken per map before suppression.
        post_nms_top: proposals that are taken over all maps after it; the second network runs on
            exactly as many.
        proposal_nms_threshold: overlap above which a proposal is suppressed.
        proposal_min_size: smaller proposals are dropped, in pixels.
        proposal_score_threshold: less likely proposals are dropped.
        roi_strides: strides of the maps that regions are cut from, powers of two, each twice the
            one before; these are the first ones that the first network returns.
        pooled_size: cells of a region, both ways.
        sampling_ratio: samples per cell of a region, both ways; at least 1.
        aligned: see `hloserve.hooks.vision.roi_align`.
        canonical_level: the map of a region of `canonical_size`, as the logarithm of its stride.
        canonical_size: in pixels.
        box_weights: what the second network's box predictions are divided by.
        background_first: the background is class 0, as torchvision has it; otherwise the last one.
        score_threshold: only classes that are more likely count.
        nms_threshold: overlap above which a detection of the same class is suppressed.
        max_detections: rows of the result.
        min_size: smaller detections are dropped, in pixels.
        max_candidates: how many pairs of a proposal and a class take part in the last suppression,
            the most likely ones first. None: all that can be above `score_threshold`.
        image_mean: subtracted per channel from pixels of 0 to 1; None for 0.
        image_std: then divides them; None for 1.
        columns: 6 for rows of box, score and class; 5 for rows without the class.
    """

    cell_anchors: Sequence[npt.ArrayLike]
    anchor_strides: Sequence[float] | None = None
    proposal_weights: Sequence[float] = (1.0, 1.0, 1.0, 1.0)
    pre_nms_top: int = 1000
    post_nms_top: int = 1000
    proposal_nms_threshold: float = 0.7
    proposal_min_size: float = 1e-3
    proposal_score_threshold: float = 0.0
    roi_strides: Sequence[float] = (4, 8, 16, 32)
    pooled_size: int = 7
    sampling_ratio: int = 2
    aligned: bool = False
    canonical_level: int = 4
    canonical_size: float = 224.0
    box_weights: Sequence[float] = (10.0, 10.0, 5.0, 5.0)
    background_first: bool = True
    score_threshold: float = 0.05
    nms_threshold: float = 0.5
    max_detections: int = 100
    min_size: float = 1e-2
    max_candidates: int | None = None
    image_mean: Sequence[float] | None = None
    image_std: Sequence[float] | None = None
    columns: int = 6

    def findings(self) -> list[str]:
        """What is wrong with it, one sentence each."""
        found = [
            f"{name}: must be a whole number above 0, got {describe(getattr(self, name))}"
            for name in _COUNTS
            if not _is_count(getattr(self, name))
            and not (name == "sampling_ratio" and self.sampling_ratio == 0)
        ]
        if self.sampling_ratio == 0:
            found.append(_ADAPTIVE)
        if self.max_candidates is not None and not _is_count(self.max_candidates):
            found.append(
                "max_candidates: must be a whole number above 0, or None for all, got"
                f" {describe(self.max_candidates)}"
            )
        found += [
            f"{name}: must be from 0 to 1, got {describe(getattr(self, name))}"
            for name in _SHARES
            if not 0 <= getattr(self, name) <= 1
        ]
        found += [
            f"{name}: must be four numbers other than 0, got {describe(getattr(self, name))}"
            for name in _FOURS
            if np.shape(getattr(self, name)) != (4,) or not np.all(getattr(self, name))
        ]
        if self.columns not in (5, 6):
            found.append(f"columns: must be 6, or 5 without the class, got {self.columns}")
        return found + self._geometry_findings()

    def _geometry_findings(self) -> list[str]:
        found = [
            f"cell_anchors[{index}]: has shape {np.shape(cell)}, expected (anchors, 4)"
            for index, cell in enumerate(self.cell_anchors)
            if np.ndim(cell) != 2 or np.shape(cell)[1] != 4 or not len(np.asarray(cell))
        ]
        if not len(self.cell_anchors):
            found.append("cell_anchors: is empty; give the anchors of each map")
        strides = self.anchor_strides
        if strides is not None and len(strides) != len(self.cell_anchors):
            found.append(
                f"anchor_strides: has {len(strides)} entries for {len(self.cell_anchors)} maps of"
                " anchors"
            )
        if not len(self.roi_strides) or not _are_doubling(self.roi_strides):
            found.append(
                "roi_strides: must be powers of two, each twice the one before, got"
                f" {describe(self.roi_strides)}"
            )
        for name in ("image_mean", "image_std"):
            values = getattr(self, name)
            if values is not None and np.shape(values) != (3,):
                found.append(f"{name}: must be three numbers, one per channel")
        if self.image_std is not None and not np.all(self.image_std):
            found.append("image_std: must not be 0")
        return found


def _is_count(value: object) -> bool:
    return isinstance(value, int) and is_whole(value) and value > 0


def _are_doubling(strides: Sequence[float]) -> bool:
    values = np.asarray(strides, float)
    levels = np.log2(values) if (values > 0).all() else np.array([0.5])
    return bool((levels == levels.round()).all() and (np.diff(levels) == 1).all())
