"""ONNX's own test cases of single operators: right, refused and why, or nothing to compare.

    python benchmarks/operator_cases.py                        # writes results/operator_cases.json
    python benchmarks/operator_cases.py --columns llvm --operators TopK DFT --json /tmp/found.json

A case is tried as it is, with all inputs but the first one as constants (shapes, axes, weights),
and of some operators of constants only (lengths of windows, limits of ranges).  The first that is
compiled is run, and compared with the case's own results as `tests/differential/oracle.py` does.
"""

from __future__ import annotations

import re
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from common import arguments, report, write_json
from onnx import TensorProto

from tvmflow.errors import TvmflowError
from tvmflow.frontend.load import load_model

TESTS = Path(__file__).parents[1] / "tests"
sys.path[:0] = [str(TESTS / "support"), str(TESTS / "differential")]
from configurations import Configuration  # noqa: E402 - found in the tests' folder
from judging import Worker  # noqa: E402
from node_cases import (  # noqa: E402
    FORMS,
    cases,
    forms_of,
    is_numeric,
    is_plain,
    network_of,
    opset_of,
    values,
)
from rounding_noise import names  # noqa: E402
from support.drivers import processor_drivers  # noqa: E402

COLUMNS = ("llvm", "auto")
#: Cases that are compiled as one.
BATCH = 12
NO_NUMBERS, OTHER_TYPES, OTHER_DOMAINS = "no tensors", "other element types", "other domains"

#: Operators that convolutional networks use, in classification, detection, segmentation and
#: super-resolution, quantized ones among them.
CNN = names(
    """
    Add ArgMax AveragePool BatchNormalization Cast Ceil Clip Concat Conv ConvInteger ConvTranspose
    DepthToSpace DequantizeLinear Div Dropout Elu Exp Expand Flatten Floor Gather Gemm
    GlobalAveragePool GlobalMaxPool GridSample GroupNormalization HardSigmoid HardSwish Identity
    InstanceNormalization LRN LayerNormalization LeakyRelu Log MatMul Max MaxPool MaxUnpool Mean
    Min Mish Mul Neg NonMaxSuppression PRelu Pad Pow QLinearConv QLinearMatMul QuantizeLinear
    ReduceMax ReduceMean ReduceMin ReduceSum Relu Reshape Resize RoiAlign Selu Shape Sigmoid Slice
    Softmax Softplus Softsign SpaceToDepth Split Sqrt Squeeze Sub Sum Swish Tanh TopK Transpose
    Unsqueeze Upsample Where
    """
)


def kind_of(case: Any) -> str | None:
    """Return why a case is not tried, ``None`` if it is."""
    if not is_plain(case):
        return OTHER_DOMAINS
    if is_numeric(case):
        return None
    arrays = [v for side in values(case) for v in side]
    tensors = all(isinstance(a, np.ndarray | TensorProto) for a in arrays)
    return OTHER_TYPES if tensors else NO_NUMBERS


def refusal(model: Any) -> str | None:
    """Return why a model is refused, without names; ``None`` if it is not."""
    try:
        load_model(model)
    except TvmflowError as error:
        lines = [line.strip() for line in str(error).splitlines()]
        found = next((re.split(r"\(\d+ nodes?\): ", n)[1] for n in lines if " node" in n[:60] and
                      re.search(r"\(\d+ nodes?\): ", n)), lines[0])  # fmt: skip
        return re.sub(r"'\w+'|\[[^]]*\]", "…", found)
    return None


def tried(chosen: Sequence[tuple[str, Any]]) -> tuple[dict[str, str], dict[str, Any]]:
    """Return for each case the form in which the front end takes it, or why it refuses it.

    Also the networks, and their results, of those that are compiled.
    """
    found: dict[str, str] = {}
    networks: dict[str, Any] = {}
    for index, (_, case) in enumerate(chosen):
        kind = kind_of(case)
        if kind is not None:
            found[case.name] = kind
            continue
        reasons = []
        for form in forms_of(case):
            network = network_of(case, f"n{index}_", form=form)
            why = refusal(network[0].model)
            if why is None:
                found[case.name] = form
                networks[case.name] = network
                break
            reasons.append(why)
        else:
            # The reason is the one that remains if inputs are constants.
            found[case.name] = reasons[min(1, len(reasons) - 1)]
    return found, networks


def judged(worker: Any, column: str, chosen: Any, networks: Mapping[str, Any]) -> Iterator[Any]:
    """Yield verdicts on the networks, each with the name of its case."""
    by_opset = defaultdict(list)
    for _, case in chosen:
        if case.name in networks:
            by_opset[opset_of(case)].append(case.name)
    for together in by_opset.values():
        for start in range(0, len(together), BATCH):
            batch = together[start : start + BATCH]
            expected = {k: v for name in batch for k, v in networks[name][1].items()}
            pairs = [networks[name][0] for name in batch]
            yield from zip(batch, worker.judge(pairs, Configuration(column), expected), strict=True)


def main() -> None:
    """Try, judge, print and write."""
    parser = arguments(__doc__, columns=[*COLUMNS])
    parser.add_argument("--operators", nargs="+")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    table_of = cases()
    chosen = [
        (op_type, case)
        for op_type in sorted(options.operators or table_of)
        for case in table_of.get(op_type, [])
    ]
    found, networks = tried(chosen)
    operators = {case.name: op_type for op_type, case in chosen}
    worker = Worker(processor_drivers(quick=True)[-1])
    result: dict[str, Any] = {"cases": len(chosen)}
    for column in options.columns:
        kinds = dict(found)
        for name, verdict in judged(worker, column, chosen, networks):
            if verdict.kind != "right":
                kinds[name] = f"{verdict.kind}: {verdict.message}"
                print(f"{name} ({column}): {verdict.kind}: {verdict.message}", flush=True)
        result[column] = summary(kinds, operators)
        show(column, result[column])
    worker.close()
    if options.json or not options.operators:
        write_json(options.json or "operator_cases", result)


def summary(kinds: Mapping[str, str], operators: Mapping[str, str]) -> dict[str, Any]:
    """Return counts of all cases, and of those with convolutional networks' operators."""
    mine = {name: kind for name, kind in kinds.items() if operators[name] in CNN}
    refused = Counter((operators[n], k) for n, k in kinds.items() if k not in FORMS)
    return {
        "all": dict(Counter(kinds.values()).most_common()),
        "cnn": dict(Counter(mine.values()).most_common()),
        "refused": [[*key, count] for key, count in refused.most_common()],
    }


def show(column: str, found: Mapping[str, Any]) -> None:
    """Print the summary of a column."""
    report(f"not right in {column}", ("operator", "why", "cases"), found["refused"])
    for title, part in (("all operators", "all"), ("operators of convolutional networks", "cnn")):
        counts = Counter(found[part])
        skipped = {kind: counts[kind] for kind in (NO_NUMBERS, OTHER_TYPES, OTHER_DOMAINS)}
        right = {form: counts[form] for form in FORMS}
        tried = counts.total() - sum(skipped.values())
        print(f"{column}, {title}: {sum(right.values())} of {tried} right {right}")
        print(f"  not tried: {skipped} of {counts.total()}")


if __name__ == "__main__":
    main()
