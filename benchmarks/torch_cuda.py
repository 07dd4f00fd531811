"""CUDA next to PyTorch (cuDNN, cuBLAS, torch.compile): layers of each family, and networks.

    python benchmarks/torch_cuda.py [--arch sm_90] [--only REGEX] [--rounds 20]

does all of it where a GPU and `nvcc` are.  In two steps, the first needs no GPU and the second no
`nvcc`, nor TVM's compiler: modules, and their kernels as machine code, are read from DIR.

    python benchmarks/torch_cuda.py --compile-only DIR [--arch sm_90] [--only REGEX]
    python benchmarks/torch_cuda.py --modules DIR [--rounds 20]

It ends with status 0 and one sentence where PyTorch or the GPU is missing.  Results are compared
first, and a case that is wrong or fails is listed, not timed.  Layers are
compared by the time of their kernels, networks by the latency of a call, in turn; fp32 is without
TF32.  ``--target llvm`` goes the same way on the CPU, to try the script.
"""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from common import arguments, in_turn, missing, report, summary, write_json
from cuda_code import use_machine_code

import tvmflow
from tvmflow.verify.tolerance import NETWORK, STORED_AS_HALF, compare, tolerance_for

#: Elements of the copy that others are measured by.
COPIED = 1 << 26


class Peers:
    """One case in both: the runs, and whether their results agree."""

    def __init__(self, folder: Path, entry: dict[str, str], device: str):
        import torch
        from onnx_torch import OnnxModule

        self.device = device
        self.module = tvmflow.load(folder / f"{entry['name']}-{entry['dtype']}.so").open()
        half = entry["dtype"] == "fp16"
        rng = np.random.default_rng(1)
        self.feeds = [
            torch.from_numpy(rng.standard_normal(info.shape).astype(np.float32)).to(device)
            for info in self.module.inputs
        ]
        dtype = torch.float16 if half else torch.float32
        self.net = OnnxModule(onnx.load(folder / f"{entry['name']}.onnx")).to(device, dtype).eval()
        self.own = [feed.to(dtype) for feed in self.feeds]
        if half and device == "cuda" and self.own[0].ndim == 4:
            # The layout that cuDNN's tensor cores want.
            self.net = self.net.to(memory_format=torch.channels_last)
            self.own = [x.to(memory_format=torch.channels_last) for x in self.own]
        table = STORED_AS_HALF if half else NETWORK
        reference = self.eager().float().cpu().numpy()
        got = self.module.run([feed.cpu().numpy() for feed in self.feeds])[0]
        self.error = compare("y", got, reference, tolerance_for("float32", table))

    def ours(self) -> Any:
        """Call the module; results stay on the device."""
        return self.module.run(self.feeds, output="dlpack")

    def called(self, net: Callable[..., Any]) -> Any:
        """Call a network of PyTorch, and wait for its result."""
        import torch

        with torch.inference_mode():
            result = net(*self.own)
            if self.device == "cuda":
                torch.cuda.synchronize()
            return result

    def eager(self) -> Any:
        """Call PyTorch."""
        return self.called(self.net)

    def compiled(self) -> Callable[[], Any]:
        """Return a call of `torch.compile` with its longest search."""
        import torch

        fast = torch.compile(self.net, mode="max-autotune")
        return lambda: self.called(fast)


def kernel_us(run: Callable[[], Any], device: str) -> float:
    """Return the time of a call's kernels, without copies, whichever library has them."""
    from torch.profiler import ProfilerActivity, profile

    if device != "cuda":
        return in_turn({"run": run}, rounds=1, warmup=0)["run"][0] * 1e3
    with profile(activities=[ProfilerActivity.CUDA]) as profiled:
        run()
    events = profiled.key_averages()
    kernels = [event for event in events if not event.key.startswith(("Memcpy", "Memset"))]
    return sum(event.self_device_time_total for event in kernels)


def copy_gbytes(device: str, rounds: int) -> float:
    """Return the GB/s of a kernel that reads and writes a large array."""
    import torch

    source = torch.ones(COPIED if device == "cuda" else COPIED >> 4, device=device)
    target = torch.empty_like(source)
    times = [kernel_us(lambda: torch.neg(source, out=target), device) for _ in range(rounds)]
    return 8 * source.numel() / statistics.median(times) / 1e3


def measure_layer(peers: Peers, entry: dict[str, str], rounds: int, copy: float) -> dict[str, Any]:
    """Time kernels in turn; for GEMV also return the share of the copy's bandwidth."""
    runs = {"ours": peers.ours, "torch": peers.eager}
    times = in_turn(runs, rounds=rounds, timed=lambda run: kernel_us(run, peers.device))
    ours, torch_us = (statistics.median(times[name]) for name in runs)
    found = {**entry, "us": round(ours, 2), "torch_us": round(torch_us, 2)}
    found["of_torch"] = round(torch_us / ours, 3)
    if entry["family"] == "gemv":
        weights = sum(buffer.numel() * buffer.element_size() for buffer in peers.net.buffers())
        found["of_copy"] = round(weights / ours / 1e3 / copy, 3)
    return found


def measure_network(peers: Peers, entry: dict[str, str], rounds: int) -> dict[str, Any]:
    """Time calls in turn."""
    runs = {"ours": peers.ours, "eager": peers.eager}
    found: dict[str, Any] = dict(entry)
    try:
        runs["compile"] = peers.compiled()
        runs["compile"]()
    except Exception as error:  # noqa: BLE001 (whatever it lacks, the others are measured)
        found["compile_failed"] = str(error).strip().splitlines()[0]
        runs.pop("compile", None)
    found |= {name: summary(times) for name, times in in_turn(runs, rounds=rounds).items()}
    return found


def measure_case(
    folder: Path, entry: dict[str, str], device: str, rounds: int, copy: float
) -> dict[str, Any]:
    """Compare the results, then the times."""
    peers = Peers(folder, entry, device)
    try:
        if not peers.error.passed:
            return {**entry, "wrong": f"{peers.error.max_rel_error:.2g} of the largest value"}
        if entry["family"]:
            return measure_layer(peers, entry, rounds, copy)
        return measure_network(peers, entry, rounds)
    finally:
        peers.module.close()


def measure(folder: Path, rounds: int) -> dict[str, Any]:
    """Measure the modules of a folder, print tables and return the results."""
    import torch

    manifest = json.loads((folder / "modules.json").read_text())
    use_machine_code(folder)
    device = "cuda" if manifest["target"] == "cuda" else "cpu"
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    torch.backends.cudnn.benchmark = True
    copy = copy_gbytes(device, rounds)
    rows, networks = [], []
    for entry in manifest["entries"]:
        try:
            found = measure_case(folder, entry, device, rounds, copy)
        except Exception as error:  # noqa: BLE001 (whatever it is, the others are measured)
            found = {**entry, "wrong": (str(error).strip() or type(error).__name__).splitlines()[0]}
        (rows if entry["family"] else networks).append(found)
    name = torch.cuda.get_device_name() if device == "cuda" else "CPU"
    title = f"Layers on {name}: kernels' times; a copy {copy:.0f} GB/s"
    columns = ("layer", "dtype", "family", "us", "torch_us", "of_torch", "of_copy")
    report(title, columns, [_cells(row, columns) for row in rows])
    columns = ("network", "dtype", "ours", "eager", "compile", "compile / ours")
    report(f"Networks on {name}: ms a call", columns, [_latencies(row) for row in networks])
    return {"gpu": name, "torch": torch.__version__, "copy_gbytes": round(copy, 1),
            "arch": manifest["arch"], "layers": rows, "networks": networks}  # fmt: skip


def _cells(row: dict[str, Any], columns: tuple[str, ...]) -> list[Any]:
    wrong = [f"wrong: {row['wrong']}"] if "wrong" in row else []
    cells = [row.get(column, "") for column in columns[1 + len(wrong) :]]
    return [row["name"], *cells[:2], *wrong, *cells[2:]]


def _latencies(row: dict[str, Any]) -> list[Any]:
    names = ("ours", "eager", "compile")
    medians = [row[name]["median_ms"] if name in row else "" for name in names]
    if "wrong" in row:
        medians[0] = f"wrong: {row['wrong']}"
    ratio = round(medians[2] / medians[0], 3) if "ours" in row and "compile" in row else ""
    return [row["name"], row["dtype"], *medians, ratio]


def main() -> None:
    """Compile, measure, or both."""
    parser = arguments(__doc__, arch="sm_90", only="", rounds=20)
    step = parser.add_mutually_exclusive_group()
    step.add_argument("--compile-only", type=Path, metavar="DIR")
    step.add_argument("--modules", type=Path, metavar="DIR")
    parser.add_argument("--target", default="cuda", choices=["cuda", "llvm"])
    options = parser.parse_args()
    if not options.compile_only and (reason := missing(options.target)):
        print(f"{reason}: nothing measured")
        sys.exit(0)
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.compile_only or options.modules or Path(temporary)
        if not options.modules:
            # Only here: the other step may have to do with TVM's runtime alone.
            from torch_cases import compile_modules

            compile_modules(folder, options.target, options.arch, options.only)
        if not options.compile_only:
            if not (folder / "modules.json").exists():
                parser.error(f"{folder} has no modules; make them with --compile-only")
            results = measure(folder, options.rounds)
            # Results of the CPU only try the script out.
            if options.target == "cuda":
                print(f"written: {write_json('torch_cuda', results)}")


if __name__ == "__main__":
    main()
