"""ONNX's own test cases of single operators: each is computed right, or refused."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from onnx_cases import node_cases
from reference import judge, load_or_refusal

from tvmflow.frontend.ops import CONVERTERS

#: Why a case of a supported operator may be refused.
REASONS = (
    "training mode is not supported",
    "nested graphs",
    "the operator is not supported",
    "one scale for each block",
    "only images with two spatial axes",
    "the indices, is not supported",
    "floating-point operands need the attribute fmod=1",
    "only the mode avg",
    "shifting signed numbers by amounts that are not known",
    "align_corners with an extent",
    "TVM does not sort",
    "without any elements",
    "values that are known only at run time",
)

#: Dynamic shapes of the cases: inputs without elements are taken for open ones.
EMPTY = "compiled for static shapes"


#: Cases of several operators: other operators, written out.
SEVERAL = "several operators"


@pytest.fixture(scope="session")
def cases():
    """All cases by operator."""
    table: dict[str, list] = {}
    for case in node_cases():
        op_types = {node.op_type for node in case.model.graph.node}
        table.setdefault(op_types.pop() if len(op_types) == 1 else SEVERAL, []).append(case)
    return table


def with_constants(model, feeds):
    """Make all inputs but the first one constants: shapes, axes, weights."""
    changed = onnx.ModelProto()
    changed.CopyFrom(model)
    for value in list(changed.graph.input)[1:]:
        changed.graph.initializer.append(numpy_helper.from_array(feeds[value.name], value.name))
        changed.graph.input.remove(value)
    return changed


def values(case):
    """Return the inputs and outputs; a scalar may be one of NumPy's instead of an array."""
    inputs, outputs = case.data_sets[0]
    return [
        [np.asarray(v) if isinstance(v, np.generic) else v for v in side]
        for side in (inputs, outputs)
    ]


def is_numeric(arrays):
    return all(isinstance(a, np.ndarray) and a.dtype.kind in "fiub" for a in arrays)


def check(case):
    """Check a case as it is, and with constants where it is refused then."""
    inputs, outputs = values(case)
    if not is_numeric(inputs + outputs):
        return "other types" if load_or_refusal(case.model)[1] else "not compared"
    feeds = dict(zip([v.name for v in case.model.graph.input], inputs, strict=False))
    with np.errstate(all="ignore"):
        refusal = judge(case.model, feeds, outputs)
        if refusal is None:
            return "right"
        refusal = judge(with_constants(case.model, feeds), feeds, outputs)
    if refusal is None:
        return "right with constants"
    empty = any(array.size == 0 for array in inputs)
    assert any(reason in refusal for reason in REASONS) or (empty and EMPTY in refusal), refusal
    return "refused"


@pytest.mark.parametrize("op_type", sorted(CONVERTERS))
def test_operator(cases, op_type):
    """One case of every operator that has some with this operator alone."""
    if op_type not in cases:
        pytest.skip(f"ONNX has no case of {op_type} alone")
    check(cases[op_type][0])


@pytest.mark.slow
@pytest.mark.parametrize("op_type", [*sorted(CONVERTERS), SEVERAL])
def test_all_cases_of_operator(cases, op_type):
    verdicts: dict[str, int] = {}
    for case in cases.get(op_type, []):
        verdict = check(case)
        verdicts[verdict] = verdicts.get(verdict, 0) + 1
    print(op_type, verdicts)


def test_other_operators_are_refused(cases):
    """Whatever a model uses, there is an answer and not a traceback of TVM."""
    refused = 0
    for op_type, of_operator in cases.items():
        if op_type in CONVERTERS or op_type == SEVERAL:
            continue
        refused += sum(load_or_refusal(case.model)[1] is not None for case in of_operator)
    assert refused > 300
