"""Print the errors of predicted times by GPU, as the table in tvmflow/tuning/verified.py.

Best trials are predicted with the constants of results/evidence.json that were fitted without the
GPU, or without the network if only one GPU of the vendor was measured.  The errors become the part
``verified`` of that file.

    python benchmarks/verified_times.py --data FOLDER
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from common import RESULTS, arguments, report, write_json
from evidence import folds, read_fitted
from model_fit import Fitted
from phone_data import Array, Record, add_folder, best_trials, fork_bests

from tvmflow.tuning.device_model import least_seconds

#: Percentiles of measured times, relative to predicted ones.
PERCENTILES = 10, 90


def bound_us(record: Record, fitted: Fitted) -> float:
    """Return the bound of a record's best trial in microseconds, with the copies it includes."""
    task, gpu, constants = record.task, fitted.gpu(record.task.gpu), fitted.constants
    kernel = task.kernels(record.choices[:1])
    slots = 0.5 if task.precision.sums < 4 else 1.0
    if task.precision.stored < task.precision.sums:
        slots = constants.mixed_slots
    # A copy reads and writes its bytes.
    copies = sum(least_seconds(2 * n, 0, gpu, constants=constants) for n in task.copied)
    least = least_seconds(float(kernel.bytes), task.multiply_adds, gpu, slots, constants)
    return 1e6 * (least + copies)


def percentiles(values: Array) -> tuple[float, float]:
    """Return the 10th and the 90th percentile of some numbers."""
    low, high = (round(float(value), 2) for value in np.percentile(values, PERCENTILES))
    return low, high


def errors(ratios: Mapping[str, Array], without: str) -> dict[str, Any]:
    """Return a row of the table; each GPU of ``ratios`` has the same weight."""
    # GPUs have different numbers of kernels: 101 percentiles of each have equal weight.
    model, bound = (
        percentiles(np.concatenate([np.percentile(r[column], range(101)) for r in ratios.values()]))
        if len(ratios) > 1
        else percentiles(next(iter(ratios.values()))[column])
        for column in range(2)
    )
    kernels = sum(len(r[0]) for r in ratios.values())
    return {"kernels": kernels, "without": without, "model": model, "bound": bound}


def verified(every: Mapping[str, Sequence[Record]], judged: Mapping[str, Any]) -> dict[str, Any]:
    """Return the errors by GPU and vendor of best trials.

    ``judged`` is the part ``model`` of the results.
    """
    found: dict[str, Any] = {}
    for vendor, records in every.items():
        gpus = sorted({record.task.gpu.name for record in records})
        without = "GPU" if len(gpus) > 1 else "network"
        ratios: dict[str, list[tuple[float, float]]] = {gpu: [] for gpu in gpus}
        for fold, left in folds(records).items():
            is_gpu = fold.removeprefix("without ") in gpus
            if is_gpu != (without == "GPU"):
                continue
            fitted = read_fitted(judged[vendor][fold]["fitted"])
            for record in filter(left, records):
                least = bound_us(record, fitted)
                pair = record.best / fitted.times(record)[0], record.best / least
                ratios[record.task.gpu.name].append(pair)
        columns = {gpu: np.array(pairs).T for gpu, pairs in ratios.items()}
        found |= {gpu: errors({gpu: pairs}, without) for gpu, pairs in columns.items()}
        found[vendor] = errors(columns, without)
    return found


def main() -> None:
    """Judge, print the table, and add it to the JSON file."""
    parser = arguments(__doc__)
    add_folder(parser)
    data = parser.parse_args().data
    content = json.loads((RESULTS / "evidence.json").read_text())
    own = best_trials(data, 0) + fork_bests(data)
    every = {
        "adreno": [r for r in own if r.task.gpu.isa == "ir3"],
        "mali": [r for r in own if r.task.gpu.isa != "ir3"],
    }
    # Records of a GPU or a network that no fit has left out are not judged.
    every = {
        vendor: [r for r in records if f"without {r.task.network}" in content["model"][vendor]]
        for vendor, records in every.items()
    }
    content["verified"] = verified(every, content["model"])
    rows = [[name, *row.values()] for name, row in content["verified"].items()]
    heads = ["GPU", "kernels", "fits without", "measured / predicted", "measured / bound"]
    report("Measured times, 10 % to 90 %", heads, rows)
    for name, row in content["verified"].items():
        values = ", ".join(json.dumps(v) if isinstance(v, str) else str(v) for v in row.values())
        print(f'    "{name}": Errors({values}),')
    write_json("evidence", content)


if __name__ == "__main__":
    main()
