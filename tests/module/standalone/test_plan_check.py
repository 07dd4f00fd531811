"""`check_plan` finds every violation, on plans with one fault each."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support.networks import Graph
from support.planned import plan_of

from tvmflow.compiler.standalone.check import check_plan, parameters_of
from tvmflow.errors import CompileError
from tvmflow.module.standalone.plan import Operand, Plan, PlanTensor

pytestmark = pytest.mark.onnxruntime


@pytest.fixture(scope="module")
def made() -> Plan:
    """Return a plan whose tensors share memory: three convolutions and a softmax."""
    g = Graph(1, 3, 9, 9)
    x = g.relu(g.conv(g.relu(g.conv(g.relu(g.conv("x", 8, 3)), 8, 3)), 8, 3))
    return plan_of(g.model(g.node("Softmax", [x], 8, axis=1)), "adreno")


@pytest.fixture
def plan(made: Plan) -> Plan:
    """Return a copy that a test may break."""
    return replace(made, launches=list(made.launches), outputs=list(made.outputs))


def change(plan, number, old, **fields):
    """Replace an operand of a launch, and fields of it."""
    launch = plan.launches[number]
    arguments = tuple(replace(a, **fields) if a is old else a for a in launch.arguments)
    plan.launches[number] = replace(launch, arguments=arguments)


def operands(plan, number, written):
    found = [a for a in plan.launches[number].arguments if isinstance(a, Operand)]
    return [operand for operand in found if operand.written == written]


def test_the_plan_itself_is_right_and_shares_memory(plan):
    check_plan(plan)
    tensors = {o.tensor for n in range(len(plan.launches)) for o in operands(plan, n, True)}
    assert len({t.allocation for t in tensors}) < len(tensors)


@pytest.mark.parametrize(
    ("launch", "message"),
    [(1, r"launch 1, \w+, reads \w+ where \w+ is"), (-1, "nothing leaves the output")],
    ids=["read before written", "output that nothing writes"],
)
def test_a_launch_that_is_missing(plan, launch, message):
    del plan.launches[launch]
    with pytest.raises(CompileError, match=message):
        check_plan(plan)


def test_reading_what_another_tensor_has_overwritten(plan):
    (written,) = operands(plan, 0, True)
    (output,) = operands(plan, 1, True)
    # The second launch overwrites its own input; the third reads the first one's result.
    change(
        plan, 1, output, tensor=PlanTensor("thief", written.tensor.allocation, written.tensor.scope)
    )
    with pytest.raises(CompileError, match="in one place"):
        check_plan(plan)


def test_two_lives_that_overlap(plan):
    first, third = plan.launches[0], plan.launches[2]
    (kept,) = operands(plan, 0, True)
    (other,) = operands(plan, 2, True)
    reader = next(
        o for o in operands(plan, 1, False) if o.tensor.allocation == kept.tensor.allocation
    )
    plan.launches.insert(1, first)
    stolen = PlanTensor("thief", kept.tensor.allocation, other.tensor.scope)
    change(plan, 1, operands(plan, 1, True)[0], tensor=stolen)
    assert third is not first
    with pytest.raises(CompileError, match=f"reads {reader.tensor.name} where thief is"):
        check_plan(plan)


def test_writing_a_weight_or_an_input(plan):
    for tensor in (*plan.weight_tensors.values(), plan.inputs[0].tensor):
        broken = replace(plan, launches=list(plan.launches))
        for number in range(len(plan.launches)):
            for operand in operands(plan, number, False):
                if operand.tensor is tensor:
                    change(broken, number, operand, read=False, written=True)
        with pytest.raises(CompileError, match=r"has no argument that fits|writes "):
            check_plan(broken)


def test_two_outputs_in_one_place(plan):
    plan.outputs.append(plan.outputs[0])
    with pytest.raises(CompileError, match="shares its memory"):
        check_plan(plan)


def test_arguments_that_are_not_the_kernels(plan):
    launch = plan.launches[1]
    cases = {
        "arguments for": launch.arguments[:-1],
        "no argument that fits": launch.arguments[::-1],
        "no argument that fits .*image2d": tuple(
            bytes(4) if argument.written else argument for argument in launch.arguments
        ),
    }
    for words, arguments in cases.items():
        plan.launches[1] = replace(launch, arguments=arguments)
        with pytest.raises(CompileError, match=words):
            check_plan(plan)


def test_sizes_that_are_no_multiple(plan):
    plan.launches[0] = replace(plan.launches[0], global_size=(7, 3), local_size=(2, 1))
    with pytest.raises(CompileError, match=r"sizes \(7, 3\) in groups of \(2, 1\)"):
        check_plan(plan)


def test_a_kernels_parameters():
    source = (
        "__kernel void __attribute__((reqd_work_group_size(1, 2, 1))) f_kernel(__global float* "
        "restrict a, __read_only image2d_array_t b,\n const int n) {\n}"
    )
    found = parameters_of(source, "f_kernel")
    assert found == ["__global float* restrict a", "__read_only image2d_array_t b", "const int n"]
