"""Random resizes in every mode, with factors and sizes that divide evenly or not."""

from __future__ import annotations

from typing import Any

import numpy as np
from random_windows import Case, Random
from reference import Value

#: Factors, most of which give extents that are not integers.
SCALES = (2.0, 1.0, 3.0, 0.5, 1.5, 0.6, 2.3, 0.75, 1.25, 0.333, 4.0)


def resize(r: Random) -> Case:
    opset = r.pick(10, 11, 13, 18, 19)
    mode = r.pick("nearest", "linear", *(["cubic"] if opset > 10 else []))
    rank = 4 if mode == "cubic" else r.pick(3, 4, 4, 4, 5)
    shape = [r.integer(1, 2), r.integer(1, 3), *r.integers(4, 9, rank - 2)]
    dtype = "float32"
    if mode == "nearest" and r.chance(0.3):
        dtype = r.pick("int32", "uint8", "int8", "float16", "float64", "int64")
    values: list[Value] = [(r.normal(*shape, dtype=dtype), False)]
    attributes: dict[str, Any] = {"mode": mode}
    factors = [r.pick(*SCALES) for _ in range(rank - 2)]
    if opset == 10:
        values.append((np.array([1, 1, *factors], np.float32), True))
        return "Resize", values, attributes, opset
    coordinate = _modes(r, mode, opset, attributes)
    axes = list(range(2, rank)) if opset >= 18 and r.chance(0.3) else None
    if axes:
        attributes["axes"] = axes
    nothing: Value = (np.zeros(0, np.float32) if opset < 13 else None, True)
    region = nothing
    if coordinate == "tf_crop_and_resize":
        begin, end = r.rng.uniform(-0.2, 0.4, rank - 2), r.rng.uniform(0.6, 1.2, rank - 2)
        outer = ([], []) if axes else ([0, 0], [1, 1])
        region = (np.array([*outer[0], *begin, *outer[1], *end], np.float32), True)
        attributes["extrapolation_value"] = 7.5
    if r.chance(0.5):
        scales = np.array(factors if axes else [1, 1, *factors], np.float32)
        return "Resize", [*values, region, (scales, True)], attributes, opset
    extents = r.integers(2, 14, rank - 2)
    sizes = np.array(extents if axes else [*shape[:2], *extents], np.int64)
    if axes and r.chance(0.4):
        attributes["keep_aspect_ratio_policy"] = r.pick("not_larger", "not_smaller", "stretch")
    return "Resize", [*values, region, nothing, (sizes, True)], attributes, opset


def _modes(r: Random, mode: str, opset: int, attributes: dict[str, Any]) -> str:
    coordinate = r.pick(
        "half_pixel", "pytorch_half_pixel", "align_corners", "asymmetric", "tf_crop_and_resize",
        *(["half_pixel_symmetric"] if opset >= 19 else []),
    )  # fmt: skip
    attributes["coordinate_transformation_mode"] = coordinate
    if mode == "nearest":
        attributes["nearest_mode"] = r.pick(
            "round_prefer_floor", "round_prefer_ceil", "floor", "ceil"
        )
    if mode == "cubic" and r.chance(0.5):
        attributes["cubic_coeff_a"] = -0.5
    if mode == "cubic" and r.chance(0.5):
        attributes["exclude_outside"] = 1
    if mode != "nearest" and opset >= 18 and r.chance(0.3):
        attributes["antialias"] = 1
    return str(coordinate)
