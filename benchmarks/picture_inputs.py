"""Pictures to scores: a library that takes them, beside Pillow or OpenCV and a library of tensors.

MobileNetV2 as a standalone library, on the CPU and on OpenCL: the time from pixels in memory to
scores on the host.  All ways convert, shrink with a filter over all pixels, and normalise; each
picture is given to all of them in turn.  OpenCV is timed where it is installed
(``pip install opencv-python-headless``), with INTER_AREA, its antialiased filter.

    python benchmarks/picture_inputs.py [--rounds 30] [--sizes 640x480 1920x1080]
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from common import in_turn, opencl_device, report, summary, write_json
from PIL import Image

import tvmflow
from tvmflow.models import build as build_model

try:
    import cv2
except ImportError:
    cv2 = None

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
_TEXT = "mean=0.485,0.456,0.406,std=0.229,0.224,0.225"
SIZES = ("640x480", "1280x720", "1920x1080", "4000x3000")
SIDE = 224
TARGETS: dict[str, dict[str, Any]] = {
    "cpu": {"target": "llvm"},
    "opencl": {"target": "opencl", "device": "auto"},
}


def normalised(pixels: np.ndarray) -> np.ndarray:
    """The network's input of ``[224, 224, 3]`` levels."""
    scale = np.float32(1) / (255 * np.float32(STD))
    shift = -np.float32(MEAN) / np.float32(STD)
    return np.ascontiguousarray((pixels * scale + shift).transpose(2, 0, 1)[None])


def with_pillow(picture: np.ndarray, format: str) -> np.ndarray:
    """RGBA8 by Pillow, which has no NV12."""
    assert format == "rgba8"
    image = Image.fromarray(picture, "RGBA").convert("RGB")
    return normalised(np.asarray(image.resize((SIDE, SIDE), Image.Resampling.BILINEAR)))


def with_opencv(picture: np.ndarray, format: str) -> np.ndarray:
    """Either format by OpenCV."""
    code = cv2.COLOR_YUV2RGB_NV12 if format == "nv12" else cv2.COLOR_RGBA2RGB
    image = cv2.resize(cv2.cvtColor(picture, code), (SIDE, SIDE), interpolation=cv2.INTER_AREA)
    return normalised(image)


def ways(target: str, format: str, folder: Path) -> dict[str, Callable[[np.ndarray], np.ndarray]]:
    """Functions from a picture to scores."""
    model = folder / "mobilenet_v2.onnx"
    if not model.exists():
        build_model("mobilenet_v2", model)
    options = {**TARGETS[target], "format": "standalone"}
    made = {}
    for name, more in (
        ("pictures", {"image_inputs": {"input": f"{format},{_TEXT}"}}),
        ("tensors", {}),
    ):
        with tvmflow.compile(model, **options, **more) as module:
            made[name] = tvmflow.load(module.save(folder / f"{target}-{format}-{name}.so"))
    found = {"library": lambda picture: made["pictures"](picture)[0]}
    if format == "rgba8":
        found["Pillow"] = lambda picture: made["tensors"](with_pillow(picture, format))[0]
    if cv2 is not None:
        found["OpenCV"] = lambda picture: made["tensors"](with_opencv(picture, format))[0]
    tensor = np.zeros((1, 3, SIDE, SIDE), np.float32)
    found["network"] = lambda _: made["tensors"](tensor)[0]
    return found


def main() -> None:
    """Measure, print and write the result."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--sizes", nargs="*", default=SIZES)
    parser.add_argument("--targets", nargs="*", default=list(TARGETS))
    arguments = parser.parse_args()
    rows, results = [], []
    with tempfile.TemporaryDirectory() as folder:
        for target in arguments.targets:
            if target == "opencl":
                opencl_device()
            for format in ("rgba8", "nv12"):
                functions = ways(target, format, Path(folder))
                for size in arguments.sizes:
                    width, height = map(int, size.split("x"))
                    shape = (height, width, 4) if format == "rgba8" else (height * 3 // 2, width)
                    picture = np.random.default_rng(0).integers(0, 256, shape).astype(np.uint8)
                    scores = {name: call(picture) for name, call in functions.items()}
                    times = in_turn(
                        {
                            name: lambda call=call, picture=picture: call(picture)
                            for name, call in functions.items()
                        },
                        rounds=arguments.rounds,
                    )
                    median = {name: summary(found)["median_ms"] for name, found in times.items()}
                    agree = {
                        name: float(np.abs(scores[name] - scores["library"]).max())
                        for name in scores
                        if name not in ("library", "network")
                    }
                    results.append(
                        {"target": target, "format": format, "size": size, "ms": median,
                         "scores_differ": agree}
                    )  # fmt: skip
                    columns = ("library", "Pillow", "OpenCV", "network")
                    cells = [f"{median[c]:.2f}" if c in median else "-" for c in columns]
                    rows.append((target, format, size, *cells))
    report(
        "Pictures to scores of MobileNetV2, ms",
        ["", "format", "size", "library", "Pillow", "OpenCV", "network alone"],
        rows,
    )
    versions = {"opencv": None if cv2 is None else cv2.__version__, "pillow": Image.__version__}
    write_json("picture_inputs", {"versions": versions, "rows": results})


if __name__ == "__main__":
    main()
