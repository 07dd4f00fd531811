"""ONNX's own test cases of single operators through the pipeline: computed right, or refused.

Several cases are compiled as one, for LLVM, for OpenCL and in textures.
"""

from __future__ import annotations

from collections import Counter, defaultdict

import numpy as np
import pytest
from configurations import Configuration
from judging import Worker
from node_cases import SEVERAL, cases, forms_of, is_numeric, is_plain, network_of, opset_of
from oracle import NoReferenceError, Oracle
from support.drivers import processor_drivers

from tvmflow.errors import ModelError
from tvmflow.frontend.dynamic import MAKERS
from tvmflow.frontend.expansion import EXPANDERS
from tvmflow.frontend.load import load_model
from tvmflow.frontend.ops import CONVERTERS

pytestmark = [pytest.mark.opencl, pytest.mark.onnxruntime]

COLUMNS = ("llvm", "auto", "adreno texture")
#: Supported operators.
OPERATORS = {*CONVERTERS, *EXPANDERS, *MAKERS}

#: Cases that are compiled as one.
BATCH = 12

#: Accepted reasons for refusing a case of a supported operator.
REASONS = (
    "in training mode its result is another one",
    "its trip count is computed at run time",
    # In ONNX's own AffineGrid.
    "Input to 'Range' op should be scalars",
    "the operator is not supported",
    "align_corners with an extent",
    "implementations disagree in which",
    "cubic samples of volumes",
    "bits of float16 are not there",
    "values that are known only at run time",
)
#: Part of a message that shows an accident, not a decision.
ACCIDENT = "TVM does not take it"

#: Cases that are not right yet, by column; once fixed, they must leave this list.
NOT_MENDED: dict[str, frozenset[str]] = {}


@pytest.fixture(scope="module")
def worker():
    running = Worker(processor_drivers(quick=True)[-1])
    yield running
    running.close()


def refusal(model) -> str | None:
    """Return the reason of a model's refusal: a decision with a remedy."""
    try:
        load_model(model)
    except ModelError as error:
        caught = error
    else:
        return None
    assert ACCIDENT not in str(caught), str(caught)
    assert caught.remedy
    return str(caught)


def prepared(chosen):
    """Return networks with their expected results, in batches, and count the refused ones."""
    counts: Counter[str] = Counter()
    by_opset = defaultdict(list)
    for index, case in enumerate(chosen):
        if not is_numeric(case) or not is_plain(case):
            counts["not compared"] += 1
            continue
        reasons = []
        for form in forms_of(case):
            network, expected = network_of(case, f"n{index}_", form=form)
            why = refusal(network.model)
            reasons.append(why)
            if why is None:
                counts[form] += 1
                by_opset[opset_of(case)].append((network, expected))
                break
        else:
            assert any(reason in str(why) for reason in REASONS for why in reasons), reasons
            counts["refused"] += 1
    batches = [
        found[start : start + BATCH]
        for found in by_opset.values()
        for start in range(0, len(found), BATCH)
    ]
    return batches, counts


def judge(worker, column, chosen) -> Counter[str]:
    """Compile, run and compare cases; return how many had which outcome."""
    batches, counts = prepared(chosen)
    wrong = []
    for batch in batches:
        networks = [network for network, _ in batch]
        expected = {name: array for _, arrays in batch for name, array in arrays.items()}
        for verdict in worker.judge(networks, Configuration(column), expected):
            known = verdict.network.position in NOT_MENDED.get(column, ())
            if verdict.failed != known:
                wrong.append(str(verdict) if verdict.failed else f"{verdict} is mended")
    assert not wrong, "\n".join(wrong)
    return counts


def one_of_each(column):
    """Return a case of every operator, a different one in each column."""
    turn = COLUMNS.index(column)
    for op_type in sorted(OPERATORS & set(cases())):
        of_operator = cases()[op_type]
        yield of_operator[turn * len(of_operator) // len(COLUMNS)]


@pytest.mark.parametrize("column", COLUMNS)
def test_one_case_of_each_operator(worker, column):
    """Each column covers a third of the operators."""
    chosen = list(one_of_each(column))[COLUMNS.index(column) :: len(COLUMNS)]
    counts = judge(worker, column, chosen)
    assert counts["as it is"] + counts["with constants"] > 0.6 * len(chosen)


@pytest.mark.slow
@pytest.mark.parametrize("column", COLUMNS)
@pytest.mark.parametrize("op_type", [*sorted(OPERATORS), SEVERAL])
def test_all_cases_of_operator(worker, op_type, column):
    counts = judge(worker, column, cases().get(op_type, []))
    print(op_type, column, dict(counts))


def test_other_operators_are_refused():
    """Any operator gets an answer, never a traceback of TVM."""
    refused = 0
    for op_type, of_operator in cases().items():
        if op_type in OPERATORS or op_type == SEVERAL:
            continue
        for case in of_operator:
            refused += refusal(case.model) is not None
    assert refused > 50


def test_the_reference_is_what_onnx_says():
    """The oracle agrees with the results that come with the cases."""
    compared = 0
    for case in one_of_each("llvm"):
        if not is_numeric(case) or not is_plain(case):
            continue
        network, expected = network_of(case, "n", form="as it is")
        try:
            oracle = Oracle(network)
        except NoReferenceError:
            continue
        compared += 1
        for name, array in expected.items():
            found = oracle.reference[name]
            assert found.shape == array.shape, case.name
            if array.dtype.kind == "f":
                # ONNX Runtime's transforms lose digits if large numbers cancel.
                limit = max(1e-5, 1e-6 * np.abs(array[np.isfinite(array)]).max(initial=0))
                np.testing.assert_allclose(found, array, rtol=1e-3, atol=limit, err_msg=case.name)
            else:
                np.testing.assert_array_equal(found, array, err_msg=case.name)
    assert compared > 100


def test_a_wrong_case_is_found():
    """The comparison is with the case's own results."""
    case = cases()["Relu"][0]
    network, expected = network_of(case, "n", form="as it is")
    (name,) = expected
    oracle = Oracle(network, expected={name: expected[name] + np.float32(1e-3)})
    assert oracle.judge({name: expected[name]}) is not None
    assert Oracle(network, expected=expected).judge(expected) is None
