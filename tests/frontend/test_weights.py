"""Large weights stay in their file, as external data or as raw data in the model."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper
from reference import graph_model, run

from tvmflow import models
from tvmflow.errors import ModelError
from tvmflow.frontend.load import load_model
from tvmflow.verify.reference import run_reference

LIMIT = 50_000


@pytest.fixture(scope="module")
def facebox(tmp_path_factory):
    """Build FaceBoxNet with external data, and in one file."""
    folder = tmp_path_factory.mktemp("facebox")
    options = {"size": 32, "boxes": 8, "seed": 3}
    outside = models.build("facebox_net", folder / "out.onnx", external_limit_bytes=0, **options)
    inside = models.build("facebox_net", folder / "in.onnx", **options)
    return outside, inside


def result(loaded, seed=0):
    (info,) = loaded.inputs
    image = np.random.default_rng(seed).standard_normal(info.shape, dtype=np.float32)
    return run(loaded, {info.name: image})[0]


def test_large_external_weights_become_parameters(facebox):
    loaded = load_model(facebox[0], large_weight_bytes=LIMIT)
    names = [parameter.name for parameter in loaded.mod["main"].params]
    assert names == ["image", "level3.weight", "fc1.weight"]
    assert list(loaded.weights) == names[1:]
    assert int(loaded.mod["main"].attrs["num_input"]) == 1
    assert [w.shape for w in loaded.weights.values()] == [(256, 64, 3, 3), (1024, 256)]
    for weight in loaded.weights.values():
        assert isinstance(weight, np.memmap)
        assert not weight.flags.writeable
        assert weight.dtype == np.float32
        assert weight.nbytes >= LIMIT


def test_large_weights_inside_the_file_become_parameters(facebox):
    loaded = load_model(facebox[1], large_weight_bytes=LIMIT)
    outside = load_model(facebox[0], large_weight_bytes=LIMIT)
    assert list(loaded.weights) == list(outside.weights)
    for name, weight in loaded.weights.items():
        assert isinstance(weight, np.memmap)
        assert Path(weight.filename) == facebox[1]
        np.testing.assert_array_equal(weight, outside.weights[name])


def test_same_results_wherever_the_weights_are(facebox):
    expected = result(load_model(facebox[1]))
    for path in facebox:
        np.testing.assert_array_equal(result(load_model(path)), expected)
        np.testing.assert_allclose(
            result(load_model(path, large_weight_bytes=LIMIT)), expected, rtol=1e-5
        )


def test_large_weights_of_a_message_are_not_copied(facebox):
    model = onnx.load(facebox[1])
    loaded = load_model(model, large_weight_bytes=LIMIT)
    assert list(loaded.weights) == ["level3.weight", "fc1.weight"]
    assert all(not weight.flags.owndata for weight in loaded.weights.values())


def test_large_constant_nodes_stay_in_the_file(tmp_path, rng):
    """Some exporters store weights in Constant nodes."""
    weight = rng.standard_normal((64, 256), dtype=np.float32)
    nodes = [
        helper.make_node("Constant", [], ["w"], value=numpy_helper.from_array(weight, "w")),
        helper.make_node("MatMul", ["x", "w"], ["y"]),
    ]
    path = tmp_path / "net.onnx"
    onnx.save(graph_model(nodes, {"x": ([2, 64], "float32")}, ["y"]), path)
    loaded = load_model(path, large_weight_bytes=LIMIT)
    assert isinstance(loaded.weights["w"], np.memmap)
    np.testing.assert_array_equal(loaded.weights["w"], weight)
    x = rng.standard_normal((2, 64), dtype=np.float32)
    np.testing.assert_allclose(run(loaded, {"x": x})[0], x @ weight, rtol=1e-4, atol=1e-4)


def test_unaligned_external_data(tmp_path, rng):
    weight = rng.standard_normal((3, 5), dtype=np.float32)
    (tmp_path / "data").write_bytes(b"abc" + weight.tobytes())
    tensor = onnx.TensorProto(name="w", data_type=1, dims=weight.shape, data_location=1)
    tensor.external_data.add(key="location", value="data")
    tensor.external_data.add(key="offset", value="3")
    model = graph_model(
        [helper.make_node("MatMul", ["x", "w"], ["y"])], {"x": ([2, 3], "float32")}, ["y"]
    )
    model.graph.initializer.append(tensor)
    (tmp_path / "net.onnx").write_bytes(model.SerializeToString())
    x = rng.standard_normal((2, 3), dtype=np.float32)
    for limit in (1, 1 << 20):
        loaded = load_model(tmp_path / "net.onnx", large_weight_bytes=limit)
        np.testing.assert_allclose(run(loaded, {"x": x})[0], x @ weight, rtol=1e-5)


def test_large_weights_are_used_as_they_are(rng):
    """Large weights are not rewritten, even if they are transposed, scaled or used twice."""
    weight = rng.standard_normal((40, 64), dtype=np.float32)
    nodes = [
        helper.make_node("Gemm", ["x", "w"], ["a"], transB=1, alpha=0.5),
        helper.make_node("Gemm", ["a", "w"], ["y"]),
    ]
    model = graph_model(nodes, {"x": ([2, 64], "float32")}, ["y"], {"w": weight})
    loaded = load_model(model, large_weight_bytes=100)
    assert list(loaded.weights) == ["w"]
    x = rng.standard_normal((2, 64), dtype=np.float32)
    expected = 0.5 * (x @ weight.T) @ weight
    np.testing.assert_allclose(run(loaded, {"x": x})[0], expected, rtol=1e-3, atol=1e-3)


def test_batch_norm_is_not_folded_into_a_large_weight(rng):
    weight = rng.standard_normal((8, 4, 3, 3), dtype=np.float32)
    names = ["gamma", "beta", "mean", "var"]
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"]),
        helper.make_node("BatchNormalization", ["c", *names], ["y"]),
    ]
    parameters = {n: rng.uniform(0.5, 1.5, 8).astype(np.float32) for n in names}
    model = graph_model(nodes, {"x": ([1, 4, 6, 6], "float32")}, ["y"], {"w": weight, **parameters})
    x = rng.standard_normal((1, 4, 6, 6), dtype=np.float32)
    kept = load_model(model, large_weight_bytes=100)
    assert list(kept.weights) == ["w"]
    np.testing.assert_allclose(
        run(kept, {"x": x})[0], run(load_model(model), {"x": x})[0], rtol=1e-4, atol=1e-4
    )


# Mistakes ----------------------------------------------------------------------------------


@pytest.fixture
def broken(facebox, tmp_path):
    """Return a function that changes the model and its data file and loads it."""

    def load(change=None, data=None, location=None):
        model = onnx.load(facebox[0], load_external_data=False)
        content = facebox[0].with_name("out.onnx.data").read_bytes()
        for tensor in model.graph.initializer:
            for entry in tensor.external_data:
                if entry.key == "location" and location is not None:
                    entry.value = location
                if change and entry.key in change:
                    entry.value = change[entry.key]
        if data is not None:
            (tmp_path / "out.onnx.data").write_bytes(data(content))
        (tmp_path / "net.onnx").write_bytes(model.SerializeToString())
        with pytest.raises(ModelError) as caught:
            load_model(tmp_path / "net.onnx")
        assert caught.value.remedy
        return str(caught.value)

    return load


def test_missing_data_file(broken):
    assert "out.onnx.data" in broken()


def test_data_file_cut_short(broken):
    assert "cut short" in broken(data=lambda content: content[:-10])


def test_data_as_a_directory(broken, tmp_path):
    (tmp_path / "out.onnx.data").mkdir()
    assert "out.onnx.data" in broken()


@pytest.mark.parametrize("offset", ["-4", "many", "99999999999999999999"])
def test_wrong_offset(broken, offset):
    broken({"offset": offset}, data=lambda content: content)


def test_wrong_length(broken):
    assert "length" in broken({"length": "7"}, data=lambda content: content)


@pytest.mark.parametrize("location", ["../out.onnx.data", "/etc/passwd", "", "a/../../b", "a\0b"])
def test_data_outside_the_models_folder(broken, location):
    assert "not a file in the model's folder" in broken(location=location)


@pytest.fixture
def linked(facebox, tmp_path):
    """Return a folder with the model, and a folder outside of it with the model's data."""
    inside, outside = tmp_path / "inside", tmp_path / "outside"
    inside.mkdir()
    outside.mkdir()
    (inside / "net.onnx").write_bytes(facebox[0].read_bytes())
    (outside / "out.onnx.data").write_bytes(facebox[0].with_name("out.onnx.data").read_bytes())
    return inside, outside


def assert_same_weights(path, expected):
    loaded, wanted = (load_model(p, large_weight_bytes=LIMIT).weights for p in (path, expected))
    assert list(loaded) == list(wanted)
    for name, weight in loaded.items():
        np.testing.assert_array_equal(weight, wanted[name])


def test_a_link_out_of_the_models_folder(linked):
    inside, outside = linked
    (inside / "out.onnx.data").symlink_to(outside / "out.onnx.data")
    with pytest.raises(
        ModelError, match=r"a link out of the model's folder, to .*outside"
    ) as caught:
        load_model(inside / "net.onnx")
    assert "Copy the file itself" in caught.value.remedy


def test_a_reference_does_not_follow_such_a_link_either(linked):
    inside, outside = linked
    (inside / "out.onnx.data").symlink_to(outside / "out.onnx.data")
    with pytest.raises(ModelError, match="a link out of the model's folder"):
        run_reference(inside / "net.onnx", {}, [])


def test_a_linked_folder_leads_out(linked):
    inside, outside = linked
    model = onnx.load(inside / "net.onnx", load_external_data=False)
    for tensor in model.graph.initializer:
        for entry in tensor.external_data:
            if entry.key == "location":
                entry.value = "data/out.onnx.data"
    (inside / "net.onnx").write_bytes(model.SerializeToString())
    (inside / "data").symlink_to(outside)
    with pytest.raises(ModelError, match="a link out of the model's folder"):
        load_model(inside / "net.onnx")


def test_links_in_a_circle(linked):
    inside, _ = linked
    (inside / "out.onnx.data").symlink_to(inside / "other")
    (inside / "other").symlink_to(inside / "out.onnx.data")
    with pytest.raises(ModelError, match=r"out\.onnx\.data"):
        load_model(inside / "net.onnx")


@pytest.mark.parametrize("data_is_linked", [True, False])
def test_a_model_that_is_a_link_itself(linked, facebox, data_is_linked):
    """Download caches have links to one folder with all files."""
    inside, outside = linked
    (inside / "net.onnx").rename(outside / "net.onnx")
    (inside / "net.onnx").symlink_to(outside / "net.onnx")
    if data_is_linked:
        (inside / "out.onnx.data").symlink_to(outside / "out.onnx.data")
    assert_same_weights(inside / "net.onnx", facebox[0])


def test_a_link_within_the_models_folder(linked, facebox):
    inside, outside = linked
    (outside / "out.onnx.data").rename(inside / "weights.bin")
    (inside / "out.onnx.data").symlink_to("weights.bin")
    assert_same_weights(inside / "net.onnx", facebox[0])


def test_external_data_without_a_path(facebox):
    with pytest.raises(ModelError, match="not given as a path"):
        load_model(facebox[0].read_bytes())
    with pytest.raises(ModelError, match="not given as a path"):
        load_model(onnx.load(facebox[0], load_external_data=False))


@pytest.mark.slow
def test_memory_of_a_model_of_four_gigabytes(tmp_path, run_python):
    """FaceBoxNet of full size is loaded in a few megabytes."""
    builder = models.BUILDERS["facebox_net"].function()
    assert builder.weight_bytes > 4 << 30
    path = tmp_path / "net.onnx"
    code = """
import sys
from tvmflow.frontend.load import load_model
from tvmflow import models
import resource
models.build("facebox_net", sys.argv[1])
built = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
loaded = load_model(sys.argv[1])
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
print(built, peak, sum(w.nbytes for w in loaded.weights.values()))
"""
    output = run_python(code, path, timeout=900)
    assert output.returncode == 0, output.stderr
    built_kib, peak_kib, weight_bytes = map(int, output.stdout.split())
    assert weight_bytes > 4 << 30
    assert built_kib < 1 << 20
    assert peak_kib - built_kib < 64 << 10
