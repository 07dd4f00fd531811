"""The example networks: their structure, their numbers, and the files they are written to."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from tvmflow import models
from tvmflow.models import _graph
from tvmflow.models._graph import Weight
from tvmflow.models.mobilenet import scaled_channels
from tvmflow.models.resnet import residual_network

SMALL = {
    "mobilenet_v1": {"width": 0.25, "size": 32, "classes": 10},
    "mobilenet_v2": {"width": 0.35, "size": 32, "classes": 10},
    "resnet50": {"width": 0.125, "size": 32, "classes": 10},
    "squeezenet": {"width": 0.25, "size": 32, "classes": 10},
    "deit_tiny": {"width": 0.25, "depth": 2, "size": 32, "classes": 10},
    "mobilevit": {"width": 0.25, "size": 64, "classes": 10},
    "crnn": {"width": 0.1, "size": 32, "classes": 10},
    "facebox_net": {"size": 32, "boxes": 8},
    "facebox_loss": {"size": 32, "boxes": 8, "batch": 3},
    "face_detector": {"width": 0.125, "size": 32},
}
#: Networks that ONNX Runtime knows all operators of.
STANDARD = [name for name in models.BUILDERS if name != "facebox_loss"]


def weights_of(model):
    return {t.name: numpy_helper.to_array(t) for t in model.graph.initializer}


def shape_of(value):
    return tuple(dim.dim_value for dim in value.type.tensor_type.shape.dim)


def trained_parameters(model):
    """Count what training changes: no statistics of normalizations, no shapes and limits."""
    return sum(
        array.size
        for name, array in weights_of(model).items()
        if "running" not in name and array.ndim and array.dtype.kind == "f"
    )


# Structure ---------------------------------------------------------------------------------


@pytest.mark.parametrize("name", models.BUILDERS)
def test_models_are_valid(name):
    onnx.checker.check_model(models.make(name, **SMALL[name]), full_check=True)


@pytest.mark.parametrize(
    ("name", "parameters"),
    # The counts that the papers' reference implementations report.
    [
        ("mobilenet_v1", 4_231_976),
        ("mobilenet_v2", 3_504_872),
        ("resnet50", 25_557_032),
        ("squeezenet", 1_235_496),
        ("deit_tiny", 5_717_416),
        ("mobilevit", 5_578_632),
    ],
)
def test_parameter_counts(name, parameters):
    assert trained_parameters(models.make(name)) == parameters


def test_a_deeper_residual_network():
    model = residual_network("resnet101", (3, 4, 23, 3)).model()
    assert trained_parameters(model) == 44_549_160


@pytest.mark.parametrize(
    ("name", "given", "inputs", "outputs"),
    [
        ("mobilenet_v1", {"size": 96, "batch": 2}, (2, 3, 96, 96), (2, 1000)),
        ("mobilenet_v2", {"size": 96, "classes": 7}, (1, 3, 96, 96), (1, 7)),
        ("facebox_net", {"size": 64, "boxes": 64, "batch": 3}, (3, 1, 64, 64), (3, 64, 4)),
        ("face_detector", {"size": 64, "batch": 2}, (2, 3, 64, 64), (2, 4 * (64 + 16 + 4), 4)),
    ],
)
def test_interfaces(name, given, inputs, outputs):
    model = models.make(name, **given)
    assert shape_of(model.graph.input[0]) == inputs
    assert shape_of(model.graph.output[0]) == outputs
    inferred = onnx.shape_inference.infer_shapes(model, strict_mode=True)
    assert shape_of(inferred.graph.output[0]) == outputs


def test_face_box_net_is_as_described():
    model = models.make("facebox_net", size=64, boxes=64)
    level = ["Conv", "MaxPool", "Relu"]
    assert [node.op_type for node in model.graph.node] == [
        *level * 4, "Flatten", "Gemm", "Relu", "Gemm", "Reshape",
    ]  # fmt: skip
    shapes = {name: array.shape for name, array in weights_of(model).items()}
    for i in range(4):
        assert shapes[f"level{i}.weight"] == (4 ** (i + 1), 4**i, 3, 3)
    assert shapes["fc1.weight"] == (64 * 64, 64 * 64 // 4)
    assert shapes["fc2.weight"] == (64 * 64 // 4, 64 * 4)


def test_the_loss_follows_face_box_net():
    model = models.make("facebox_loss", **SMALL["facebox_loss"])
    assert [node.op_type for node in model.graph.node][-4:] == [
        "Reshape", "GIoULoss", "Sub", "GIoULossGrad",
    ]  # fmt: skip
    shapes = {value.name: shape_of(value) for value in (*model.graph.input, *model.graph.output)}
    assert shapes == {
        "image": (3, 1, 32, 32), "target": (3, 8, 4), "count": (3,),
        "boxes": (3, 8, 4), "loss": (), "grad_boxes": (3, 8, 4),
    }  # fmt: skip


def test_face_detector_is_as_described():
    model = models.make("face_detector")
    shapes = {name: array.shape for name, array in weights_of(model).items()}
    assert [shape_of(value) for value in model.graph.output] == [(1, 8400, 4), (1, 8400, 1)]
    for stride, channels in ((8, 64), (16, 128), (32, 256)):
        assert shapes[f"lateral{stride}.weight"] == (64, channels, 1, 1)
        assert shapes[f"head{stride}.hidden.weight"] == (64, 64, 3, 3)
        assert shapes[f"head{stride}.anchors.weight"] == (20, 64, 3, 3)
    inferred = onnx.shape_inference.infer_shapes(model)
    maps = {value.name: shape_of(value) for value in inferred.graph.value_info}
    for stride in (8, 16, 32):
        assert maps[f"head{stride}.anchors/Conv_output"][2:] == (320 // stride, 320 // stride)


def test_face_box_net_of_full_size_has_four_gigabytes():
    graph = models.BUILDERS["facebox_net"].function()
    (large,) = [w for w in graph.weights if w.name == "fc1.weight"]
    assert large.shape == (65536, 16384)
    assert large.size_bytes == 65536 * 16384 * 4


def test_normalization_and_relu6_are_as_exporters_write_them():
    model = models.make("mobilenet_v2", **SMALL["mobilenet_v2"])
    operators = [node.op_type for node in model.graph.node]
    assert operators.count("Conv") == operators.count("BatchNormalization") == 52
    assert operators.count("Add") == 10
    for node in model.graph.node:
        if node.op_type == "Clip":
            limits = [weights_of(model)[name] for name in node.input[1:]]
            assert [float(v) for v in limits] == [0.0, 6.0]
            break
    names = [node.name for node in model.graph.node]
    assert all(names)
    assert len(set(names)) == len(names)


@pytest.mark.parametrize(
    ("channels", "width", "expected"),
    [(32, 1.0, 32), (32, 0.35, 16), (16, 0.35, 8), (24, 1.4, 32), (320, 0.75, 240)],
)
def test_scaled_channels(channels, width, expected):
    assert scaled_channels(channels, width) == expected


def test_width_scales_every_layer():
    counts = [trained_parameters(models.make("mobilenet_v1", width=w)) for w in (0.25, 0.5, 1.0)]
    assert counts == sorted(counts)
    assert counts[2] > 3 * counts[1] > 6 * counts[0]


# Numbers -----------------------------------------------------------------------------------


@pytest.mark.onnxruntime
@pytest.mark.parametrize("name", STANDARD)
def test_activations_neither_vanish_nor_explode(name, rng):
    import onnxruntime

    options = {**SMALL[name], "size": 2 * SMALL[name]["size"]}
    model = models.make(name, **options)
    results = [node.output[0] for node in model.graph.node]
    declared = {value.name for value in model.graph.output}
    model.graph.output.extend(
        onnx.ValueInfoProto(name=result) for result in results if result not in declared
    )
    session = onnxruntime.InferenceSession(model.SerializeToString())
    (info,) = session.get_inputs()
    x = rng.standard_normal(info.shape, dtype=np.float32)
    for result, values in zip(results, session.run(results, {info.name: x}), strict=True):
        # Probabilities of a row sum up to one.
        scale = values.shape[-1] if "Softmax" in result else 1
        assert 0.02 < scale * np.sqrt(np.mean(np.square(values))) < 50, result
        assert len(np.unique(values)) > 4, result


@pytest.mark.onnxruntime
@pytest.mark.parametrize("name", STANDARD)
def test_output_depends_on_input(name, rng):
    import onnxruntime

    model = models.make(name, **SMALL[name])
    session = onnxruntime.InferenceSession(model.SerializeToString())
    (info,) = session.get_inputs()
    one, other = (
        session.run(None, {info.name: rng.standard_normal(info.shape, dtype=np.float32)})[0]
        for _ in range(2)
    )
    assert np.abs(one - other).max() > 0.01 * np.abs(one).max()


def test_the_same_seed_gives_the_same_model():
    one, same, other = (
        models.make("mobilenet_v1", **SMALL["mobilenet_v1"], seed=seed) for seed in (1, 1, 2)
    )
    assert one == same
    assert not np.array_equal(weights_of(one)["stem.weight"], weights_of(other)["stem.weight"])


def test_weights_differ_from_layer_to_layer():
    weights = weights_of(models.make("mobilenet_v1", **SMALL["mobilenet_v1"]))
    first, second = (weights[f"block{i}.depthwise.weight"].ravel()[:9] for i in (7, 8))
    assert not np.array_equal(first, second)


@pytest.mark.parametrize("distribution", ["normal", "uniform"])
def test_chunks_are_the_whole(monkeypatch, distribution):
    """How a weight is cut into pieces does not show in its values."""
    weight = Weight("w", (7, 11, 13), distribution, -1.0, 3.0, (5, 0))
    whole = weight.array()
    monkeypatch.setattr("tvmflow.models._graph.CHUNK_ELEMENTS", 37)
    assert all(chunk.size <= 37 for chunk in weight.chunks())
    np.testing.assert_array_equal(weight.array(), whole)
    assert whole.shape == weight.shape
    if distribution == "uniform":
        assert -1 <= whole.min() < whole.max() <= 3


# Files -------------------------------------------------------------------------------------


def test_external_data_is_the_same_model(tmp_path):
    inside = models.build("facebox_net", tmp_path / "a.onnx", **SMALL["facebox_net"])
    outside = models.build(
        "facebox_net", tmp_path / "b.onnx", external_limit_bytes=0, **SMALL["facebox_net"]
    )
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.onnx", "b.onnx", "b.onnx.data"]
    assert outside.stat().st_size < 10_000 < inside.stat().st_size
    loaded = weights_of(onnx.load(outside))
    for name, array in weights_of(onnx.load(inside)).items():
        np.testing.assert_array_equal(loaded[name], array)


def test_external_tensors_are_aligned(tmp_path):
    path = models.build(
        "facebox_net", tmp_path / "b.onnx", external_limit_bytes=0, **SMALL["facebox_net"]
    )
    for tensor in onnx.load(path, load_external_data=False).graph.initializer:
        entries = {entry.key: entry.value for entry in tensor.external_data}
        if entries:
            assert int(entries["offset"]) % _graph.ALIGNMENT_BYTES == 0


def test_existing_file_is_replaced(tmp_path):
    path = tmp_path / "net.onnx"
    path.write_text("old")
    models.build("facebox_net", path, **SMALL["facebox_net"])
    onnx.checker.check_model(str(path))
    assert [p.name for p in tmp_path.iterdir()] == ["net.onnx"]


@pytest.mark.parametrize("external", [False, True])
def test_nothing_is_left_when_it_fails(tmp_path, monkeypatch, external):
    path = tmp_path / "net.onnx"
    path.write_text("old")

    def fail(*_args, **_options):
        raise KeyboardInterrupt

    monkeypatch.setattr(_graph.onnx.checker, "check_model", fail)
    limit = 0 if external else 1 << 40
    with pytest.raises(KeyboardInterrupt):
        models.build("facebox_net", path, external_limit_bytes=limit, **SMALL["facebox_net"])
    assert [p.name for p in tmp_path.iterdir()] == ["net.onnx"]
    assert path.read_text() == "old"


def test_missing_folder(tmp_path):
    with pytest.raises(FileNotFoundError):
        models.build("facebox_net", tmp_path / "no" / "net.onnx", **SMALL["facebox_net"])


def test_models_in_memory_have_a_limit():
    with pytest.raises(ValueError, match="more than a model in memory can hold"):
        models.make("facebox_net")


# Parameters --------------------------------------------------------------------------------


def test_builders_describe_themselves():
    for name, builder in models.BUILDERS.items():
        assert builder.name == name
        assert builder.description.endswith(".")
        assert builder.parameters
        for parameter in builder.parameters:
            assert parameter.description.endswith(".")
            assert isinstance(parameter.default, parameter.type)


def test_parameters_may_be_text():
    text = models.make("mobilenet_v1", width="0.25", size="32", classes="10")
    assert text == models.make("mobilenet_v1", **SMALL["mobilenet_v1"])


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"sizes": 4}, "no parameter 'sizes'"),
        ({"size": "big"}, "whole number"),
        ({"size": 3.5}, "whole number"),
        ({"size": "3.5"}, "whole number"),
        ({"size": None}, "whole number"),
        ({"size": 0}, "positive"),
        ({"size": -32}, "positive"),
        ({"width": "wide"}, "a number"),
        ({"width": float("nan")}, "a number"),
        ({"width": float("inf")}, "positive"),
        ({"seed": -1}, "positive"),
    ],
)
def test_wrong_parameters(given, words):
    with pytest.raises(ValueError, match=words):
        models.make("mobilenet_v1", **given)


def test_seed_zero_is_fine():
    assert models.BUILDERS["facebox_net"].arguments({"seed": "0"}) == {"seed": 0}


def test_unknown_model():
    with pytest.raises(ValueError, match="there are mobilenet_v1, mobilenet_v2, resnet50"):
        models.make("resnet")


@pytest.mark.parametrize(
    ("name", "size", "step"),
    [*(("facebox_net", size, 16) for size in (8, 100, 40)), ("deit_tiny", 200, 16),
     ("mobilevit", 224, 64), ("face_detector", 80, 32)],
)  # fmt: skip
def test_sizes_that_cannot_be_halved_or_cut_into_patches(name, size, step):
    with pytest.raises(ValueError, match=f"multiple of {step}"):
        models.make(name, size=size)


def test_builders_do_not_need_tvm(run_python):
    """``tvmflow models`` starts without loading the compiler."""
    code = "import sys; from tvmflow import models; models.make('facebox_net', size=32)"
    result = run_python(f"{code}; print('tvm' in sys.modules)")
    assert result.stdout.strip() == "False", result.stderr
