"""Operators' definitions: requirements, the arguments of their functions, and registration."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from tvmflow import ops
from tvmflow.errors import OperatorError, ShapeError
from tvmflow.ir import operators
from tvmflow.ir.operator import Operand, Operator
from tvmflow.ir.tensors import TensorType

FLOATS = ("float32", "float16", "bfloat16")


def scale(name: str = "Scale", **changes) -> Operator:
    """Return ``x * factor + offset`` with an optional ``offset``, and the sum of it."""

    def infer(types, attributes):
        x, offset = types
        if offset is not None and offset.shape != x.shape:
            raise ShapeError(f"{list(offset.shape)} is not {list(x.shape)}")
        return x, TensorType((), "int32")

    def reference(arrays, attributes):
        x, offset = arrays
        y = x * attributes["factor"] + (0 if offset is None else offset)
        return [y, y.sum()]

    given = {
        "inputs": (Operand("x", FLOATS), Operand("offset", ("float32", "int64"), optional=True)),
        "outputs": (Operand("y", FLOATS), Operand("sum", ("int32",))),
        "attributes": {"factor": 2.0, "mode": "plain", "axes": (0, 1)},
        **changes,
    }
    return Operator(
        name, "Scales.", infer=infer, compute=lambda *_: [], reference=reference, **given
    )


def refused(function: Callable, *words: str) -> None:
    with pytest.raises(OperatorError) as caught:
        function()
    assert caught.value.remedy
    for word in words:
        assert word in caught.value.message


def test_attributes_are_completed_and_checked():
    operator = scale()
    assert operator.complete({"factor": 3})["factor"] == 3
    assert operator.complete({"mode": "other"}) == {
        "factor": 2.0, "mode": "other", "axes": (0, 1),
    }  # fmt: skip
    refused(lambda: operator.complete({"size": 1}), "Scale", "'size'", "'factor'")
    refused(lambda: operator.complete({"factor": "much"}), "'factor'", "'much'", "2.0")
    refused(lambda: operator.complete({"axes": 1}), "'axes'", "(0, 1)")


def test_inputs_are_checked_before_their_shapes_are():
    operator = scale()
    x = TensorType((2, 3), "float16")
    result, number = operator.result_types([x], operator.complete({}))
    assert (result, number) == (x, TensorType((), "int32"))
    types = operator.result_types
    refused(lambda: types([], {}), "Scale", "'x'")
    refused(lambda: types([None, x], {}), "'x'")
    refused(lambda: types([x, x], {}), "'offset'", "float16[2, 3]", "float32 or int64")
    refused(lambda: types([x, None, x], {}), "3 inputs", "at most 2", "x, offset")
    with pytest.raises(ShapeError, match=r"\[3\] is not \[2, 3\]"):
        types([x, TensorType((3,), "int64")], {})


@pytest.mark.parametrize(
    ("infer", "words"),
    [
        (lambda types, _: (types[0].shape[5],), "for float32[2], None: IndexError"),
        (lambda types, _: (types[0],), "returns float32[2], expected y of float32 or"),
        (lambda types, _: (types[0], types[0]), "returns float32[2], float32[2], expected y"),
        (lambda types, _: (), "returns nothing"),
    ],
)
def test_wrong_types_of_results_are_the_operators_mistake(infer: Callable, words: str):
    operator = replace(scale(), infer=infer)
    refused(lambda: operator.result_types([TensorType((2,), "float32")], {}), "Scale", words)


def test_a_tensor_for_each_output():
    refused(lambda: scale().tensors([None, None], {}), "`compute` of Scale returns []", "list of 2")


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16])
def test_the_reference_computes_in_float64_and_answers_in_the_results_types(dtype):
    operator = scale()
    x = np.array([[1.5, -2.0], [1e-3, 3.0]], dtype)
    offset = np.array([[2**10, 0], [0, 0]])
    y, total = operator.evaluate([x, offset], operator.complete({"factor": 0.5}))
    assert y.dtype == dtype
    assert total.dtype == np.int32
    assert total.shape == ()
    np.testing.assert_array_equal(y, (x.astype(np.float64) * 0.5 + offset).astype(dtype))


def test_operands_have_names_that_differ():
    twice = (Operand("x", FLOATS), Operand("x", FLOATS))
    refused(lambda: scale(inputs=twice), "inputs", "Scale", "'x', 'x'")
    refused(lambda: scale(outputs=(Operand("a b", FLOATS),)), "outputs", "'a b'")


def test_a_gradient_is_named_after_the_operands():
    saved = scale("ScaleGrad", inputs=(Operand("x", FLOATS), Operand("grad_y", FLOATS)),
                  outputs=(Operand("grad_x", FLOATS), Operand("grad_offset", FLOATS)))  # fmt: skip
    assert scale(gradient=saved).differentiable == ("x", "offset")
    assert scale().differentiable == ()
    strange = replace(saved, inputs=(Operand("z", FLOATS),))
    refused(lambda: scale(gradient=strange), "ScaleGrad", "'z'", "grad_sum, grad_y, offset, sum, x")
    strange = replace(saved, outputs=(Operand("grad_y", FLOATS),))
    refused(lambda: scale(gradient=strange), "'grad_y'", "grad_offset, grad_x")
    strange = replace(saved, attributes={"epsilon": 1.0})
    refused(lambda: scale(gradient=strange), "'epsilon'", "Scale has not")


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forget registered operators after a test."""
    monkeypatch.setattr(operators, "REGISTERED", {})


@pytest.mark.usefixtures("registry")
def test_operators_are_registered_with_their_gradients():
    gradient = scale(
        "ScaleGrad", inputs=(Operand("x", FLOATS),), outputs=(Operand("grad_x", FLOATS),)
    )
    operator = scale(gradient=gradient)
    assert ops.register(operator) is operator
    assert ops.OPERATORS["Scale"] is operator
    assert ops.OPERATORS["ScaleGrad"] is gradient
    assert {"Scale", "BoxDecode"} < set(ops.OPERATORS)
    assert len(ops.OPERATORS) == len(set(ops.OPERATORS))
    again = scale()
    ops.register(again)
    assert ops.OPERATORS["Scale"] is again


@pytest.mark.usefixtures("registry")
@pytest.mark.parametrize("name", ["BoxDecode", "Conv", "ArrayFeatureExtractor", "a-b"])
def test_names_that_are_taken_or_no_names_are_refused(name: str):
    refused(lambda: ops.register(scale(name)), name)
    assert name not in operators.REGISTERED


def test_every_operator_of_the_package_is_under_its_name():
    for name, operator in ops.OPERATORS.items():
        assert operator.name == name
        assert (
            operator.gradient is None or ops.OPERATORS[operator.gradient.name] is operator.gradient
        )


def test_looking_at_the_names_imports_nothing_heavy(run_python: Callable):
    code = (
        "import sys\nfrom tvmflow.ops import OPERATORS\nassert 'BoxDecode' in list(OPERATORS)\n"
        "print(*(m for m in ('tvm', 'numpy', 'onnx') if m in sys.modules))"
    )
    assert run_python(code).stdout.split() == []


# -- files of users ---------------------------------------------------------------------------

FILE = """
from __future__ import annotations
from dataclasses import dataclass, replace
from tvmflow.ops import OPERATORS, register
register(replace(OPERATORS["BoxDecode"], name="Mine", gradient=None))

@dataclass(frozen=True)
class Settings:
    number: int = 1
"""


@pytest.mark.usefixtures("registry")
def test_a_file_registers_operators_each_time_it_is_loaded(tmp_path: Path):
    path = tmp_path / "mine.py"
    path.write_text(FILE)
    ops.load(path)
    first = ops.OPERATORS["Mine"]
    assert first.summary == ops.OPERATORS["BoxDecode"].summary
    ops.load(path)
    assert ops.OPERATORS["Mine"] is not first
    assert "mine" not in sys.modules


@pytest.mark.usefixtures("registry")
@pytest.mark.parametrize(
    ("text", "words"),
    [
        (None, "there is no such file"),
        ("x = 1", "registers no operator"),
        ("\nimport nothing_of_this_name", "line 2: import nothing_of_this_name"),
        ("def f(:", "line 1: def f(:"),
        ("def f():\n  raise SystemExit(3)\nf()", "line 2: raise SystemExit(3)"),
    ],
)
def test_files_that_register_nothing_are_refused(tmp_path: Path, text: str | None, words: str):
    path = tmp_path / "mine.py"
    if text is not None:
        path.write_text(text)
    with pytest.raises(OperatorError) as caught:
        ops.load(path)
    assert words in str(caught.value)
    assert str(path) in caught.value.message
    assert caught.value.remedy
