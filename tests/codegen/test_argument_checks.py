"""Checks of arguments that primary functions keep, and those that nothing can fail."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
import tvm_ffi
from tvm import relax, tirx

from tvmflow.codegen.argument_checks import CHECKED, mark_checked
from tvmflow.codegen.tir_pipeline import TIR_PIPELINE
from tvmflow.compiler.relax_pipeline import WEIGHTS

SHAPE = (1, 4, 8, 8)


def lowered():
    """Two functions that stay apart: of the input, and of what the first one makes."""
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType(SHAPE, "float32"))
    weight = relax.const(np.ones((1, 4, 8, 1), "float32"))
    with builder.function("main", [x], attrs={"num_input": 1}):
        with builder.dataflow():
            rows = builder.emit(relax.op.sum(x, axis=3, keepdims=True))
            scaled = builder.emit(relax.op.multiply(rows, weight))
            whole = builder.emit_output(relax.op.sum(scaled, axis=[1, 2], keepdims=True))
        builder.emit_func_output(whole)
    return relax.get_pipeline("tvmflow", target="llvm")(builder.get())


def marked(mod):
    """Functions without checks, by name."""
    return {
        gv.name_hint: bool((f.attrs or {}).get(CHECKED))
        for gv, f in mark_checked(mod).functions.items()
        if isinstance(f, tirx.PrimFunc)
    }


def test_only_functions_of_inputs_keep_their_checks():
    assert sorted(marked(lowered()).values()) == [False, True]


def test_a_function_that_is_given_another_type_keeps_them():
    mod = lowered()
    (name,) = (name for name, checked in marked(mod).items() if checked)
    for argument in (0, 1):
        function = mod[name]
        params = list(function.params)
        shape = [*list(params[argument].shape)[:-1], 2]
        params[argument] = tirx.decl_buffer(shape, "float32")
        mod.update_func(
            mod.get_global_var(name),
            tirx.PrimFunc(params, tirx.Evaluate(0), function.ret_type, attrs=function.attrs),
        )
        assert not marked(mod)[name]


def test_a_view_of_an_input_is_refused_and_the_library_has_no_other_checks():
    mod = lowered()
    sizes = []
    for program in (mod, mark_checked(mod)):
        built = relax.build(program, "llvm", relax_pipeline=None, tir_pipeline=TIR_PIPELINE)
        machine = relax.VirtualMachine(built, tvm.cpu())
        weights = list(mod.attrs[WEIGHTS].values())
        values = np.random.default_rng(0).random((*SHAPE[:3], 16), dtype=np.float32)
        whole = tvm.runtime.tensor(np.ascontiguousarray(values[..., ::2]))
        result = machine["main"](whole, *weights).numpy()
        np.testing.assert_allclose(result.ravel(), values[..., ::2].sum(), rtol=1e-5)
        strided = tvm_ffi.from_dlpack(values[..., ::2])
        with pytest.raises(Exception, match="strides"):
            machine["main"](strided, *weights)
        library = next(each for each in built.mod.imports if each.kind == "llvm")
        sizes.append(len(library.inspect_source("ll")))
    assert sizes[1] < sizes[0]
