"""Expected values of the tensors between primary functions, by which wrong kernels are found.

The functions run in order as unscheduled loops on this processor, with the inputs of the self-test,
so that neither a schedule nor a driver can affect the values.  Up to `BYTES` of them are stored.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate, pairwise

import numpy as np
import tvm
from tvm import IRModule, tirx

from ...codegen.kernels import accesses_of
from ...codegen.tir_pipeline import TIR_PIPELINE
from ...devices.target import resolve
from ...ir.scope import is_half
from ...ir.signatures import without_scopes
from ...module.blocked_layout import panels_of
from ...module.standalone.plan import COPY, Call, ExpectedTensor, Plan, PlanTensor
from ...verify.tolerance import Tolerance
from ..compilation import Compilation
from ..generate import generating
from ..shapes import nodes_by_function

#: Most bytes of all values, of 4 bytes each, and most values of a tensor.
BYTES, MOST = 64 << 10, 1024
FLOATS = ("float32", "float16")
#: Absolute tolerance of integers: steps, and the share of the largest magnitude.  Sums of products
#: differ where a factor was rounded to the next step.  Other integers may be indices, of which any
#: may be right where two numbers are nearly equal.
INTEGERS = {"int8": (1, 0.0), "uint8": (1, 0.0), "int32": (1, 0.01)}


def expected_tensors(
    job: Compilation,
    plan: Plan,
    inputs: Sequence[Mapping[str, np.ndarray]],
    table: Mapping[str, Tolerance],
) -> tuple[list[ExpectedTensor], list[dict[str, np.ndarray]]]:
    """Compute the calls of a plan; return the tensors to compare, and the outputs of each shape.

    ``inputs`` are the arrays of each shape by name; both they and the outputs are in the layouts
    of the library.
    """
    functions = {gv.name_hint: f for gv, f in job.unscheduled.functions.items()}
    called = sorted({call.function for call in plan.calls} - {COPY})
    loops = _Loops({name: functions[name] for name in called})
    names = nodes_by_function(job)
    counts = plan.shapes or [len(plan.launches)]
    most = min(MOST, BYTES // 4 // len(plan.calls))
    found: list[ExpectedTensor] = []
    outputs = []
    for number, (first, end) in enumerate(pairwise(accumulate(counts, initial=0))):
        calls = {n: call for n, call in enumerate(plan.calls) if first <= call.first < end}
        each = len(plan.inputs) // len(counts), len(plan.outputs) // len(counts)
        begin, results = (
            tensors[number * count : (number + 1) * count]
            for tensors, count in zip((plan.inputs, plan.outputs), each, strict=True)
        )
        values = {id(t): plan.weights[name] for name, t in plan.weight_tensors.items()}
        values |= {id(i.tensor): inputs[number][i.info.name] for i in begin}
        left = Counter(id(t) for call in calls.values() for t in call.operands)
        left.update(id(i.tensor) for i in results)
        for index, call in calls.items():
            for tensor, array in loops.run(call, values):
                values[id(tensor)] = array
                if array.dtype.name in (*FLOATS, *INTEGERS) and call.function != COPY:
                    nodes = tuple(names.get(call.function, ()))
                    found.append(_expected(index, tensor, array, nodes, table, most))
            for tensor in call.operands:
                left[id(tensor)] -= 1
                if not left[id(tensor)]:
                    values.pop(id(tensor), None)
        outputs.append({i.info.name: values[id(i.tensor)].reshape(i.info.shape) for i in results})
    return found, outputs


def _expected(
    call: int,
    tensor: PlanTensor,
    array: np.ndarray,
    nodes: tuple[str, ...],
    table: Mapping[str, Tolerance],
    most: int,
) -> ExpectedTensor:
    """Return the elements of a tensor to compare, in the order of its memory."""
    finite = np.abs(array[np.isfinite(array)].astype(np.float64))
    largest = float(finite.max()) if finite.size else 0.0
    values = array.astype(np.float32)
    stored = "float16" if is_half(tensor.scope or "") else array.dtype.name
    if stored in INTEGERS:
        steps, share = INTEGERS[stored]
        relative, absolute = 0.0, max(steps, share * largest)
    else:
        tolerance = table[array.dtype.name]
        relative, absolute = tolerance.relative, tolerance.absolute * largest
    if array.ndim == 5:
        # Lanes after the last channel are undefined; how many there are is not known here.
        values[:, -1, :, :, 1:] = np.nan
    size = 0, 0
    if tensor.is_image:
        values = _texels(values, panels_of(tensor.scope))
        size = values.shape[1], values.shape[0]
    flat = values.ravel()
    # An odd stride reaches all lanes of a block of channels.
    stride = max(1, -(-flat.size // most)) | 1
    how = stored, size, stride, relative, absolute
    return ExpectedTensor(call, tensor, nodes, *how, flat[::stride])


def _texels(array: np.ndarray, panels: int) -> np.ndarray:
    """Return a blocked array as the image of its texture, ``[rows, columns, 4]``."""
    n, blocks, height, width, lanes = array.shape
    missing = -blocks % panels
    padded = np.pad(array, [(0, 0), (0, missing), *[(0, 0)] * 3], constant_values=np.nan)
    split = padded.reshape(n, -1, panels, height, width, lanes)
    return split.transpose(0, 1, 3, 2, 4, 5).reshape(-1, panels * width, lanes)


class _Loops:
    """The functions of a program as unscheduled loops, compiled for this processor."""

    def __init__(self, functions: Mapping[str, tirx.PrimFunc]) -> None:
        self.functions = functions
        target = resolve("llvm")
        named = {}
        for name, function in functions.items():
            plain = without_scopes(function)
            attributes = {"global_symbol": name, "tirx.noalias": True, "tirx.is_scheduled": True}
            named[name] = plain.with_attrs(attributes)
        with generating(target):
            self.library = tirx.build(
                IRModule(named), target=target.tvm_target, pipeline=TIR_PIPELINE
            )

    def run(
        self, call: Call, values: Mapping[int, np.ndarray]
    ) -> Iterator[tuple[PlanTensor, np.ndarray]]:
        """Run a call; yield the tensors that it writes, with their arrays."""
        if call.function == COPY:
            source, target = call.operands
            yield target, values[id(source)]
            return
        function = self.functions[call.function]
        accesses = list(accesses_of(function).values())
        # Workspaces are operands after the function's own.
        pairs = list(zip(function.params, call.operands, strict=False))
        arguments = []
        for (param, operand), (_, written) in zip(pairs, accesses, strict=True):
            shape, dtype = [int(d) for d in param.shape], str(param.dtype)
            array = values.get(id(operand))
            if array is None:
                assert written, f"{call.function} reads {operand.name}, which is not computed"
                array = np.zeros(shape, dtype)
            arguments.append(tvm.runtime.tensor(array.reshape(shape).astype(dtype)))
        self.library[call.function](*arguments)
        for (_, operand), (_, written), argument in zip(pairs, accesses, arguments, strict=True):
            if written:
                yield operand, argument.numpy()
