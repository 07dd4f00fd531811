"""Summary of the storage of a module's tensors: one line, from its metadata.

The smaller metadata of standalone modules contains the line itself.
"""

from __future__ import annotations

from collections import Counter

from ..ir.units import bytes_text, counted
from ..runtime.json_types import JsonMapping

#: Explanations why there is no texture, by the most frequent cause.
_WHY = {
    "asked": "as asked for",
    "cost": "by the cost model, textures are slower than buffers on this device",
    "layout": "the layout for this device has no texels",
    "no images": "the device has no images",
    "limits": "every tensor is over the limits of the device's images",
}


def counts(metadata: JsonMapping) -> dict[str, int]:
    """Return the numbers of intermediate textures and buffers, and their memory."""
    if "storage_counts" in metadata:
        return dict(metadata["storage_counts"])
    tensors = [t for t in metadata["memory"]["tensors"] if t["block"] is not None]
    textures = sum(t["storage"] == "texture" for t in tensors)
    return {
        "textures": textures,
        "buffers": len(tensors) - textures,
        "peak_bytes": metadata["memory"]["peak_bytes"],
        "lower_bound_bytes": metadata["memory"]["lower_bound_bytes"],
    }


def storage_summary(metadata: JsonMapping) -> str:
    """Return a line with textures, buffers and memory, and why there are not more textures."""
    if "storage_summary" in metadata:
        return str(metadata["storage_summary"])
    found = counts(metadata)
    memory = f"{bytes_text(found['peak_bytes'])} of intermediate memory"
    parts = [counted(found["buffers"], "buffer"), memory]
    if metadata["target"] == "opencl":
        parts[0] = f"{counted(found['textures'], 'texture')}, {parts[0]}"
        if not found["textures"]:
            parts[0] += f" ({_why_none(metadata)})"
    over = [p["tensor"] for p in metadata.get("placements", ()) if p["cause"] == "limits"]
    if over:
        names = ", ".join(over[:3]) + (" and others" if len(over) > 3 else "")
        parts.append(f"{len(over)} over the limits of the device's images, in buffers: {names}")
    return "; ".join(parts)


def _why_none(metadata: JsonMapping) -> str:
    causes = Counter(
        p["cause"]
        for p in metadata.get("placements", ())
        if not p["constant"] and p["cause"] in _WHY
    )
    if not causes:
        return "no tensor passes between kernels in a form that a texture has"
    cause = causes.most_common(1)[0][0]
    if cause != "layout":
        return _WHY[cause]
    reasons = Counter(p["reason"] for p in metadata["placements"] if p["cause"] == "layout")
    return f"{_WHY[cause]}: tensors are {reasons.most_common(1)[0][0]}"
