"""Counts and offsets that are inputs of a network are looked at, at each call."""

from __future__ import annotations

import re

import numpy as np
import pytest
from onnx import TensorProto, helper
from support.onnx_models import model_of
from support.small_operators import SHIFTED
from typer.testing import CliRunner

import tvmflow
from tvmflow import ops
from tvmflow.cli.app import app
from tvmflow.errors import InputError
from tvmflow.ir import operators
from tvmflow.ir.operator import DOMAIN
from tvmflow.ir.tensors import TensorType
from tvmflow.models import make
from tvmflow.module.samples import random_inputs
from tvmflow.verify.compare import verify

SAMPLES, BOXES, ROWS = 3, 5, 7
#: The form's dtype, shape and values that fit.
FORMS = {
    "count": ("int64", [2, 0, BOXES]),
    "offsets": ("int32", [0, 4, 4, ROWS]),
}


def loss_network(form):
    """``GIoULoss`` of a network's input ``pred``, and of what counts as its input ``faces``."""
    dtype, values = FORMS[form]
    target = [ROWS, 4] if form == "offsets" else [SAMPLES, BOXES, 4]
    names = ["pred", "target", *("faces" if f == form else "" for f in ("count", "", "offsets"))]
    nodes = [
        helper.make_node("GIoULoss", names, ["loss", "valid"], "mean", domain=DOMAIN),
        helper.make_node("Neg", ["loss"], ["y"]),
    ]
    inputs = {"pred": [SAMPLES, BOXES, 4], "target": target, "faces": ([len(values)], dtype)}
    return model_of(nodes, inputs, {"y": []}, opset=18)


@pytest.fixture(scope="module", params=["count", "offsets"])
def form(request):
    return request.param


@pytest.fixture(scope="module")
def module(form):
    with tvmflow.compile(loss_network(form), target="llvm") as compiled:
        yield compiled


def feeds(module, form, faces=None):
    dtype = FORMS[form][0]
    given = random_inputs(module, 3, without=["faces"])
    return {**given, "faces": np.array(FORMS[form][1] if faces is None else faces, dtype)}


BAD = {
    "count": [
        ([2, 0, BOXES + 1], "count of 6 boxes in sample 2, expected 0 to 5"),
        ([2, -1, 0], "count of -1 boxes in sample 1"),
    ],
    "offsets": [
        ([0, 4, 3, ROWS], "of -1 boxes in sample 1"),
        ([0, 1, 1, ROWS], "of 6 boxes in sample 2, expected 0 to 5"),
        ([0, 4, 4, ROWS + 1], r"offsets[3] = 8, expected 0 to 7, the rows of target [7, 4]"),
    ],
}


def test_values_out_of_range_are_refused_and_others_are_not(module, form):
    (good,) = module(feeds(module, form))
    for faces, sentence in BAD[form]:
        with pytest.raises(InputError, match=re.escape(sentence)) as caught:
            module(feeds(module, form, faces))
        assert "input 'faces' cannot be used by the node 'mean'" in str(caught.value)
        assert caught.value.remedy
    (again,) = module(feeds(module, form))
    assert again == good


def test_tensors_on_the_host_are_looked_at_too(module, form):
    import tvm

    faces, sentence = BAD[form][0]
    given = feeds(module, form, faces)
    given["faces"] = tvm.runtime.tensor(given["faces"])
    calls = module, lambda v: module.profile(v, 1), lambda v: module.run(v, output="dlpack")
    for call in calls:
        with pytest.raises(InputError, match=re.escape(sentence)):
            call(given)


@pytest.mark.opencl
def test_nothing_is_copied_from_a_device(form):
    """Kernels clamp what is there already."""
    import tvm

    with tvmflow.compile(loss_network(form), target="opencl", device="cpu") as module:
        given = feeds(module, form, BAD[form][0][0])
        with pytest.raises(InputError, match="'faces'"):
            module(given)
        given["faces"] = tvm.runtime.tensor(given["faces"], tvm.opencl())
        (loss,) = module(given)
    assert np.isfinite(loss)


def test_the_note_names_inputs_and_types(module, form):
    (note,) = module.metadata["call_checks"]
    assert (note["node"], note["operator"]) == ("mean", "GIoULoss")
    assert note["attributes"] == {"epsilon": pytest.approx(1e-5)}
    pred = {"dtype": "float32", "shape": [SAMPLES, BOXES, 4]}
    target = {"dtype": "float32", "shape": [ROWS, 4]} if form == "offsets" else pred
    behind = ["faces", None, None] if form == "count" else [None, None, "faces"]
    assert note["operands"] == [pred, target, *behind]


def test_random_inputs_fit(module, form):
    for seed in range(20):
        module(random_inputs(module, seed))
    drawn = [random_inputs(module, seed)["faces"] for seed in range(20)]
    # Not all of them the zeros that always fit.
    assert sum(faces.any() for faces in drawn) > 10


def test_network_with_loss_is_verified_with_random_inputs(tmp_path):
    from tvmflow.module.bench import benchmark

    path = tmp_path / "facebox_loss.onnx"
    path.write_bytes(make("facebox_loss", size=16, boxes=2, batch=4).SerializeToString())
    with tvmflow.compile(path, target="llvm") as module:
        assert [note["operator"] for note in module.metadata["call_checks"]] == [
            "GIoULoss", "GIoULossGrad"
        ]  # fmt: skip
        assert verify(path, module).passed
        benchmark(module, runs=1, warmup=0)
        given = random_inputs(module, 0)
        with pytest.raises(InputError, match=r"'count'.* count of 3 boxes in sample 1"):
            module({**given, "count": np.array([0, 3, 0, 0], np.int32)})


def test_run_with_bad_counts_ends_with_status_2(module, form, tmp_path):
    faces, sentence = BAD[form][0]
    path = module.save(tmp_path / "loss.so")
    np.savez(tmp_path / "in.npz", **feeds(module, form, faces))
    command = ["run", str(path), "--inputs", str(tmp_path / "in.npz")]
    ended = CliRunner().invoke(app, command)
    assert ended.exit_code == 2
    # The terminal's lines are wrapped.
    assert sentence in " ".join(ended.stderr.split())


@pytest.fixture
def shifted(monkeypatch):
    """A module with an operator of a user."""
    monkeypatch.setattr(operators, "REGISTERED", {})
    ops.register(SHIFTED)
    inputs = {"x": [3, 4], "keep": ([], "int32")}
    model = model_of("y = ai.tvmflow.Shifted(x, , keep)", inputs, {"y": [3, 4]}, opset=18)
    with tvmflow.compile(model, target="llvm") as module:
        yield module


def test_operators_that_are_not_registered_are_passed_over(shifted, tmp_path, monkeypatch):
    given = {"x": np.ones((3, 4), np.float32), "keep": np.array(-1, np.int32)}
    with pytest.raises(InputError, match=r"'keep'.*Shifted is given keep -1"):
        shifted(given)
    monkeypatch.setattr(operators, "REGISTERED", {})
    with tvmflow.load(shifted.save(tmp_path / "other.so")) as module:
        (y,) = module(given)
        # A scalar among the random inputs.
        module(random_inputs(module, 0))
    assert not y.any()


def test_networks_without_such_nodes_have_nothing_to_look_at():
    from tvmflow.frontend.load import load_model

    constant = loss_network("count")
    faces = helper.make_tensor("faces", TensorProto.INT64, [SAMPLES], FORMS["count"][1])
    constant.graph.initializer.append(faces)
    del constant.graph.input[2]
    assert load_model(constant).call_checks == ()
    (check,) = load_model(loss_network("count")).call_checks
    assert check.inputs == ("faces",)
    assert check.operands[0] == TensorType((SAMPLES, BOXES, 4), "float32")
