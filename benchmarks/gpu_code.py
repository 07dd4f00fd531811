"""Machine code of the example networks for phones' GPUs, which need not be here.

Every network is compiled for textures and buffers, in fp32 and fp16, and its kernels by the
compilers of the GPUs (`tvmflow isa --setup` fetches them; those of Mali run in an emulator, so that
only kernels with 1 % of the arithmetic are compiled for it).  The numbers go to
results/gpu_code.json and to a page that sorts and filters them, beside those of an earlier state:

    python benchmarks/gpu_code.py [--gpus adreno-660 ...] [--networks ...] [--before OLD.json]
    python benchmarks/gpu_code.py --page-only

The earlier state's modules may be kept, to be counted in the same way:

    git switch --detach OLD && python benchmarks/gpu_code.py --modules old/ --compile-only
    git switch NEW && python benchmarks/gpu_code.py --modules old/ --output old.json
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Mapping
from itertools import product
from pathlib import Path
from typing import Any

from common import RESULTS, arguments, arrow, earlier, report, write_json
from same_kernels import NETWORKS as SIZES

import tvmflow
from tvmflow import models
from tvmflow.devices.gpus import Gpu, find_gpu
from tvmflow.errors import DeviceError
from tvmflow.explain.isa.kernels import kernels_in
from tvmflow.explain.isa.report import SUITE, find_compiler, machine_code
from tvmflow.module.files import write_file

#: All that the registry has, but for the loss, which is no network.
NETWORKS = [name for name in models.BUILDERS if name != "facebox_loss"]
FORMS = {
    "texture": {"storage": "texture"},
    "buffer": {"storage": "buffer"},
    "texture fp16": {"storage": "texture", "dtype": "fp16"},
    "buffer fp16": {"storage": "buffer", "dtype": "fp16"},
}
GPUS = ("adreno-660", "adreno-740", "adreno-830", "mali-g610")
#: An emulator runs Mali's compiler, several times slower.
LEAST_SHARE = {"valhall": 0.01}
#: Numbers of a kernel, in the order of JSON's rows, and which of them is worse.
COLUMNS = {"share %": None, "items": None} | {
    **dict.fromkeys(("lanes %", "waves", "mad %"), "less"),
    **dict.fromkeys(("registers", "slots", "idle", "fetches", "loads", "spills", "cycles"), "more"),
}
SUMS = ("text", "kernels", "slots", "idle", "mad %", "waves", "lanes %", "spills")
_PAGE = Path(__file__).with_name("gpu_code.html")


def counted(path: Path, gpu: Gpu, suite: str) -> dict[str, Any]:
    """Count a module's source, sums and means over its kernels, and a row for each."""
    found = machine_code(path, gpu, suite=suite, least_share=LEAST_SHARE.get(gpu.isa, 0.0))
    kernels, count = found.kernels, max(len(found.kernels), 1)
    hot = sum(each.hot.issue for each in kernels)
    rows = {
        each.kernel: [
            round(100 * found.share(each.kernel), 1),
            each.group_size,
            round(100 * (each.lanes_filled or 0)),
            each.waves,
            round(100 * each.multiply_add_share),
            each.registers,
            each.whole.issue,
            each.whole.idle,
            each.hot.fetches,
            each.hot.loads,
            each.spills,
            max(each.cycles.values(), default=0),
        ]
        for each in kernels
    }
    return {
        "compiler": found.compiler,
        "failures": [failure.kernel for failure in found.failures],
        "text": sum(len(kernel.text) for kernel in kernels_in(path, gpu)[1]),
        "kernels": len(kernels),
        "slots": sum(each.whole.issue for each in kernels),
        "idle": sum(each.whole.idle for each in kernels),
        "mad %": round(100 * sum(each.hot.multiply_adds for each in kernels) / max(hot, 1), 1),
        "waves": round(sum(each.waves for each in kernels) / count, 2),
        "lanes %": round(100 * sum(each.lanes_filled or 0 for each in kernels) / count, 1),
        "spills": sum(each.spills for each in kernels),
        "by kernel": rows,
    }


def module(folder: Path, network: str, form: str, preset: str) -> Path:
    """Return a network's module in the folder, compiled if it is not there."""
    path = folder / f"{network}.{form.replace(' ', '_')}.{preset}.so"
    if not path.exists():
        model = models.make(network, **SIZES.get(network, {}))
        tvmflow.compile(model, target="opencl", device=preset, **FORMS[form]).save(path)
    return path


def page(results: Mapping[str, Any], before: Mapping[str, Any]) -> str:
    """Return the page that sorts and filters the counts."""
    content = {"columns": COLUMNS, "sums": SUMS, "results": results, "before": before}
    data = json.dumps(content, separators=(",", ":")).replace("<", "\\u003c")
    return _PAGE.read_text().replace("$data", data)


def main() -> int:
    """Compile, count, compare."""
    parser = arguments(__doc__, networks=tuple(NETWORKS), gpus=[*GPUS], forms=tuple(FORMS),
                       suite=SUITE, output=RESULTS / "gpu_code.json")  # fmt: skip
    parser.add_argument("--before", type=Path, help="what this wrote for an earlier state")
    parser.add_argument("--modules", type=Path, help="folder that keeps what is compiled")
    parser.add_argument("--compile-only", action="store_true")
    parser.add_argument("--page-only", action="store_true", help="from the output that is there")
    options = parser.parse_args()
    if options.page_only:
        text = page(earlier(options.output), earlier(options.before))
        write_file(options.output.with_suffix(".html"), text)
        return 0
    gpus = [find_gpu(name) for name in options.gpus]
    if not options.compile_only:
        try:
            for gpu in gpus:
                find_compiler(gpu, options.suite)
        except DeviceError as error:
            print(f"Skipped: {error}")
            return 0
    before = earlier(options.before)
    results: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.modules or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        for network, form, gpu in product(options.networks, options.forms, gpus):
            path = module(folder, network, form, gpu.preset)
            if options.compile_only:
                continue
            name = f"{network}, {form}, {gpu.name}"
            results[name] = counted(path, gpu, options.suite)
            print(name, {column: results[name][column] for column in SUMS}, flush=True)
    if options.compile_only:
        return 0
    rows = []
    for name, found in results.items():
        old = before.get(name, found)
        rows.append([name, *(arrow(old[column], found[column]) for column in SUMS)])
    report("Machine code", ["network", *SUMS], rows)
    write_json(options.output, {"columns": [*COLUMNS], "results": results})
    write_file(options.output.with_suffix(".html"), page(results, before))
    return 0


if __name__ == "__main__":
    sys.exit(main())
