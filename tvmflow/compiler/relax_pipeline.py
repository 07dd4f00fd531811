"""The stages on Relax as a pipeline registered with TVM: ``relax.get_pipeline("tvmflow")``."""

from __future__ import annotations

import tvm
from tvm import IRModule, relax
from tvm.ir.transform import Pass

from ..codegen.tir_pipeline import TIR_PIPELINE
from ..frontend.load import ImportedModel
from ..ir.passes import module_pass
from ..ir.rewriter import ints, shape_of
from ..ir.tensors import TensorInfo
from .compilation import Compilation
from .driver import run_stages
from .options import CompileOptions

#: Attribute of the modules that `relax_pipeline` returns: the arrays of the parameters that replace
#: constants of ``main``, by name.
WEIGHTS = "tvmflow.weights"


@relax.register_pipeline(TIR_PIPELINE)
def relax_pipeline(**options: object) -> Pass:
    """Return the stages from "simplify" to "lower" as a TVM pipeline.

    It accepts modules of static shapes with one function ``main``::

        lowered = relax.get_pipeline("tvmflow", target="llvm")(mod)
        built = relax.build(lowered, "llvm", relax_pipeline=None, tir_pipeline="tvmflow")

    Constants become trailing parameters of ``main``; their arrays are the module's attribute
    ``tvmflow.weights``, by name.  The options are fields of `CompileOptions`; the default of
    ``target`` is the kind of TVM's current target.
    """

    @module_pass("Pipeline")
    def run(mod: IRModule) -> IRModule:
        current = tvm.target.Target.current(allow_none=True)
        target = {} if current is None else {"target": str(current.kind.name)}
        job = Compilation(None, CompileOptions(**(target | options)))  # type: ignore[arg-type]
        job.mod, job.model = mod, _imported(mod)
        lowered = run_stages(job, first="simplify", until="lower")
        arrays = {name: tvm.runtime.tensor(array) for name, array in job.weights.items()}
        return lowered.with_attr(WEIGHTS, arrays)

    return run


def _imported(mod: IRModule) -> ImportedModel:
    """Wrap a module in the front end's result."""
    main = mod["main"]
    count = int((main.attrs or {}).get("num_input", len(main.params)))
    inputs = tuple(TensorInfo(p.name, shape_of(p), str(p.ty.dtype)) for p in main.params[:count])
    results = main.ret_ty.fields if isinstance(main.ret_ty, relax.TupleType) else [main.ret_ty]
    outputs = tuple(
        TensorInfo(f"output_{i}", ints(ty.shape), str(ty.dtype)) for i, ty in enumerate(results)
    )
    return ImportedModel("main", mod, inputs, outputs, {})
