"""Measure what a library of `--alternatives safe` costs, and what it finds on a driver with faults.

*Cost*: seconds of compiling, bytes of the library, and the time of a self-test beyond two runs.

*Wrong kernels*: the driver computes one kernel of the network wrong (`faulty_driver.c` of the
tests), a different one in each trial.  After the self-test, runs are compared with those of the
driver without the fault, and timed in turn with them.

*Unsteady kernels*: the driver computes a kernel wrong in one of ten launches.

    python benchmarks/wrong_kernels.py [--network mobilenet_v2] [--trials 30]
"""

from __future__ import annotations

import ctypes
import os
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from common import arguments, in_turn, report, write_json

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from support.faulty_driver import build_faulty_driver, fault, functions_of

import tvmflow
from tvmflow.models import build
from tvmflow.module.module import Module
from tvmflow.module.standalone.read import find_plans

#: Runs that are compared after each self-test, and their largest relative difference.
RUNS, TOLERANCE = 20, 1e-3
#: Folder of all files.
FOLDERS: list[str] = []


def main() -> None:
    """Measure, print and write the results."""
    parser = arguments(__doc__, network="mobilenet_v2", rounds=31)
    parser.add_argument("--trials", type=int, default=30, help="kernels that are computed wrong")
    options = parser.parse_args()
    results: dict[str, Any] = {"network": options.network}
    with tempfile.TemporaryDirectory(prefix="tvmflow-") as folder:
        FOLDERS.append(folder)
        set_fault("", 0)
        driver = build_faulty_driver(Path(folder), "libOpenCL.so.1")
        model = build(options.network, Path(folder) / "net.onnx")
        library, results["cost"] = compiled(model, Path(folder))
        os.environ["TVMFLOW_OPENCL_LIBRARY"] = str(driver)
        results["self_test"] = self_test(library, options.rounds)
        (plan,) = find_plans(library)
        kernels = [(name, *where) for name, where in functions_of(plan).items()]
        results["wrong"] = [
            wrong(library, *kernel, options.rounds) for kernel in kernels[: options.trials]
        ]
        results["unsteady"] = [
            unsteady(library, *kernels[(7 * n) % len(kernels)], n) for n in range(20)
        ]
    print_results(results)
    write_json("wrong_kernels", results)


def compiled(model: Path, folder: Path) -> tuple[Path, dict[str, Any]]:
    """Compile a library without and with plain kernels; return that with them, and the costs."""
    found: dict[str, Any] = {}
    # The first one compiles the runtime, too, and is compiled again.
    for name in ("none", "none", "safe"):
        path = folder / f"lib{name}.so"
        begin = time.perf_counter()
        with tvmflow.compile(
            model, target="opencl", device="cpu", format="standalone", alternatives=name
        ) as module:
            module.save(path)
        found[name] = {"seconds": time.perf_counter() - begin, "bytes": path.stat().st_size}
    return path, found


def self_test(library: Path, rounds: int) -> dict[str, Any]:
    """Time self-tests in turn with two runs."""
    with tvmflow.load(library, backend="opencl") as module:
        inputs = feeds(module)
        module(inputs)
        module.self_test()

        def twice() -> None:
            module(inputs)
            module(inputs)

        times = in_turn({"self-test": module.self_test, "two runs": twice}, rounds=rounds)
        return {name: median(each) for name, each in times.items()}


def feeds(module: Module) -> dict[str, np.ndarray]:
    """Return random inputs."""
    rng = np.random.default_rng(3)
    return {info.name: rng.standard_normal(info.shape).astype(info.dtype) for info in module.inputs}


def set_fault(kernel: str, argument: int, rate: int = 1, seed: int = 0) -> None:
    """Let the driver compute a kernel wrong; "" none.  Forget what was found before."""
    os.environ["TVMFLOW_CACHE_DIR"] = tempfile.mkdtemp(dir=FOLDERS[0])
    os.environ |= fault(kernel, argument, rate, seed)


def wrong(library: Path, kernel: str, function: str, argument: int, rounds: int) -> dict[str, Any]:
    """Compare and time runs with and without a wrong kernel."""
    set_fault("", 0)
    with tvmflow.load(library, backend="opencl") as usual:
        inputs = feeds(usual)
        wanted = usual(inputs)
        # The driver looks at the fault when kernels are created.
        set_fault(kernel, argument)
        with tvmflow.load(library, backend="opencl") as module:
            found = module.self_test().report
            right = sum(close(module(inputs), wanted) for _ in range(RUNS))
            runs = {"usual": lambda: usual(inputs), "replaced": lambda: module(inputs)}
            times = in_turn(runs, rounds=rounds)
    # A function that is called several times is listed for each call.
    named = {each["function"] for each in found["functions"]}
    ratio = median(times["replaced"]) / median(times["usual"])
    return {
        "function": function, "found": named == {function}, "right_runs": right, "runs": RUNS,
        "ratio": ratio,
    }  # fmt: skip


def unsteady(library: Path, kernel: str, function: str, argument: int, seed: int) -> dict[str, Any]:
    """Test a library on a driver that computes a kernel wrong in one of ten launches."""
    set_fault(kernel, argument, 10, seed)
    with tvmflow.load(library, backend="opencl") as module:
        found = module.self_test(runs=64).report
    named = {each["function"] for each in found["functions"]}
    return {"function": function, "found": named == {function}, "runs": found["runs"]}


def close(found: Any, wanted: Any) -> bool:
    """Return whether outputs are equal but for the order of sums."""
    return all(
        np.abs(found[name] - array).max() <= TOLERANCE * np.abs(array).max()
        for name, array in dict(wanted.items()).items()
    )


def print_results(results: dict[str, Any]) -> None:
    """Print one table for each part."""
    cost, test = results["cost"], results["self_test"]
    report(
        f"What plain kernels cost, {results['network']}",
        ["", "none", "safe"],
        [
            ["compiled in s", *(f"{cost[n]['seconds']:.1f}" for n in ("none", "safe"))],
            ["library, kB", *(f"{cost[n]['bytes'] / 1e3:.0f}" for n in ("none", "safe"))],
            ["self-test beyond two runs, ms", "", f"{test['self-test'] - test['two runs']:.1f}"],
        ],
    )
    every = results["wrong"]
    slowest = max(every, key=lambda each: each["ratio"])
    report(
        "One kernel is computed wrong",
        ["trials", "found", "right runs", "time, median", "time, most", "of"],
        [
            [
                len(every),
                sum(each["found"] for each in every),
                f"{sum(e['right_runs'] for e in every)} of {sum(e['runs'] for e in every)}",
                f"{median(each['ratio'] for each in every):.3f}",
                f"{slowest['ratio']:.3f}",
                slowest["function"],
            ]
        ],
    )
    trials = results["unsteady"]
    found = sum(each["found"] for each in trials)
    report("A kernel is wrong in one of ten launches", ["trials", "found"], [[len(trials), found]])


if __name__ == "__main__":
    ctypes.CDLL("libOpenCL.so.1")  # a clear error where there is none
    main()
