"""The list of passes: TVM's instruments see every pass, and IR dumps are such an instrument."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from support.operators import conv
from tvm import relax

import tvmflow
from tvmflow.codegen.tir_pipeline import stages
from tvmflow.compiler.compilation import Compilation
from tvmflow.compiler.options import CompileOptions
from tvmflow.compiler.passes import CODE_STAGES, listing
from tvmflow.compiler.relax_pipeline import WEIGHTS
from tvmflow.errors import TvmflowError


def listed(**options):
    return [name for _, name in listing(Compilation(None, CompileOptions(**options)))]


def test_instruments_see_every_pass_that_is_listed():
    seen = []

    @tvm.instrument.pass_instrument
    class Note:
        def run_before_pass(self, mod, info):
            seen.append(str(info.name))

    with (
        tvm.transform.PassContext(instruments=[Note()]),
        tvmflow.compile(conv((1, 3, 8, 8), 5), target="llvm"),
    ):
        pass
    rest = iter(seen)
    # The listed passes run in this order; TVM runs others of its own between them.
    assert all(name in rest for name in listed(target="llvm") if not is_finisher(name))


@pytest.mark.parametrize("given", [True, False])
def test_the_passes_on_relax_are_a_pipeline_of_tvms(given):
    draw = np.random.default_rng(0)
    weight = draw.standard_normal((5, 3, 3, 3), "float32")
    picture = draw.standard_normal((1, 3, 8, 8), "float32")
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType(picture.shape, "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            y = builder.emit(relax.op.nn.conv2d(x, relax.const(weight), padding=1))
            result = builder.emit_output(relax.op.nn.relu(y))
        builder.emit_func_output(result)
    seen = []

    @tvm.instrument.pass_instrument
    class Note:
        def run_before_pass(self, mod, info):
            seen.append(str(info.name))

    options = {"target": "llvm"} if given else {}
    with tvm.transform.PassContext(instruments=[Note()]), tvm.target.Target("llvm"):
        lowered = relax.get_pipeline("tvmflow", **options)(builder.get())
    rest = iter(seen)
    job = Compilation(None, CompileOptions(target="llvm"))
    assert all(name in rest for stage, name in listing(job) if not stage.startswith("build"))
    assert any(f.attrs.get("tirx.is_scheduled") for f in lowered.functions.values() if f.attrs)
    built = relax.build(lowered, "llvm", relax_pipeline=None, tir_pipeline="tvmflow")
    machine = relax.VirtualMachine(built, tvm.cpu())
    result = machine["main"](tvm.runtime.tensor(picture), *lowered.attrs[WEIGHTS].values())
    padded = np.pad(picture, [(0, 0), (0, 0), (1, 1), (1, 1)])
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), (2, 3))
    wanted = np.maximum(np.einsum("ncyxhw,ochw->noyx", windows, weight), 0)
    np.testing.assert_allclose(result.numpy(), wanted, rtol=1e-4, atol=1e-4)


def is_finisher(name):
    """Return whether a pass runs on split functions: TVM runs the kernels' before the host's."""
    return name in {str(each.info.name) for part in ("host", "kernels") for each in stages()[part]}


def test_the_list_says_what_a_target_needs():
    assert "tvmflow.DecomposeCumsum" in listed(device="adreno")
    assert "tvmflow.DecomposeCumsum" not in listed(target="llvm")
    assert "tvmflow.RankShortRows" in listed(target="cuda")
    assert "tvmflow.CaptureGraph" in listed(target="cuda", cuda_graph=True)
    assert "VMShapeLower" not in listed(device="adreno", format="standalone")


def test_passes_are_dumped_by_name(tmp_path):
    options = {"target": "llvm", "dump_ir": tmp_path, "dump_ir_filter": "FuseTIR|VectorizeLoop"}
    tvmflow.compile(conv((1, 3, 8, 8), 5), **options).close()
    written = {path.relative_to(tmp_path).parent.name for path in tmp_path.rglob("*/*.py")}
    assert written == {"3_fuse", f"{[s.name for s in CODE_STAGES].index('build')}_build"}
    (fused,) = tmp_path.glob("3_fuse/*_FuseTIR.py")
    assert "conv2d" in fused.read_text()
    assert (tmp_path / "2_layout.py").exists()


def test_a_filter_that_is_no_expression_is_refused(tmp_path):
    with pytest.raises(TvmflowError, match="no regular expression"):
        tvmflow.compile(conv((1, 3, 8, 8), 5), target="llvm", dump_ir=tmp_path, dump_ir_filter="(")
