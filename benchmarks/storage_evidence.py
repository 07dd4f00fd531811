"""Compare measured speeds of images and buffers on phones' GPUs with the presets' numbers."""

from __future__ import annotations

import json
import statistics
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

from common import report
from phone_data import rows_of

from tvmflow.devices.presets import PRESETS


def mali_trials(data: Path) -> dict[str, Any]:
    """Return which operands the fork's best kernels on a Mali-G76 read from images.

    The second part is the least time of one convolution's trials, by the storage of its input.
    """
    folder = data / "armgpu"
    kinds: Counter[str] = Counter()
    for row in rows_of(folder / "best.csv"):
        knobs = dict(part.split("=", 1) for part in row["config"].split(";"))
        if row["device"] == "malig76" and "idtype" in knobs:
            read = [n for n, knob in (("input", "idtype"), ("weights", "kdtype"))
                    if knobs[knob] == "1"]  # fmt: skip
            kinds[" and ".join(read) or "neither"] += 1
    workloads = {
        row["workload"]
        for row in rows_of(folder / "workloads.csv.gz")
        if row["device"] == "mali-g76" and row["task"] == "conv2d_no_batching"
    }
    least: dict[str, float] = defaultdict(lambda: float("inf"))
    for row in rows_of(folder / "trials.csv.gz"):
        if row["workload"] in workloads and row["us"]:
            key = "image" if "idtype=1" in row["config"] else "buffer"
            least[key] = min(least[key], float(row["us"]))
    return {"images of the best kernels": dict(kinds), "least us by input": dict(least)}


def measured_storage(data: Path) -> dict[str, Any]:
    """Return measured ratios of images and buffers, and the presets' numbers."""
    probe = json.loads((data / "archprobe" / "archprobe.json").read_text())
    pixel, mali = probe["adreno640_pixel4"], probe["overview_png"]["mali_g76_mp5"]["GBps"]
    figures = json.loads((data / "adreno620" / "figures.json").read_text())
    stream = figures["stream_GBps"]
    live = figures["launch_us"]["live"].values()
    image, buffer = (pixel[f"{kind}Bandwidth"]["MaxBandwidth"] for kind in ("Image", "Buffer"))
    measured = {
        "adreno-640 image / buffer, cached": round(image / buffer, 3),
        "adreno-620 image / buffer, streamed": round(stream["image2d"] / stream["buffer"], 3),
        "adreno-620 launch, us": round(statistics.median(live), 2),
        "mali-g76 image / buffer, cached": round(mali["texture_l1"] / mali["buffer_l1"], 3),
    }
    used = {
        f"{name} {fact}": getattr(PRESETS[name].texture, fact)
        for name in ("adreno", "mali")
        for fact in ("write", "stream", "cached", "tall")
    }
    trials = mali_trials(data)
    report("Storage, measured", ["what", "value"], [[k, v] for k, v in measured.items()])
    report("Storage, presets", ["fact", "value"], [[k, v] for k, v in used.items()])
    report(
        "Storage, a Mali-G76's trials",
        ["what", "count or us"],
        [[f"{k}: {n}", v] for k, part in trials.items() for n, v in part.items()],
    )
    return {"measured": measured, "presets": used, "mali-g76": trials}
