"""Plans of networks as the export stage makes them, without a library."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx.parser
import onnxruntime

import tvmflow
from support.interpreter import Interpreter
from tvmflow.compiler.compilation import Compilation
from tvmflow.compiler.driver import build_again, compile_model, run_stages
from tvmflow.compiler.options import CompileOptions
from tvmflow.compiler.standalone.export import make_plan
from tvmflow.compiler.standalone.self_test import values_of
from tvmflow.devices.choices import STANDALONE
from tvmflow.devices.host import Host
from tvmflow.module.blocked_layout import all_to_logical
from tvmflow.module.standalone.encode import encode
from tvmflow.module.standalone.link import link_library
from tvmflow.module.standalone.loaded import StandaloneModule
from tvmflow.module.standalone.plan import Plan
from tvmflow.module.standalone.weights_file import write_weights
from tvmflow.verify.tolerance import assert_close, table_for


def parsed(inputs: str, outputs: str, body: str, constants: str = "") -> onnx.ModelProto:
    """Return a model of a line of text."""
    head = f'<ir_version: 9, opset_import: ["" : 18]> g ({inputs}) => ({outputs})'
    return onnx.parser.parse_model(f"{head} {f'<{constants}>' if constants else ''} {{ {body} }}")


def plan_of(
    model: Any,
    device: str = "cpu",
    storage: str = "auto",
    dtype: str = "fp32",
    keep_layout: dict[str, str] | None = None,
) -> Plan:
    """Return the plan of a network."""
    options = CompileOptions(
        device=device,
        storage=storage,
        dtype=dtype,
        accumulate="fp32",
        keep_layout=keep_layout or {},
        format=STANDALONE,
    )
    job = Compilation(model, options, Path("unused.so"))
    run_stages(job, until="build")
    return make_plan(job, compile_model, partial(build_again, job))


def seeded_arrays(plan: Plan) -> dict[str, np.ndarray]:
    """Return the inputs of a plan's self-test."""
    pairs = zip(plan.inputs, plan.test_inputs, strict=True)
    return {i.info.name: values_of(test, i.info) for i, test in pairs}


def assert_right(plan: Plan, model: Any, folder: Path) -> dict[str, np.ndarray]:
    """Compare the results of the plan's bytes with ONNX Runtime; return the outputs.

    The library with the same plan must return the same, and pass its self-test.
    """
    weights = folder / "weights"
    content = encode(plan, write_weights(weights, plan.weights))
    arrays = seeded_arrays(plan)
    inputs, outputs = [i.info for i in plan.inputs], [o.info for o in plan.outputs]
    source = model.SerializeToString() if isinstance(model, onnx.ModelProto) else str(model)
    session = onnxruntime.InferenceSession(source)
    references = session.run([o.name for o in outputs], all_to_logical(inputs, arrays))
    interpreted = Interpreter(content, weights)(arrays)
    got = all_to_logical(outputs, interpreted)
    table = table_for(plan.metadata)
    for info, reference in zip(outputs, references, strict=True):
        assert_close(got[info.name], reference, table, info.name)
    library = folder / "libplan.so"
    held = weights if weights.exists() else None
    link_library(content, held, Host.native(), library, embed=True)
    with tvmflow.load(library) as module:
        assert isinstance(module, StandaloneModule)
        from_library = all_to_logical(outputs, dict(module(arrays).items()))
        module.self_test()
    for info in outputs:
        np.testing.assert_array_equal(from_library[info.name], got[info.name], info.name)
    return got
