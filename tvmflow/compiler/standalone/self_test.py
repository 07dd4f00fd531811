"""Self-test of a standalone library: inputs generated from seeds, and their expected results.

Element ``i`` of an input, in the order of the host's data, is ``low + (high - low) * u``::

    z = seed + (i + 1) * 0x9E3779B97F4A7C15                    SplitMix64, modulo 2^64
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB
    u = ((z ^ (z >> 31)) >> 40) / 2^24                         in [0, 1)

in double precision, then rounded to the nearest number of the input's dtype; for integers and
booleans rounded down.  The library stores up to `VALUES` elements of each reference output.
"""

from __future__ import annotations

import logging
import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import onnx

from ...errors import TvmflowError
from ...frontend.apply_options import apply_options
from ...frontend.source import Source, external_files, open_model
from ...ir.results import outputs_of_indices
from ...ir.rewriter import op_name
from ...ir.signatures import bindings_of
from ...ir.tensors import TensorInfo, dtype_from_name
from ...ir.units import bytes_text
from ...module.blocked_layout import all_to_logical, to_blocked
from ...module.module import Module
from ...module.run_time_sizes import RunTimeSizes
from ...module.standalone.plan import ExpectedOutput, Plan, SeededInput
from ...verify.reference import run_reference
from ...verify.tolerance import Tolerance, table_for, tolerance_for
from ..compilation import Compilation
from ..metadata import common_metadata
from ..options import CompileOptions
from .inner_tensors import expected_tensors

logger = logging.getLogger(__name__)

#: Function that compiles a model to a module.
Compiler = Callable[["str | os.PathLike[str] | onnx.ModelProto", CompileOptions], Module]

#: Maximum number of elements of an output that are compared.
VALUES = 1024
#: Limit of weights for running the model: a library streams its weights, but a reference has them
#: in memory.
REFERENCE_LIMIT_BYTES = 2 << 30
_GAMMA = np.uint64(0x9E3779B97F4A7C15)
_MIX = ((30, np.uint64(0xBF58476D1CE4E5B9)), (27, np.uint64(0x94D049BB133111EB)))
#: Ranges by dtype; other integers are small, so that they are valid as indices and counts.
_RANGES = {"uint8": (0.0, 256.0), "int8": (-128.0, 128.0), "bool": (0.0, 2.0)}
_FLOATS, _INTEGERS = (-1.0, 1.0), (0.0, 4.0)


def make_self_test(job: Compilation, plan: Plan, compiler: Compiler) -> str:
    """Add seeded inputs and the results for them to a plan, for all shapes.

    Returns name and version of the program that computed them; "", and logs the reason, if that is
    impossible.
    """
    weight_bytes = sum(weight.nbytes for weight in plan.weights.values())
    inputs: list[SeededInput] = []
    outputs: list[ExpectedOutput] = []
    source = ""
    try:
        if weight_bytes > REFERENCE_LIMIT_BYTES:
            raise TvmflowError(
                "running the model for its results would take more than its "
                f"{bytes_text(weight_bytes)} of weights."
            )
        for each in job.variants or [job]:
            tests = seeded_inputs(each.model.inputs)
            references, source = _references(each, tests, compiler)
            table = table_for(common_metadata(each))
            inputs += tests
            outputs += expected_outputs(each.model.outputs, references, table, first=len(outputs))
    except TvmflowError as error:
        logger.warning("The library has no self-test: %s", error.message)
        return ""
    plan.test_inputs, plan.test_outputs = inputs, outputs
    return source


def add_inner_tensors(job: Compilation, plan: Plan) -> None:
    """Add the tensors between functions to the self-test of a plan, unless it has none."""
    if not plan.test_outputs:
        return
    jobs = job.variants or [job]
    count = len(plan.test_inputs) // len(jobs)
    arrays = []
    for number, each in enumerate(jobs):
        tests = plan.test_inputs[number * count : (number + 1) * count]
        pairs = zip(each.model.inputs, tests, strict=True)
        arrays.append({info.name: values_of(test, info) for info, test in pairs})
    tensors, outputs = expected_tensors(job, plan, arrays, table_for(common_metadata(job)))
    for test in plan.test_outputs:
        shape = test.output // (len(plan.outputs) // len(jobs))
        got = outputs[shape][plan.outputs[test.output].info.name].ravel()[:: test.stride]
        known = ~np.isnan(test.values)
        error = np.abs(got - test.values)[known]
        if not (error <= test.atol + test.rtol * np.abs(test.values[known])).all():
            logger.warning(
                "The library's self-test compares only outputs: unscheduled loops give other "
                "results than the reference for %s.",
                plan.outputs[test.output].info.name,
            )
            return
    plan.test_tensors = tensors


def _references(
    job: Compilation, tests: Sequence[SeededInput], compiler: Compiler
) -> tuple[dict[str, np.ndarray], str]:
    """Return the expected results of one shape, and the name of the program that computed them.

    Elements that a library in 16 bits may select differently are NaN.
    """
    model = job.model
    # In 16 bits, other elements may be the largest than in the reference.
    open_ = outputs_of_indices(job.options.results) if job.half else set()
    if job.half:
        if any(op_name(b.value) == "relax.round" for b in bindings_of(model.mod["main"])):
            raise TvmflowError(
                "with `dtype=fp16` a quantized network rounds some numbers to other steps than "
                "its reference does. Compile it with `dtype=fp32`."
            )
        bounded = any(info.bounded_axis is not None for info in model.outputs)
        if bounded or all(info.name in open_ for info in model.outputs):
            raise TvmflowError(
                "with `dtype=fp16` a network may select other elements than its reference does. "
                "Compile it with `dtype=fp32`."
            )
    pairs = zip(model.inputs, tests, strict=True)
    arrays = {info.name: values_of(test, info) for info, test in pairs}
    references, source = reference_outputs(job, arrays, compiler)
    for name in open_ & references.keys():
        references[name] = np.full(references[name].shape, np.nan)
    return references, source


def seeded_inputs(infos: Sequence[TensorInfo]) -> list[SeededInput]:
    """Return the seed and range of each input."""
    tests = []
    for seed, info in enumerate(infos, 1):
        usual = _INTEGERS if dtype_from_name(info.dtype).kind in "iu" else _FLOATS
        tests.append(SeededInput(seed, *_RANGES.get(info.dtype, usual)))
    return tests


def values_of(test: SeededInput, info: TensorInfo) -> np.ndarray:
    """Return the array generated from a seed, in the application's layout."""
    uniform = random_numbers(test.seed, info.elements)
    values = test.low + (test.high - test.low) * uniform
    dtype = dtype_from_name(info.dtype)
    if dtype.kind in "iub":
        values = np.floor(values)
    return values.astype(dtype).reshape(info.shape)


def random_numbers(seed: int, count: int) -> np.ndarray:
    """Return numbers in [0, 1), as the module's docstring defines them."""
    with np.errstate(over="ignore"):
        z = np.uint64(seed) + np.arange(1, count + 1, dtype=np.uint64) * _GAMMA
        for shift, factor in _MIX:
            z = (z ^ (z >> np.uint64(shift))) * factor
    return ((z ^ (z >> np.uint64(31))) >> np.uint64(40)).astype(np.float64) / 2.0**24


def expected_outputs(
    infos: Sequence[TensorInfo],
    references: Mapping[str, np.ndarray],
    table: dict[str, Tolerance],
    first: int = 0,
) -> list[ExpectedOutput]:
    """Return the elements of each output to compare; ``first`` is the number of the first output.

    Lanes after the last channel, whose content is undefined, are NaN: the test skips NaN.
    """
    tests = []
    for index, info in enumerate(infos, first):
        reference = references[info.name].astype(np.float64)
        finite = np.abs(reference[np.isfinite(reference)])
        tolerance = tolerance_for(info.dtype, table)
        if info.logical_shape is not None:
            inside = to_blocked(info, np.ones(reference.shape, np.float64)) > 0
            reference = np.where(inside, to_blocked(info, reference), np.nan)
        flat = reference.ravel()
        # An odd stride reaches all lanes of a block of channels.
        stride = max(1, -(-flat.size // VALUES)) | 1
        scale = float(finite.max()) if finite.size else 0.0
        absolute = tolerance.absolute * scale
        tests.append(ExpectedOutput(index, stride, tolerance.relative, absolute, flat[::stride]))
    return tests


def reference_outputs(
    job: Compilation, arrays: Mapping[str, np.ndarray], compiler: Compiler
) -> tuple[dict[str, np.ndarray], str]:
    """Return the model's results for these inputs, and the name of the program that computed them.

    ONNX Runtime computes them if it is installed and reads the model, otherwise ``compiler``'s
    module for the target ``llvm`` in fp32.
    """
    logical = all_to_logical(job.model.inputs, arrays)
    sizes = RunTimeSizes.split(job.model.outputs, job.model.limits)
    names = [info.name for info in sizes.outputs]
    if find_spec("onnxruntime") is not None:
        try:
            with tempfile.TemporaryDirectory(prefix="tvmflow-") as folder:
                path = job.source
                if isinstance(path, Source):
                    # External data lies next to the model's own file.
                    path = path.file if external_files(path) else path.model
                if not isinstance(path, (str, os.PathLike)):
                    model, path = path, Path(folder, "model.onnx")
                    onnx.save(model, path)
                found, source = run_reference(path, logical, names, vars(job.options))
                return sizes.whole(found), source
        except (TvmflowError, ValueError) as error:
            logger.info("ONNX Runtime gives no reference for the self-test: %s", error)
    kept = {name: getattr(job.options, name) for name in ("shapes", "bounds", "results", "inputs")}
    model = job.source
    assert model is not None
    if job.options.weights is not None:
        model = apply_options(open_model(model), {"weights": job.options.weights}).model
    with compiler(model, CompileOptions(target="llvm", **kept)) as module:
        return sizes.whole(dict(module(logical).items())), "tvmflow's llvm target"
