"""Judge the times of TFLite's GPU delegate as a yardstick for shapes that were not measured.

The data are of github.com/qed-usc/mobile-ml-benchmark: microseconds of each operator of many
networks, on phones.  Each family of networks (all widths and depths) is left out in turn, and its
operators are looked up among those of the others.  The table counts the operators that have an
answer, and compares the rate of the nearest operator with the true one.  Rates are times for an
operation, for ``concat`` for an element; a ratio is the larger rate divided by the smaller one.

    python benchmarks/yardstick.py OPS.csv.gz            # the table, and results/yardstick.json
    python benchmarks/yardstick.py OPS.csv.gz --build    # also write the data of the package
"""

from __future__ import annotations

import csv
import gzip
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from common import arguments, report, write_json

from tvmflow.explain.yardstick import measured
from tvmflow.explain.yardstick.measured import GPUS, LIMIT, Operator, Times, yardstick_of

#: Columns of times in the source, in the order of `GPUS`.
PHONES = ("pixel4", "mi8se", "s10")
KINDS = {
    "CONV_2D": "conv2d",
    "CONV_2D_GROUP": "grouped",
    "DEPTHWISE_CONV_2D": "depthwise",
    "FULLY_CONNECTED": "dense",
    "MEAN": "mean",
    "MAX_POOL_2D": "pooling",
    "AVERAGE_POOL_2D": "pooling",
    "CONCATENATION": "concat",
}
DATA = Path(measured.__file__).with_name("tflite_gpu.csv")
#: Operators of networks, with their times in the order of `GPUS`.
Rows = list[tuple[str, Operator, tuple[float, ...]]]


def read(path: Path) -> Rows:
    """Return network, operator and times of each row of a file, compressed or not."""
    opened = gzip.open if path.suffix == ".gz" else open
    with opened(path, "rt", encoding="utf-8") as file:
        return [
            (row["network"], operator(row), tuple(float(row[f"{phone}_us"]) for phone in PHONES))
            for row in csv.DictReader(file)
        ]


def operator(row: Mapping[str, str]) -> Operator:
    """Return the operator of a row, in which a dash stands for what an operator does not have."""
    kind = KINDS[row["op"]]
    inputs = int(row["c_in"])
    numbers = {name: int(n) for name, n in row.items() if n.isdecimal()}
    if kind == "dense":
        return Operator(kind, inputs, numbers["c_out"])
    if kind == "concat":
        return Operator(kind, inputs, numbers["c_out"], numbers["out"], numbers["out"])
    # The delegate's average of a whole map is its mean.
    if kind == "mean" or (kind == "pooling" and numbers["out"] == 1):
        return Operator("mean", inputs, inputs, numbers["in"], numbers["in"])
    # A depthwise row has the multiplier, which is 1, as its output channels.
    outputs = numbers["c_out"] if kind in ("conv2d", "grouped") else inputs
    place = numbers["out"], numbers["out"], numbers["kernel"], numbers["stride"]
    return Operator(kind, inputs, outputs, *place, numbers["groups"] if kind == "grouped" else 1)


def medians(rows: Rows) -> dict[Operator, Times]:
    """Return the median times of each operator."""
    times = defaultdict(list)
    for _, each, found in rows:
        times[each].append(found)
    return {
        each: dict(zip(GPUS.values(), np.median(found, axis=0).tolist(), strict=True))
        for each, found in times.items()
    }


def build(rows: Rows) -> None:
    """Write the package's file."""
    names = ("kind", "inputs", "outputs", "size", "window", "stride", "groups")
    lines = [",".join((*names, *GPUS))]
    known = medians(rows)
    for each in sorted(known, key=lambda op: (op.kind, op.window, op.stride, *op.sizes, str(op))):
        facts = each.kind, each.inputs, each.outputs, each.height, each.window, each.stride
        times = (f"{us:.4g}" if us < 1e4 else f"{us:.0f}" for us in known[each].values())
        lines.append(",".join((*map(str, facts), str(each.groups), *times)))
    DATA.write_text("\n".join(lines) + "\n", encoding="utf-8")


def family(network: str) -> str:
    """Return the letters that a network's name begins with."""
    return re.match("[a-z]+", network)[0]  # type: ignore[index]


def amount(each: Operator) -> int:
    """Return the operations of an operator, or the elements that it moves."""
    return each.flops or each.outputs * each.height * each.width


def judge(rows: Rows) -> list[dict[str, Any]]:
    """Look up the operators of each family of networks among those of the others."""
    judged = []
    for left_out in sorted({family(network) for network, _, _ in rows}):
        known = medians([row for row in rows if family(row[0]) != left_out])
        for each, times in medians([row for row in rows if family(row[0]) == left_out]).items():
            found = yardstick_of(each, known)
            ratios = None
            if found is not None:
                work = amount(found.measured) / amount(each)
                off = [found.us[gpu] / us / work for gpu, us in times.items()]
                ratios = [max(ratio, 1 / ratio) for ratio in off]
            far = None if found is None else found.distance
            judged.append({"kind": each.kind, "distance": far, "ratios": ratios})
    return judged


def summary(judged: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the number of operators, and the quantiles of their ratios for each GPU."""
    ratios = [each["ratios"] for each in judged]
    columns = zip(GPUS.values(), np.array(ratios).T if ratios else (), strict=False)
    return {
        "operators": len(judged),
        **{
            gpu: {"median": round(float(np.median(column)), 3),
                  "p90": round(float(np.percentile(column, 90)), 3)}
            for gpu, column in columns
        },
    }  # fmt: skip


def summaries(judged: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return summaries of operators with the same shape and the nearest one, and of the rest."""
    answered = [each for each in judged if each["distance"] is not None]
    return {
        "same": summary([each for each in answered if each["distance"] == 0]),
        "nearest": summary([each for each in answered if each["distance"] > 0]),
        "none": len(judged) - len(answered),
    }


def cells(found: Mapping[str, Any]) -> list[str]:
    """Return the number of operators, and median and 90th percentile for each GPU."""
    pairs = (found.get(gpu) for gpu in GPUS.values())
    texts = (f"{each['median']:.2f} / {each['p90']:.2f}" if each else "-" for each in pairs)
    return [str(found["operators"]), *texts]


def table(results: Mapping[str, Any]) -> Iterable[list[str]]:
    """Yield the rows of the printed table."""
    for kind, found in results.items():
        for name in ("same", "nearest"):
            yield [kind, name, *cells(found[name])]
        yield [kind, "none", str(found["none"]), *[""] * len(GPUS)]


def main() -> None:
    """Print the table and write the results."""
    parser = arguments(__doc__)
    parser.add_argument("ops", type=Path, help="the operators' times, CSV")
    parser.add_argument("--build", action="store_true", help="write the data of the package")
    options = parser.parse_args()
    rows = read(options.ops)
    if options.build:
        build(rows)
    judged = judge(rows)
    kinds = dict.fromkeys(each["kind"] for each in judged)
    results = {kind: summaries([each for each in judged if each["kind"] == kind]) for kind in kinds}
    results["all"] = summaries(judged)
    columns = ["kind", "found", "operators", *GPUS.values()]
    report("Ratio of rates, median / 90th percentile", columns, list(table(results)))
    facts = {"rows": len(rows), "shapes": len(medians(rows)), "limit": LIMIT}
    facts["families_left_out"] = len({family(network) for network, _, _ in rows})
    write_json("yardstick", {"data": facts, "results": results})


if __name__ == "__main__":
    main()
