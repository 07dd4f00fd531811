"""FaceBoxNet at full size: 256x256 pixels, 256 boxes, a 4.3 GB fully connected layer.

Builds, compiles, runs and verifies it with the command line, each step in a
process of its own, and reports times and peak memory. The peak counts mapped
pages of the weights' file too, which the system can drop at any time.

    python benchmarks/facebox_full.py [--size 256] [--boxes 256] [--folder DIR]
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from pathlib import Path

from common import opencl_device, report, write_json

GIB = 1 << 30


def step(*arguments: str) -> dict[str, object]:
    """Run one ``tvmflow`` command; its seconds, peak memory in GiB, and what it printed."""
    command = [sys.executable, "-m", "tvmflow", *arguments]
    reader, writer = os.pipe()
    started = time.perf_counter()
    child = os.posix_spawn(
        sys.executable,
        command,
        dict(os.environ),
        file_actions=[(os.POSIX_SPAWN_DUP2, writer, 1), (os.POSIX_SPAWN_CLOSE, reader)],
    )
    os.close(writer)
    with open(reader) as stream:
        printed = stream.read()
    _, status, usage = os.wait4(child, 0)
    if os.waitstatus_to_exitcode(status):
        raise SystemExit(f"{' '.join(command)} failed:\n{printed}")
    return {
        "seconds": round(time.perf_counter() - started, 1),
        # Linux gives kibibytes.
        "peak_gib": round(usage.ru_maxrss * 1024 / GIB, 2),
        "printed": printed,
    }


def main() -> None:
    """Measure every step and write the results."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--size", type=int, default=256)
    parser.add_argument("--boxes", type=int, default=256)
    parser.add_argument("--target", default="opencl")
    parser.add_argument("--folder", default=None, help="where 13 GB of files may be written")
    options = parser.parse_args()
    device = opencl_device() if options.target == "opencl" else {"name": "this CPU"}
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        model, module = Path(folder) / "facebox.onnx", Path(folder) / "facebox.so"
        parameters = ["--param", f"size={options.size}", "--param", f"boxes={options.boxes}"]
        steps = {
            "build": step("models", "build", "facebox_net", "-o", str(model), *parameters),
            "compile": step(
                "compile", str(model), "--target", options.target, "-o", str(module), "--json"
            ),
            "run": step("run", str(module), "--random-seed", "1", "--outputs", f"{folder}/out.npz"),
            "bench": step("bench", str(module), "--runs", "10", "--json"),
            "verify": step("verify", str(model), str(module), "--json"),
        }
        sizes = {p.name: p.stat().st_size for p in sorted(Path(folder).iterdir())}
    bench = json.loads(str(steps["bench"].pop("printed")))
    verify = json.loads(str(steps["verify"].pop("printed")))
    for result in steps.values():
        result.pop("printed", None)
    weights = max(sizes.values())
    report(
        f"FaceBoxNet {options.size}x{options.size}, {options.boxes} boxes on {device['name']}",
        ("step", "seconds", "peak GiB"),
        [(name, result["seconds"], result["peak_gib"]) for name, result in steps.items()],
    )
    written = write_json(
        "facebox_full",
        {
            "device": device,
            "size": options.size,
            "boxes": options.boxes,
            "steps": steps,
            "bench": bench,
            "verify": verify,
            "files_bytes": sizes,
            "weights_gb_per_s": round(weights / bench["median_ms"] / 1e6, 2)
            if "median_ms" in bench
            else None,
        },
    )
    print(f"written: {written}")


if __name__ == "__main__":
    main()
