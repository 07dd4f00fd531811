"""Measure what comparing weights and code with their checksums adds to opening a module.

*Checksums*: ways to look at the weights' bytes, in turn, in CPU time.

*Opening*: the module for ``llvm`` opened and closed with and without the comparison, and a model of
a standalone library created as far as its weights go (it then finds no OpenCL library, because
another one's name is given), in turn, in CPU time.

*Code*: the digest of the standalone library's code, in Python (`check_code`) and in C
(`tvmflow_library_check`), next to XXH64 of the whole file, in turn, in CPU time.

    python benchmarks/load_check.py [--network mobilenet_v2] [--rounds 41]
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import statistics
import subprocess
import tempfile
import time
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import xxhash
from common import arguments, in_turn, report, summary, write_json

import tvmflow
from tvmflow.models import build
from tvmflow.module.artifact import Artifact, read_artifact
from tvmflow.module.link import native_folder
from tvmflow.module.standalone.binding import NO_OPENCL, UNCHECKED_WEIGHTS, Library, Options
from tvmflow.module.standalone.code_digest import check_code

#: Largest cost that is allowed for MobileNetV2.
LIMIT_MS = 5.0


def main() -> None:
    """Measure, print and write the results."""
    options = arguments(__doc__, network="mobilenet_v2", rounds=41).parse_args()
    with tempfile.TemporaryDirectory() as folder:
        model = build(options.network, Path(folder) / "net.onnx")
        path = Path(folder) / "net.so"
        tvmflow.compile(model, target="llvm").save(path)
        artifact = read_artifact(path)
        library = Path(folder) / "libnet.so"
        tvmflow.compile(model, target="opencl", format="standalone").save(library)
        rounds = options.rounds
        results: dict[str, Any] = {
            "network": options.network,
            "weights_bytes": artifact.weights_bytes,
            "limit_ms": LIMIT_MS,
            "checksums": checksums(artifact, rounds),
            "code": code(library, Path(folder), rounds),
            "opening": {"llvm": opening(path, rounds), "standalone": creating(library, rounds)},
        }
    print_results(results)
    write_json("load_check", results)


def checksums(artifact: Artifact, rounds: int) -> dict[str, Any]:
    """Time digests of the weights as they are mapped."""
    data = [memoryview(array.reshape(-1).view("u1")) for array in artifact.weights.values()]

    def streamed(make: Callable[[], Any]) -> None:
        digest = make()
        for part in data:
            digest.update(part)

    def running(function: Callable[[Any, int], int]) -> None:
        value = 0
        for part in data:
            value = function(part, value)

    ways = {
        "check_weights (XXH64)": artifact.check_weights,
        "XXH64": lambda: streamed(xxhash.xxh64),
        "XXH3, 64 bits": lambda: streamed(xxhash.xxh3_64),
        "CRC-32 (zlib)": lambda: running(zlib.crc32),
        "BLAKE2b": lambda: streamed(hashlib.blake2b),
        "SHA-256": lambda: streamed(hashlib.sha256),
    }
    return spread(cpu_times(ways, rounds))


def opening(path: Path, rounds: int) -> dict[str, Any]:
    """Time opening and closing the module."""

    def opened(check: bool) -> None:
        tvmflow.load(path, check_weights=check).open().close()

    return cost(opened, rounds)


def creating(path: Path, rounds: int) -> dict[str, Any]:
    """Time the creation of a library's model, up to the search for OpenCL."""
    library = Library(path)

    def created(check: bool) -> None:
        options = Options(
            struct_size=ctypes.sizeof(Options), opencl_library=b"/none",
            flags=0 if check else UNCHECKED_WEIGHTS,
        )  # fmt: skip
        model = ctypes.c_void_p()
        status = library["create"](ctypes.byref(options), ctypes.byref(model))
        library["destroy"](model)
        if status != NO_OPENCL:
            raise RuntimeError(f"creating a model gave status {status}")

    return cost(created, rounds)


def code(path: Path, folder: Path, rounds: int) -> dict[str, Any]:
    """Time the digest of a library's code."""
    source = folder / "check.c"
    source.write_text(
        '#include "tvmflow_check.h"\n'
        "const char* check(const char* path) { return tvmflow_library_check(path); }\n"
    )
    command = ["cc", "-O2", "-shared", "-fPIC", f"-I{native_folder('bindings')}", str(source)]
    subprocess.run([*command, "-o", str(source.with_suffix(".so"))], check=True)
    in_c = ctypes.CDLL(str(source.with_suffix(".so"))).check
    in_c.restype = ctypes.c_char_p

    def checked_in_c() -> None:
        if (reason := in_c(str(path).encode())) is not None:
            raise RuntimeError(reason.decode())

    ways = {
        "check_code": lambda: check_code(path),
        "tvmflow_library_check": checked_in_c,
        "XXH64 of the file": lambda: xxhash.xxh64_intdigest(path.read_bytes()),
    }
    return {"file_bytes": path.stat().st_size, **spread(cpu_times(ways, rounds))}


def cost(run: Callable[[bool], None], rounds: int) -> dict[str, Any]:
    """Return the cost of the comparison: the median of the differences within a round."""
    ways = {"checked": lambda: run(True), "unchecked": lambda: run(False)}
    found = cpu_times(ways, rounds)
    pairs = zip(found["checked"], found["unchecked"], strict=True)
    differences = [checked - unchecked for checked, unchecked in pairs]
    return {**spread(found), "cost_ms": round(statistics.median(differences), 3)}


def cpu_times(ways: Mapping[str, Callable[[], Any]], rounds: int) -> dict[str, list[float]]:
    """Return the CPU time of each candidate once a round, in milliseconds."""
    return in_turn(ways, rounds=rounds, warmup=1, clock=time.process_time)


def spread(times: Mapping[str, list[float]]) -> dict[str, Any]:
    """Return median and deciles of each candidate."""
    return {name: summary(values) for name, values in times.items()}


def print_results(results: Mapping[str, Any]) -> None:
    """Print the tables."""
    parts = {f"{results['weights_bytes'] / 1e6:.1f} MB of weights": results["checksums"]}
    size = results["code"]["file_bytes"] / 1e6
    parts[f"Code of a library of {size:.1f} MB"] = results["code"]
    for form, found in results["opening"].items():
        parts[f"Opening, {form}: the comparison costs {found['cost_ms']} ms"] = found
    for title, found in parts.items():
        rows = [
            (name, t["p10_ms"], t["median_ms"], t["p90_ms"])
            for name, t in found.items()
            if isinstance(t, dict)
        ]
        report(title, ["CPU time, ms", "p10", "median", "p90"], rows)
    costs = {form: found["cost_ms"] for form, found in results["opening"].items()}
    costs["code"] = results["code"]["check_code"]["median_ms"]
    within = {what: ms <= results["limit_ms"] for what, ms in costs.items()}
    print(json.dumps({"within_the_limit": within}))


if __name__ == "__main__":
    main()
