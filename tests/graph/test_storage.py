"""The storage pass: which tensors become textures, limits, costs, and overrides by name."""

from __future__ import annotations

import random
import re
from dataclasses import replace

import pytest
from support.first_stages import compiled_until
from support.networks import NETWORKS, Graph
from support.onnx_models import expected as onnx_runtime
from support.operators import conv, feeds_for

import tvmflow
from tvmflow.compiler.options import STORAGE_OVERRIDES
from tvmflow.devices.target import PRESETS, resolve, with_storage
from tvmflow.errors import CompileError, TargetError
from tvmflow.frontend.load import load_model
from tvmflow.graph.storage.placement import table
from tvmflow.graph.storage.uses import Traffic, prefers_texture
from tvmflow.ir.names import resolve_names
from tvmflow.ir.rewriter import identifier
from tvmflow.ir.scope import extent_of
from tvmflow.verify.tolerance import assert_close


def place(model, device="adreno", storage="texture", overrides=None, **limits):
    """Return placements by name, and the module after the pass."""
    spec = with_storage(resolve("opencl", device), storage, overrides)
    spec = replace(spec, device=replace(spec.device, **limits))
    asked = {"storage": storage, "storage_overrides": overrides or {}}
    job = compiled_until("storage", model, spec, **asked)
    placements, mod = job.placements, job.mod
    assert len({p.tensor for p in placements}) == len(placements)
    return {p.tensor: p for p in placements}, mod


def chain():
    """Three convolutions; the middle one is followed by a ReLU, t2."""
    g = Graph(1, 3, 16, 16)
    return g.model(g.conv(g.relu(g.conv(g.conv("x", 12, 3), 20, 3)), 6))


def storages(placements, constant=False):
    return {name: p.storage for name, p in placements.items() if p.constant == constant}


def test_tensors_between_functions_are_textures_and_the_models_own_are_buffers():
    placed, _ = place(chain())
    assert storages(placed) == {
        "x": "buffer", "x_0_blocked": "texture", "t0": "texture", "t2": "texture",
        "t3": "texture", "gv": "buffer",
    }  # fmt: skip
    assert placed["x"].reason == "an input of the model"
    assert placed["gv"].reason == "an output of the model"
    assert set(storages(placed, constant=True).values()) == {"texture"}


def test_the_decision_is_in_the_signatures_of_readers_and_writers():
    placed, mod = place(chain(), overrides={"t0": "buffer"})
    scopes = {}
    for binding in mod["main"].body.blocks[0].bindings:
        function = mod[binding.value.args[0]]
        scopes[binding.var.name] = [str(p.scope()) for p in function.params]
    image = placed["t2"].scope
    assert scopes["t0"][-1] == "global"
    assert scopes["t2"][0] == "global"
    assert scopes["t2"][-1] == scopes["gv"][0] == image


def test_buffers_are_asked_for():
    placed, _ = place(chain(), storage="buffer")
    assert set(storages(placed).values()) == {"buffer"}
    assert placed["t0"].cause == "asked"


@pytest.mark.parametrize(
    ("device", "expected"), [("adreno", "texture"), ("mali", "texture"), ("nvidia", "buffer")]
)
def test_auto_follows_what_the_device_gains(device, expected):
    placed, _ = place(chain(), device=device, storage="auto")
    assert placed["t2"].storage == expected
    assert placed["t2"].cause == "cost"
    assert ("<" if expected == "texture" else ">") in placed["t2"].reason


def test_auto_on_a_cpu_says_that_the_layout_has_no_texels():
    placed, _ = place(chain(), device="cpu", storage="auto")
    assert set(storages(placed).values()) == {"buffer"}
    assert placed["t0"].cause == "layout"
    assert "blocks of 16 channels" in placed["t0"].reason


def test_a_tensor_over_the_limits_is_a_buffer_and_says_so():
    placed, _ = place(chain(), image_extent=50, image_layers=1)
    # 5 blocks of 16x16 fit in 32x48 texels.
    assert str(placed["t2"].extent) == "32x48"
    # The second layer's weights, 5x12x3x3 texels, are 60x9 at best.
    over = [p for p in placed.values() if p.cause == "limits"]
    assert [p.tensor for p in over] == ["t2.param_0"]
    assert over[0].storage == "buffer"
    assert "50x50 texels in 1 layers" in over[0].reason


@pytest.mark.parametrize("extent", [16, 24, 40, 64, 128])
@pytest.mark.parametrize("network", ["fire", "inception", "u_net"])
def test_no_texture_is_over_the_limits(network, extent):
    placed, _ = place(NETWORKS[network](), image_extent=extent, image_layers=4)
    device = replace(PRESETS["adreno"], image_extent=extent, image_layers=4)
    for placement in placed.values():
        if placement.scope:
            assert extent_of(placement.shape, placement.scope).fits(device)


# -- the cost model -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("device", "traffic", "better"),
    [
        # Read often: the texture cache pays on phones, and costs on NVIDIA's GPUs and on CPUs.
        ("adreno", Traffic(100, 100, 2000), True),
        ("mali", Traffic(100, 100, 2000), True),
        ("nvidia", Traffic(100, 100, 2000), False),
        ("cpu", Traffic(100, 100, 2000), False),
        # Read once: equal on Adreno, where the tie goes to the texture.
        ("adreno", Traffic(100, 100, 100), True),
        # Written and read once: writing texels costs more on Mali.
        ("mali", Traffic(100, 100, 100), False),
        # A weight is not written.
        ("nvidia", Traffic(0, 100, 100), False),
    ],
)
def test_costs(device, traffic, better):
    assert prefers_texture(traffic, PRESETS[device])[0] is better


def test_images_of_weights_that_are_too_tall_are_buffers():
    texture = replace(PRESETS["adreno"].texture, tall=4)
    placed, _ = place(chain(), storage="auto", texture=texture)
    # Five blocks of output channels are five rows, three blocks are three.
    assert placed["t2.param_0"].storage == "buffer"
    assert "an image of 5 rows: with more than 4" in placed["t2.param_0"].reason
    assert placed["t0.param_0"].storage == "texture"


def test_the_formula():
    # cost = W / write + U / stream + (R - U) / cached
    assert Traffic(100, 50, 350).cost(0.5, 2.0, 3.0) == 100 / 0.5 + 50 / 2.0 + 300 / 3.0
    assert Traffic(100, 50, 20).cost(1.0, 1.0, 1.0) == 150  # nothing is read again


# -- overrides ----------------------------------------------------------------------------------


def test_overrides_change_single_tensors():
    placed, _ = place(
        chain(), storage="buffer", overrides={"t2": "texture", "t2.param_0": "texture"}
    )
    assert [name for name, p in placed.items() if p.scope] == ["t2", "t2.param_0"]
    assert placed["t2"].cause == "override"
    placed, _ = place(chain(), storage="texture", overrides={"t0": "buffer", "x": "buffer"})
    assert placed["t0"].storage == "buffer"
    assert placed["t2"].storage == "texture"


def test_one_texture_on_a_cpu_makes_blocks_of_four():
    placed, _ = place(chain(), device="cpu", storage="auto", overrides={"t2": "texture"})
    assert [name for name, p in placed.items() if p.scope] == ["t2"]


def test_names_of_the_onnx_model_are_names_of_tensors():
    import onnx

    model = chain()
    node = model.graph.node[2]
    node.name = "/features/act/Relu"
    for reader in model.graph.node:
        reader.input[:] = ["features/act:0" if n == node.output[0] else n for n in reader.input]
    node.output[0] = "features/act:0"
    onnx.checker.check_model(model)
    placed, _ = place(model)
    assert "_features_act_Relu" in placed
    for name in ("features/act:0", "_features_act_Relu"):
        placed, _ = place(model, overrides={name: "buffer"})
        assert placed["_features_act_Relu"].storage == "buffer"


def test_a_name_stands_for_the_packed_tensor_that_one_function_made():
    g = Graph(1, 3, 9, 9)
    y = g.node("Transpose", ["x"], 3, perm=[0, 1, 3, 2])
    placed, _ = place(g.model(g.conv(y, 5)), overrides={y: "buffer"})
    assert placed[f"{y}_blocked"].storage == "buffer"


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        ({"t22": "texture"}, ["'t22'", "names no tensor", "t2"]),
        ({"t1": "texture"}, ["'t1'", "inside a primary function"]),
        ({"x": "texture"}, ["x [1, 3, 16, 16]", "an input of the model"]),
        ({"gv": "texture"}, ["an output of the model"]),
        ({"t2": "texture", "t2_": "buffer"}, ["'t2_'"]),
    ],
)
def test_refused_overrides(overrides, words):
    with pytest.raises(CompileError) as error:
        place(chain(), overrides=overrides)
    for word in words:
        assert word in error.value.message
    assert error.value.remedy


def test_a_texture_on_a_device_without_images_is_refused():
    with pytest.raises(CompileError, match=r"t2 .*without images"):
        place(chain(), storage="auto", overrides={"t2": "texture"}, image_extent=0)


def test_a_texture_over_the_limits_is_refused():
    with pytest.raises(CompileError, match=r"t2\.param_0.*50x50 texels in 1 layers"):
        place(chain(), overrides={"t2.param_0": "texture"}, image_extent=50, image_layers=1)


def test_one_tensor_cannot_be_both():
    words = {"table": "The overrides", "kind": "tensor", "unknown": "{!r}?"}
    with pytest.raises(CompileError, match="both texture and buffer for the tensor a"):
        resolve_names({"a": "texture", "b/1": "buffer"}, ["a"], {"b/1": "a"}, **words)
    agreed = resolve_names({"a": "texture", "b/1": "texture"}, ["a"], {"b/1": "a"}, **words)
    assert agreed == {"a": "texture"}


@pytest.mark.parametrize("target", ["llvm", "cuda"])
def test_textures_need_opencl(target):
    with pytest.raises(TargetError, match=f"{target} has no texture storage"):
        with_storage(resolve(target), "auto", {"a": "texture"})


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("o.json", '{"a/b": "texture", "c": "buffer"}'),
        ("o.toml", '"a/b" = "texture"\nc = "buffer"\n'),
    ],
)
def test_files_of_overrides(name, text, tmp_path):
    import sys

    if name.endswith("toml") and sys.version_info < (3, 11):
        pytest.skip("Python has tomllib since 3.11")
    (tmp_path / name).write_text(text)
    assert STORAGE_OVERRIDES.checked(tmp_path / name) == {"a/b": "texture", "c": "buffer"}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", ["could not be read", "line 1"]),
        ("[1]", ["object of names and values", "list"]),
        ('{"a": "image"}', ["'a'", "'image'", "texture, buffer"]),
        ('{"a": 1}', ["'a'", "1"]),
        ('{"a": {"b": "texture"}}', ["'a'"]),
        ('{"a": "texture", "a": "buffer"}', ["'a' comes twice"]),
    ],
)
def test_files_that_are_refused(text, words, tmp_path):
    path = tmp_path / "o.json"
    path.write_text(text)
    with pytest.raises(CompileError) as error:
        STORAGE_OVERRIDES.checked(path)
    for word in words:
        assert word in error.value.message
    assert error.value.remedy


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(CompileError, match=r"none\.json.*No such file"):
        STORAGE_OVERRIDES.checked(tmp_path / "none.json")


@pytest.mark.opencl
@pytest.mark.onnxruntime
@pytest.mark.parametrize("base", ["texture", "buffer"])
@pytest.mark.parametrize("network", ["bottlenecks", "inception", "squeeze_and_excite", "u_net"])
def test_any_mixture_of_storages_is_right(network, base):
    model = NETWORKS[network]()
    placed, _ = place(model)
    generator = random.Random(network + base)
    overrides = {
        name: generator.choice(["texture", "buffer"]) for name, p in placed.items() if p.scope
    }
    assert len(set(overrides.values())) == 2
    feeds = feeds_for(model)
    (reference,) = onnx_runtime(model, feeds)
    with tvmflow.compile(
        model, device="adreno", storage=base, storage_overrides=overrides
    ) as module:
        decided = {p["tensor"]: p["storage"] for p in module.metadata["placements"]}
        assert overrides.items() <= decided.items()
        assert_close(module(**feeds)[module.outputs[0].name], reference)


# -- what is printed ----------------------------------------------------------------------------


def test_decisions_are_printed_in_columns():
    placed, _ = place(chain())
    head, *lines = table(list(placed.values()))
    assert len(lines) == len(placed)
    for column in ("shape", "storage", "image", "why"):
        start = head.index(column)
        assert all(line[start - 1] == " " != line[start] or column == "image" for line in lines)
    assert any("t2 " in line and "1×5×16×16×4" in line and "asked for" in line for line in lines)


# -- names through fusion -----------------------------------------------------------------------


def names(model):
    mod = compiled_until("fuse", model, device="adreno").mod
    return [b.var.name for block in mod["main"].body.blocks for b in block.bindings]


def test_fused_tensors_keep_the_names_of_the_model():
    assert names(conv((1, 3, 8, 8), 5, residual=False)) == ["x_0_blocked", "y2", "gv"]


def test_equal_functions_have_results_of_different_names():
    g = Graph(1, 8, 6, 6)
    x = g.relu(g.conv("x", 8, 3))
    for _ in range(3):
        x = g.relu(g.conv(x, 8, 3))
    assert names(g.model(x)) == ["x_0_blocked", "t1", "t3", "t5", "t7", "gv"]


def test_a_tensor_may_be_called_like_a_function():
    g = Graph(1, 3, 6, 6)
    x = g.conv(g.relu(g.conv("x", 8, 3)), 8, 3)
    model = g.model(g.conv(x, 8))
    for node in model.graph.node:
        for names_of in (node.input, node.output):
            names_of[:] = ["conv2d" if name == "t1" else name for name in names_of]
    assert names(model) == ["x_0_blocked", "conv2d", "t2", "t3", "gv"]


@pytest.mark.parametrize("network", NETWORKS)
def test_names_are_those_of_the_model_in_every_network(network):
    model = NETWORKS[network]()
    known = {identifier(name) for name in load_model(model).bindings} | {"x_0"}
    for name in names(model):
        # A node that needs several tensors numbers them: NODE#1 is NODE_1.
        base = re.sub(r"(_\d+)?(_blocked|_plain)?$", "", name) if name != "x_0_blocked" else "x_0"
        assert base in known or name.startswith("gv"), name
