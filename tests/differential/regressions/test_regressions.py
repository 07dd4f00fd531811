"""Networks of fixed faults are right, in every column, or listed as not fixed yet."""

from __future__ import annotations

from collections import defaultdict

import pytest
from cases import CASES, OPSETS, network_of
from configurations import COLUMNS, Configuration
from judging import Worker
from support.drivers import processor_drivers

pytestmark = [pytest.mark.opencl, pytest.mark.onnxruntime]

#: Columns of every run of the tests; the others are slow.
USUAL = ("llvm", "adreno texture fp16")
#: Networks that are compiled as one.
BATCH = 10


@pytest.fixture(scope="module")
def verdicts():
    """Return a function that returns a column's verdicts by case; each is compiled once."""
    drivers = processor_drivers(quick=True)
    worker = Worker(drivers[-1])
    known = {}

    def of(column):
        if column not in known:
            known[column] = {}
            by_opset = defaultdict(list)
            for name in CASES:
                by_opset[OPSETS[name]].append(name)
            for names in by_opset.values():
                for start in range(0, len(names), BATCH):
                    part = names[start : start + BATCH]
                    networks = [network_of(name, f"n{i}_") for i, name in enumerate(part)]
                    found = worker.judge(networks, Configuration(column))
                    known[column] |= dict(zip(part, found, strict=True))
        return known[column]

    yield of
    worker.close()


@pytest.mark.quick
@pytest.mark.parametrize(
    "column",
    [
        *(c if c in USUAL else pytest.param(c, marks=pytest.mark.slow) for c in COLUMNS),
        pytest.param("cuda", marks=[pytest.mark.slow, pytest.mark.cuda_host]),
    ],
)
def test_every_case_is_right(column, verdicts):
    failed = {name: v for name, v in verdicts(column).items() if v.kind != "right"}
    assert not failed, "\n".join(str(verdict) for verdict in failed.values())
