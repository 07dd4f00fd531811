"""Operators compiled once, called with tensors of any size."""

from __future__ import annotations

import re
from functools import cache

import numpy as np
import pytest
import tvm_ffi
from support.small_operators import SHIFTED, kinds, rows_of

from tvmflow.errors import InputError, OperatorError
from tvmflow.ir.tensors import dtype_from_name
from tvmflow.ops.compiled import compile_operator
from tvmflow.ops.signature import describe, read_signature, signature_of
from tvmflow.verify.tolerance import OPERATOR, assert_close

TARGETS = [
    "llvm",
    pytest.param("opencl", marks=pytest.mark.opencl),
]


@cache
def shifted(target, dtype="float32", **more):
    inputs = {"x": dtype, "shift": dtype, **more}
    return compile_operator(SHIFTED, target, "auto" if target == "llvm" else "cpu", inputs=inputs)


def check(compiled, *arrays):
    (expected,) = SHIFTED.evaluate(list(arrays), SHIFTED.complete({}))
    (got,) = compiled(*arrays)
    assert_close(got, expected, OPERATOR)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_one_compilation_serves_any_size(target, dtype):
    compiled = shifted(target, dtype)
    for rows in (1, 3, 64, 1025, 5000):
        check(compiled, rows_of((rows, 4), dtype), rows_of((4,), dtype))


@pytest.mark.parametrize("target", ["opencl", "cuda"])
@pytest.mark.parametrize("device", ["adreno", "nvidia"])
def test_gpus_get_one_kernel_whose_items_take_rows(target, device):
    if (target, device) == ("cuda", "adreno"):
        pytest.skip("no such pair")
    from tvmflow.devices.target import resolve
    from tvmflow.ops.program import build

    signature = read_signature(SHIFTED, {"x": "float16[B, N, 4]"})
    program = build(SHIFTED, signature, {"factor": 2.0}, [0], resolve(target, device))
    (kernels,) = program.module.imports
    source = kernels.inspect_source()
    accesses = ("half_load4(", "half_store4(") if target == "opencl" else ("*(half4*)",)
    assert all(access in source for access in accesses)
    assert set(re.findall(r"(\w+_kernel\w*)\(", source)) == {"shifted_kernel"}
    assert program.scheduled.family == "open_extents"


@pytest.mark.parametrize("target", TARGETS)
def test_no_rows(target):
    check(shifted(target), rows_of((0, 4)), rows_of((4,)))


def test_memory_is_shared_where_it_can_be():
    compiled = shifted("llvm")
    x, shift = rows_of((100, 4)), rows_of((4,))
    x.flags.writeable = False
    seen = []
    run = compiled.run
    compiled.run = lambda inputs, *rest: (seen.extend(inputs), run(inputs, *rest))
    try:
        # A row is 16 bytes, and nothing more is asked of an address.
        for part in (x, x[1:], x[3:50]):
            seen.clear()
            check(compiled, part, shift)
            assert seen[0].data_ptr() == part.__array_interface__["data"][0]
        # Other strides, and an address between two rows, are copied.
        for part in (x[::2], np.ascontiguousarray(x).ravel()[1:397].reshape(-1, 4)):
            seen.clear()
            check(compiled, part, shift)
            assert seen[0].data_ptr() != part.__array_interface__["data"][0]
    finally:
        del compiled.run


def test_tensors_of_other_libraries_give_tensors():
    compiled = shifted("llvm")
    x, shift = rows_of((9, 4)), rows_of((4,))
    (got,) = compiled(tvm_ffi.from_dlpack(x), shift=tvm_ffi.from_dlpack(shift))
    assert not isinstance(got, np.ndarray)
    (expected,) = SHIFTED.evaluate([x, shift], SHIFTED.complete({}))
    assert_close(np.from_dlpack(got), expected, OPERATOR)


def test_attributes_and_other_ranks():
    inputs = {"x": "float32[B, M, 4]", "keep": "int32"}
    compiled = compile_operator(SHIFTED, inputs=inputs, attributes={"factor": -0.5})
    for shape in ((2, 3, 4), (5, 1, 4)):
        x = rows_of(shape)
        (got,) = compiled(x, keep=np.int32(2))
        expected = SHIFTED.evaluate([x, None, np.int32(2)], {"factor": -0.5})[0]
        assert_close(got, expected, OPERATOR)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (
            lambda x, s: (x,),
            InputError,
            r"given shift not at all, but was compiled for x float32\[",
        ),
        (lambda x, s: (x[0], s), InputError, r"given x float32\[4\], but was compiled for"),
        (lambda x, s: (x[:, :3], s[:3]), InputError, r"x float32\[6, 3\], but was compiled for"),
        (lambda x, s: (x.astype("f8"), s), OperatorError, r"'x' of Shifted is float64\[6, 4\]"),
        (lambda x, s: (x, s, None, s), OperatorError, "given 4 inputs; its inputs are x, shift"),
        (lambda x, s: ([[1, 2], [3]], s), InputError, "input 'x' is no array"),
    ],
)
def test_calls_that_do_not_fit_are_refused(arguments, error, message):
    compiled = shifted("llvm")
    with pytest.raises(error, match=message):
        compiled(*arguments(rows_of((6, 4)), rows_of((4,))))
    with pytest.raises(OperatorError, match="is given 'shfit'; its inputs are x, shift, keep"):
        compiled(rows_of((6, 4)), shfit=rows_of((4,)))
    with pytest.raises(OperatorError, match="is given shift twice"):
        compiled(rows_of((6, 4)), rows_of((4,)), shift=rows_of((4,)))


def test_values_in_the_hosts_memory_are_looked_at():
    compiled = compile_operator(SHIFTED, inputs={"keep": "int32"})
    x, keep = rows_of((6, 4)), np.array(-3, np.int32)
    for given in (keep, tvm_ffi.from_dlpack(keep)):
        with pytest.raises(InputError, match="is given keep -3"):
            compiled(x, keep=given)


@pytest.mark.opencl
def test_values_on_the_device_are_looked_at_when_that_is_asked_for():
    import tvm

    compiled = compile_operator(SHIFTED, "opencl", "cpu", inputs={"keep": "int32"})
    keep = tvm.runtime.empty((), "int32", tvm.opencl(0)).copyfrom(np.array(-3, np.int32))
    (got,) = compiled(rows_of((6, 4)), keep=keep)
    assert not got.numpy().any()
    with pytest.raises(InputError, match="is given keep -3"):
        compiled(rows_of((6, 4)), keep=keep, check=True)


def test_signatures():
    given = read_signature(SHIFTED, {"x": "float16[B, 7, N+2]", "keep": "int32"})
    # N alone is no extent, so that nothing would tell what N + 2 is.
    assert describe(SHIFTED, given) == "x float16[B, 7, x_2], keep int32[]"
    x, shift = rows_of((2, 3, 4)), rows_of((4,))
    found = signature_of(SHIFTED, kinds(x, shift, None))
    assert describe(SHIFTED, found) == "x float32[B, N, 4], shift float32[4]"
    other = signature_of(SHIFTED, kinds(x[None], None, None))
    assert describe(SHIFTED, other) == "x float32[x_0, x_1, x_2, x_3]"


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ({"y": "float32"}, "it has no input 'y'; it has x, shift, keep"),
        ({"x": "int32"}, "the input x as 'int32' failed: expected float32 or float16"),
        ({"x": "float32[N; 4]"}, r"The extent 'N; 4' in 'N; 4' was not understood"),
        ({"x": "float32 4"}, "the input x as 'float32 4' failed"),
    ],
)
def test_texts_that_are_no_types_are_refused(inputs, message):
    with pytest.raises(OperatorError, match=message):
        compile_operator(SHIFTED, inputs=inputs)


def test_dtypes_of_the_package():
    assert dtype_from_name("bfloat16").name == "bfloat16"


def test_an_unknown_operator_is_refused():
    with pytest.raises(OperatorError, match="There is no operator 'Boxes'; expected one of"):
        compile_operator("Boxes")
