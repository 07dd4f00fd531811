"""Launches find their functions, calls and nodes."""

from __future__ import annotations

from collections import Counter

import pytest

from tvmflow.compiler.metadata import kernel_texts
from tvmflow.explain.profiling.counting import Work
from tvmflow.explain.profiling.measure import launch_origins, work_of


def tensor(name, producer):
    return {"name": name, "producer": producer}


METADATA = {
    "kernels": [
        {"name": "conv_kernel", "function": "conv"},
        {"name": "sum_kernel", "function": "sum"},
        {"name": "sum_kernel_1", "function": "sum"},
    ],
    "memory": {
        "steps": ["conv", "sum", "vm.builtin.reshape", "conv"],
        "tensors": [
            *(tensor("a", "conv"), tensor("work", "sum"), tensor("b", "sum")),
            tensor("c", "conv"),
        ],
    },
    "nodes": {"a": ["Conv_0", "Relu_0"], "b": ["Sum_1"], "c": ["Conv_2"], "work": []},
}
LAUNCHES = ["conv_kernel", "sum_kernel", "sum_kernel_1", "conv_kernel"]


def test_every_launch_has_its_call():
    found = launch_origins(LAUNCHES, METADATA)
    assert [origin.function for origin in found] == ["conv", "sum", "sum", "conv"]
    assert [origin.number for origin in found] == [0, 0, 1, 0]
    assert [origin.nodes for origin in found] == [
        ("Conv_0", "Relu_0"),
        ("Sum_1",),
        ("Sum_1",),
        ("Conv_2",),
    ]


def test_functions_that_are_measured_as_a_whole():
    found = launch_origins(["conv", "sum", "conv"], METADATA)
    assert [origin.number for origin in found] == [None] * 3
    assert [origin.nodes for origin in found] == [("Conv_0", "Relu_0"), ("Sum_1",), ("Conv_2",)]


def test_names_alone_are_enough():
    assert [origin.function for origin in launch_origins(["x", "x"], {})] == ["x", "x"]
    assert [origin.nodes for origin in launch_origins(["x"], METADATA)] == [()]


def test_a_kernel_has_its_own_count_and_a_function_that_of_all():
    counts = [Work(Counter(fp32=3), 10, 4), Work(Counter(fp32=5), 4, 2, True)]
    first, second, whole = launch_origins(["sum_kernel", "sum_kernel_1", "sum"], METADATA)
    assert work_of(first, "sum_kernel", counts) == counts[0]
    assert work_of(second, "sum_kernel_1", counts) == counts[1]
    assert work_of(whole, "sum", counts) == Work(Counter(fp32=8), 14, 6, True)
    assert work_of(whole, "sum", None) is None
    assert work_of(second, "sum_kernel_1", counts[:1]) is None


@pytest.mark.parametrize(
    "head",
    [
        "__kernel void",
        "__attribute__((reqd_work_group_size(8, 8, 1)))\n__kernel void",
        'extern "C" __global__ void __launch_bounds__(64)',
    ],
)
def test_kernels_are_cut_out_of_their_source(head):
    one, two = (f"{head} {name}(float* x) {{\n  if (x) {{\n  }}\n}}" for name in ("one", "two"))
    declared = head.rpartition("\n")[2]
    source = f"{declared} one(float* x);\n{one}\n\nint helper() {{\n}}\n{two}\n"
    # The linkage in front of CUDA's kernels is not needed to read them.
    assert kernel_texts([source]) == {
        name: text.removeprefix('extern "C" ') for name, text in (("one", one), ("two", two))
    }
