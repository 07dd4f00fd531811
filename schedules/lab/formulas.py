"""Labs that are one formula of rows of numbers, shared by TE, the reference and NumPy.

    a[N, 1024]   b[N, 1024]      add[i, j] = a[i, j] + b[i, j]

A formula states the term at each place, the axis that is summed (none, 1 along rows, or 0
over them) and a function of the sum.  The reference is the same in double precision.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import numpy as np
from tvm import te, tirx

from .. import softmax
from . import elementwise, reductions
from .steps import Lab, normal_operands

#: Numbers in a row: whole vectors.
ROW = 1024
#: TE's functions that formulas use; NumPy has them by the same names.
TE = SimpleNamespace(
    maximum=lambda a, b: tirx.max(a, tirx.const(b, "float32")),
    sqrt=tirx.sqrt,
    square=lambda x: x * x,
)


@dataclass(frozen=True)
class Formula:
    """A computation on rows of numbers, from which a lab is made."""

    name: str
    summary: str
    #: Names of the arguments.
    arguments: str
    #: Function from a namespace of functions and the arguments' numbers at a place to the term.
    each: Callable[..., Any]
    #: Operations at each place, sums included.
    operations: int = 1
    #: The axis that is summed.
    axis: int | None = None
    #: Function from a namespace of functions and a sum to the result.
    then: Callable[..., Any] | None = None

    def compute(self, size: int) -> list[te.Tensor]:
        """Return the arguments and the result for a number of rows."""
        given = [te.placeholder((size, ROW), "float32", name=name) for name in self.arguments]

        def at(i: tirx.Expr, j: tirx.Expr) -> tirx.Expr:
            return self.each(TE, *(tensor[i, j] for tensor in given))

        if self.axis is None:
            return [*given, te.compute((size, ROW), at, name=self.name)]
        k = te.reduce_axis((0, (size, ROW)[self.axis]), name="k")
        result = te.compute(
            ((size, ROW)[1 - self.axis],),
            lambda i: te.sum(at(i, k) if self.axis else at(k, i), axis=k),
            name=self.name if self.then is None else "total",
        )
        if (then := self.then) is not None:
            total = result
            result = te.compute(total.shape, lambda i: then(TE, total[i]), name=self.name)
        return [*given, result]

    def numpy(self, *arrays: np.ndarray) -> np.ndarray:
        """Compute the result with NumPy, in the precision of the arguments."""
        result = self.each(np, *arrays)
        if self.axis is not None:
            result = result.sum(axis=self.axis)
        return np.asarray(result if self.then is None else self.then(np, result))

    def lab(self) -> Lab:
        """Return the formula as a lab with its steps."""
        steps = elementwise if self.axis is None else reductions
        shared = (reductions.SHARED,) if self.axis == 1 else ()
        return Lab(
            name=self.name,
            summary=self.summary,
            counts="rows of 1,024 numbers",
            # Two tensors in fp32, 128 MiB, exceed the cache of some cores.
            size=16384,
            compute=self.compute,
            operands=normal_operands(self.compute),
            reference=in_double(self.numpy),
            baseline=lambda *arrays: lambda: self.numpy(*arrays),
            operations=lambda size: size * ROW * self.operations,
            on_cpu=steps.ON_CPU,
            on_gpu=(*steps.ON_GPU, *shared),
        )


def in_double(function: Callable[..., np.ndarray]) -> Callable[..., np.ndarray]:
    """Wrap a function to compute fp32 numbers in double precision, rounded once."""
    return lambda *arrays: function(*(a.astype(np.float64) for a in arrays)).astype(np.float32)


def numpy_softmax(x: np.ndarray) -> np.ndarray:
    """Return the softmax along rows."""
    powers = np.exp(x - x.max(axis=1, keepdims=True))
    result: np.ndarray = powers / powers.sum(axis=1, keepdims=True)
    return result


def compute_softmax(size: int) -> list[te.Tensor]:
    """Return the argument and the result, as networks compute it."""
    x = te.placeholder((size, ROW), "float32", name="x")
    return [x, softmax.compute(x, 1, log=False)]


_FORMULAS = (
    Formula("add", "Sum of two tensors.", "ab", lambda _, a, b: a + b),
    Formula("multiply", "Product of two tensors, number by number.", "ab", lambda _, a, b: a * b),
    Formula(
        "squared_difference", "Squared difference of two tensors.", "ab",
        lambda f, a, b: f.square(a - b), operations=2,
    ),
    Formula(
        "relu", "The larger one of each number and zero.", "x",
        lambda f, x: f.maximum(x, np.float32(0)),
    ),
    Formula(
        "dot", "Dot products of the rows of two tensors.", "ab", lambda _, a, b: a * b,
        operations=2, axis=1,
    ),
    Formula(
        "distance", "Euclidean distances between the rows of two tensors.", "ab",
        lambda f, a, b: f.square(a - b), operations=3, axis=1, then=lambda f, s: f.sqrt(s),
    ),
    Formula("batch_sum", "Sum of a batch of rows.", "x", lambda _, x: x, axis=0),
)  # fmt: skip
LABS = {formula.name: formula.lab() for formula in _FORMULAS}
LABS["softmax"] = replace(
    LABS["dot"],
    name="softmax",
    summary="Softmax of each row.",
    compute=compute_softmax,
    operands=normal_operands(compute_softmax),
    reference=in_double(numpy_softmax),
    baseline=lambda x: lambda: numpy_softmax(x),
    # They are a maximum, two differences, two powers (as one each), a sum and a quotient.
    operations=lambda size: size * ROW * 7,
    on_cpu=reductions.ON_CPU_POWERS,
)
