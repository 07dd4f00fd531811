"""Compare models, heuristics and presets of phones' GPUs with measurements left out of their fits.

Sections, each a table and a part of results/evidence.json:

- *model*: the device model (`tvmflow.tuning.device_model`).  Each GPU and each network is predicted
  with constants that were fitted without it.  Of best trials: predicted / measured time.  Of
  spaces, all trials of a task: the rank correlation, and the measured times, relative to the least
  one, of the trial that is predicted to be fastest and of the best of the first eight.
- *heuristics*: time of the heuristics' knobs, relative to the best ones, as predicted by the model
  that was fitted without the GPU, and as measured in spaces.
- *winograd*: time of the chosen algorithm, relative to the faster one, for convolutions that were
  tuned both ways.
- *storage*: measured speeds of images and buffers, and the presets' numbers.

    python benchmarks/evidence.py --data FOLDER [--only model ...] [--judge]

``FOLDER`` has the files that `phone_data.py` lists.  ``--judge`` fits nothing, and takes the
constants of the last run.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
from common import RESULTS, arguments, report, write_json
from heuristic_times import Judged, by_model, by_trials
from model_fit import Fitted, fit
from phone_data import Record, add_folder, best_trials, fork_bests, spaces
from scipy.stats import spearmanr
from storage_evidence import measured_storage
from winograd_evidence import judged_choices

from tvmflow.tuning.device_model import CONSTANTS, Constants

SECTIONS = ("model", "heuristics", "winograd", "storage")
#: Choices of AutoTVM's space drawn next to each best trial.
DRAWN = 15
#: Fewest trials of a space whose tiles and groups divide its map.
LEAST = 20
#: Constants of Mali that are not fitted, because its trials do not determine them.
MALI_FIXED = (
    "mixed_slots", "half_registers", "base_registers", "texel_registers", "spill_registers",
    "spill_clocks", "occupancy", "overlap", "group_clocks", "new", "guard",
)  # fmt: skip


def folds(records: Sequence[Record]) -> dict[str, Callable[[Record], bool]]:
    """Return what each fold leaves out, by name."""
    gpus = sorted({record.task.gpu.name for record in records})
    # Mali's trials are of one GPU.
    gpus = gpus if len(gpus) > 1 else []
    networks = sorted({record.task.network for record in records if not record.is_space})
    return {
        **{f"without {gpu}": (lambda r, gpu=gpu: r.task.gpu.name == gpu) for gpu in gpus},
        **{f"without {n}": (lambda r, n=n: r.task.network == n) for n in networks},
    }


def fitted_folds(
    name: str, records: Sequence[Record], last: Any, **options: Any
) -> dict[str, Fitted]:
    """Return the constants of each fold, and of all records as ``all``; print them as they come."""
    found = {}
    for fold, left in {**folds(records), "all": lambda r: False}.items():
        if last is not None:
            found[fold] = read_fitted(last[name][fold]["fitted"])
            continue
        kept = [r for r in records if not left(r)]
        if name == "mali":
            # Its one space is only judged.
            kept = [r for r in kept if not r.is_space]
        found[fold] = fit(kept, **options)
        print(f"{name}, {fold}: {found[fold]}", flush=True)
    return found


def read_fitted(about: dict[str, Any]) -> Fitted:
    """Return fitted constants from JSON."""
    return Fitted(**{**about, "constants": Constants(**about["constants"])})


def quantiles(values: Iterable[float]) -> tuple[float, float, float]:
    """Return the median, the 90th percentile and the largest of some numbers."""
    every = np.array(list(values))
    return tuple(round(float(np.percentile(every, part)), 3) for part in (50, 90, 100))  # type: ignore[return-value]


# -- the device model ----------------------------------------------------------------------------


def judged_times(records: Sequence[Record], fitted: Fitted) -> dict[str, Any]:
    """Return how best trials are predicted."""
    ratios = [fitted.times(r)[0] / r.times[0] for r in records]
    places = [
        float(np.mean(times[1:] < times[0]))
        for times in map(fitted.times, records)
        if len(times) > 1
    ]
    return {
        "records": len(records),
        "median": round(statistics.median(ratios), 3),
        "within_1.5": round(sum(1 / 1.5 < ratio < 1.5 for ratio in ratios) / len(ratios), 3),
        "within_2": round(sum(1 / 2 < ratio < 2 for ratio in ratios) / len(ratios), 3),
        "tenth": round(float(np.percentile(ratios, 10)), 3),
        "ninetieth": round(float(np.percentile(ratios, 90)), 3),
        # Share of the other choices that are predicted to be faster than the best trial.
        "place": round(statistics.median(places), 3) if places else None,
    }


def judged_space(record: Record, fitted: Fitted) -> dict[str, Any]:
    """Return how well a space is ranked: its choices that divide the map, and all of them."""
    predicted = fitted.times(record)
    row: dict[str, Any] = {"gpu": record.task.gpu.name, "space": record.task.network}
    for name, part in (("", record.divided), ("all ", np.ones(len(predicted), bool))):
        times, guesses = record.times[part], predicted[part]
        order = np.argsort(guesses, kind="stable")
        row |= {
            f"{name}trials": len(times),
            f"{name}rho": round(float(spearmanr(guesses, times)[0]), 3),
            f"{name}first": round(float(times[order[0]] / times.min()), 3),
            f"{name}eight": round(float(times[order[:8]].min() / times.min()), 3),
        }
    return row


def model(every: dict[str, list[Record]], last: Any) -> dict[str, Any]:
    """Fit each fold, and judge what it left out."""
    content: dict[str, Any] = {}
    options: dict[str, dict[str, Any]] = {"adreno": {}, "mali": {}}
    for name, records in every.items():
        if name == "mali":
            start = read_fitted(content["adreno"]["all"]["fitted"])
            mali = {**asdict(start.constants), **MALI_FACTS}
            options["mali"] = {
                "start": Fitted(Constants(**mali), start.launch_old_us),
                "fixed": MALI_FIXED,
            }
        content[name] = {}
        rows = []
        constants = fitted_folds(name, records, last, **options[name])
        for fold, left in {**folds(records), "all": lambda r: True}.items():
            some = [r for r in records if left(r)]
            own = [r for r in some if not r.is_space]
            fitted = constants[fold]
            judged = judged_times(own, fitted) if own else {}
            content[name][fold] = {"fitted": asdict(fitted), **judged, "spaces": [
                judged_space(r, fitted)
                for r in some
                if r.is_space and (r.divided.sum() >= LEAST or name == "mali")
            ]}  # fmt: skip
            if judged:
                rows.append([fold, *judged.values()])
        heads = ["fold", "records", "predicted / measured", "within 1.5", "within 2",
                 "10 %", "90 %", "place"]  # fmt: skip
        report(f"{name}: best trials, predicted without them (but the last row)", heads, rows)
        held = [row for fold in content[name] for row in content[name][fold]["spaces"]
                if fold == ("all" if name == "mali" else f"without {row['gpu']}")]  # fmt: skip
        if held:
            heads = list(held[0])
            report(
                f"{name}: spaces, without their GPU", heads, [list(row.values()) for row in held]
            )
            content[name]["held_out_spaces"] = {
                "median_rho": round(statistics.median(row["rho"] for row in held), 3),
                "first": quantiles(row["first"] for row in held),
                "eight": quantiles(row["eight"] for row in held),
            }
            print(content[name]["held_out_spaces"])
    return content


#: Facts of Mali that replace constants of Adreno: 64 registers of 32 bits in an item (Arm).
MALI_FACTS = {"spill_registers": 16.0, "base_registers": 2.0, "texel_registers": 0.75}


# -- heuristics ----------------------------------------------------------------------------------


def heuristics(every: dict[str, list[Record]], constants: Any) -> dict[str, Any]:
    """Judge the heuristics' knobs by the model, and by real trials."""
    rows: list[Judged] = []
    for name, records in every.items():
        for record in records:
            fold = f"without {record.task.gpu.name}"
            if fold in constants[name] and not record.is_space and record.task.is_relay:
                fitted = read_fitted(constants[name][fold]["fitted"])
                rows.append(by_model(record.task, fitted))
    content: dict[str, Any] = {"model": {}, "trials": []}
    lines = []
    for key in sorted({row.key for row in rows}):
        some = [row.ratio for row in rows if row.key == key]
        content["model"][", ".join(key)] = {"tasks": len(some), "quantiles": quantiles(some)}
        lines.append([*key, len(some), *quantiles(some)])
    lines.append(["all", "", "", len(rows), *quantiles(row.ratio for row in rows)])
    content["model"]["all"] = {"tasks": len(rows), "quantiles": quantiles(r.ratio for r in rows)}
    heads = ["GPU", "family", "precision", "tasks", "median", "90th percentile", "largest"]
    report("Heuristic's time / the best's, by the model without the GPU", heads, lines)
    for records in every.values():
        content["trials"] += [row for r in records if r.is_space for row in by_trials(r)]
    if content["trials"]:
        heads = list(content["trials"][0])
        cells = [list(row.values()) for row in content["trials"]]
        report("Heuristic's time / the best's, by real trials", heads, cells)
    return content


def main() -> None:
    """Fit, judge, print, and write the JSON file."""
    parser = arguments(__doc__, only=SECTIONS)
    add_folder(parser)
    parser.add_argument(
        "--judge", action="store_true", help="take the constants of the last run, and fit nothing"
    )
    given = parser.parse_args()
    data = given.data
    path = RESULTS / "evidence.json"
    content = json.loads(path.read_text()) if path.exists() else {}
    last = content["model"] if given.judge or "model" not in given.only else None
    own = best_trials(data, DRAWN) + spaces(data) + fork_bests(data)
    every = {
        "adreno": [r for r in own if r.task.gpu.isa == "ir3"],
        "mali": [r for r in own if r.task.gpu.isa != "ir3"],
    }
    if "model" in given.only:
        content["model"] = model(every, last)
        for name, isa in (("adreno", "ir3"), ("mali", "valhall")):
            used, found = CONSTANTS[isa], content["model"][name]["all"]["fitted"]["constants"]
            if asdict(used) != found:
                print(f"tvmflow's constants of {name} are not those fitted to all: {found}")
    if "heuristics" in given.only:
        content["heuristics"] = heuristics(every, content["model"])
    if "winograd" in given.only:
        content["winograd"] = judged_choices(data)
    if "storage" in given.only:
        content["storage"] = measured_storage(data)
    write_json("evidence", content)


if __name__ == "__main__":
    main()
