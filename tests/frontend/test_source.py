"""Models that cannot be read give one sentence and a remedy, whatever is wrong."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from tvmflow import models
from tvmflow.errors import ModelError, UnsupportedModelError
from tvmflow.frontend.load import load_model
from tvmflow.frontend.source import open_model


@pytest.fixture(scope="module")
def model():
    return models.make("mobilenet_v2", width=0.35, size=32, classes=4)


@pytest.fixture
def changed(model):
    """Return a copy of the model to break."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    return copy


def refused(source, *words, error=ModelError, **options):
    with pytest.raises(error) as caught:
        load_model(source, **options)
    message = str(caught.value)
    for word in words:
        assert word in message
    assert caught.value.remedy
    return caught.value


def test_path_bytes_and_message_are_the_same_model(model, tmp_path):
    path = tmp_path / "net.onnx"
    onnx.save(model, path)
    loaded = [load_model(source) for source in (path, str(path), model.SerializeToString(), model)]
    assert [m.name for m in loaded] == ["net", "net", "mobilenet_v2", "mobilenet_v2"]
    assert len({m.mod.script() for m in loaded}) == 1
    assert {m.inputs for m in loaded} == {loaded[0].inputs}


def test_the_callers_message_stays_as_it_is(model):
    before = model.SerializeToString(deterministic=True)
    load_model(model)
    assert model.SerializeToString(deterministic=True) == before


def test_missing_file(tmp_path):
    refused(tmp_path / "no.onnx", "no such file")


def test_directory(tmp_path):
    refused(tmp_path, "is a directory")


def test_device_file():
    refused("/dev/zero", "not a regular file")


def test_not_a_path():
    refused(42, "from a int")


def test_null_character():
    refused("a\0b", "Cannot read")


@pytest.mark.parametrize("content", [b"", b"hello, world, no model", bytes(range(256)) * 9])
def test_no_onnx_file(tmp_path, content):
    path = tmp_path / "net.onnx"
    path.write_bytes(content)
    refused(path, "net.onnx")
    refused(content)


def test_files_cut_short(model, tmp_path):
    content = model.SerializeToString()
    path = tmp_path / "net.onnx"
    for length in range(1, len(content), len(content) // 25):
        path.write_bytes(content[:length])
        refused(path)
        refused(path, large_weight_bytes=1000)


def test_damaged_files_are_refused_or_loaded(model, rng, tmp_path):
    """Any changed bytes give a `TvmflowError` or a model, never another error."""
    content = np.frombuffer(model.SerializeToString(), np.uint8)
    path = tmp_path / "net.onnx"
    outcomes = []
    for attempt in range(80):
        damaged = content.copy()
        # Most of the damage is in the nodes, which precede the weights.
        end = len(content) if attempt % 4 == 0 else 20_000
        places = rng.integers(0, end, 3)
        damaged[places] ^= rng.integers(1, 256, 3).astype(np.uint8)
        path.write_bytes(damaged.tobytes())
        try:
            load_model(path, large_weight_bytes=[1 << 30, 1000][attempt % 2])
            outcomes.append("loaded")
        except ModelError:
            outcomes.append("refused")
    assert outcomes.count("refused") > 20


def test_no_graph():
    refused(onnx.ModelProto(ir_version=8), "no graph")


def test_no_outputs(changed):
    del changed.graph.output[:]
    refused(changed, "no outputs")


def test_no_nodes(changed):
    del changed.graph.node[:]
    refused(changed, "no nodes")


@pytest.mark.parametrize("version", [2, 99])
def test_file_format(changed, version):
    changed.ir_version = version
    refused(changed, f"IR version {version}", error=UnsupportedModelError)


@pytest.mark.parametrize("version", [1, 6, 99])
def test_operator_set(changed, version):
    changed.opset_import[0].version = version
    refused(changed, f"operator set {version}", error=UnsupportedModelError)


def test_no_operator_set(changed):
    del changed.opset_import[:]
    refused(changed, "does not say which version")


def test_operator_set_by_its_long_name(changed):
    expected = load_model(changed).mod.script()
    changed.opset_import[0].domain = "ai.onnx"
    for node in list(changed.graph.node)[::2]:
        node.domain = "ai.onnx"
    assert load_model(changed).mod.script() == expected


def test_undefined_input_of_a_node(changed):
    changed.graph.node[5].input[0] = "nothing"
    refused(changed, "not valid", "'nothing'")


def test_undefined_output(changed):
    changed.graph.output[0].name = "nothing"
    refused(changed, "not valid", "'nothing'")


def test_nodes_out_of_order(changed):
    nodes = list(changed.graph.node)
    del changed.graph.node[:]
    changed.graph.node.extend(nodes[::-1])
    refused(changed, "topologically sorted")


def test_shapes_that_do_not_fit(changed):
    weight = next(t for t in changed.graph.initializer if t.name == "classifier.weight")
    weight.dims[:] = weight.dims[::-1]
    refused(changed, "classifier/Gemm")


def test_two_weights_of_one_name(changed):
    changed.graph.initializer.append(changed.graph.initializer[0])
    refused(changed, "two initializers", "stem.weight")


def test_weight_with_too_few_values(changed):
    changed.graph.initializer[0].raw_data = b"abc"
    refused(changed, "stem.weight", "3 bytes, expected")


def test_weight_with_negative_shape(changed):
    changed.graph.initializer[0].dims[0] = -1
    refused(changed, "stem.weight", "negative")


def test_weights_of_unsupported_types(changed):
    changed.graph.initializer[0].data_type = TensorProto.BFLOAT16
    refused(changed, "stem.weight", "BFLOAT16", error=UnsupportedModelError)


def test_sparse_weight(changed):
    changed.graph.sparse_initializer.add().values.name = "thin"
    refused(changed, "sparse", "'thin'", error=UnsupportedModelError)


def test_nan_weights_are_fine(changed):
    weight = changed.graph.initializer[0]
    weight.raw_data = np.full(list(weight.dims), np.nan, np.float32).tobytes()
    assert load_model(changed).outputs[0].shape == (1, 4)


@pytest.mark.parametrize(
    ("elem_type", "word"), [(TensorProto.STRING, "STRING"), (TensorProto.BFLOAT16, "BFLOAT16")]
)
def test_inputs_of_unsupported_types(changed, elem_type, word):
    changed.graph.input[0].type.tensor_type.elem_type = elem_type
    refused(changed, "'input'", word, error=UnsupportedModelError)


def test_sequence_as_input(changed):
    tensor = helper.make_tensor_type_proto(TensorProto.FLOAT, None)
    changed.graph.input[0].type.CopyFrom(helper.make_sequence_type_proto(tensor))
    refused(changed, "is a sequence", error=UnsupportedModelError)


def test_input_without_a_type(changed):
    changed.graph.input[0].ClearField("type")
    refused(changed, "'input' has no type")


def test_large_tensors_are_left_in_the_file(model, tmp_path):
    """Only a fraction of the file is in memory, with the locations of the rest."""
    path = tmp_path / "net.onnx"
    onnx.save(model, path)
    source = open_model(path, large_weight_bytes=5000)
    size = len(source.model.SerializeToString())
    assert size < path.stat().st_size / 4
    large = [t for t in source.model.graph.initializer if t.external_data]
    assert large
    content = path.read_bytes()
    by_name = {t.name: t for t in model.graph.initializer}
    for tensor in large:
        place = {entry.key: entry.value for entry in tensor.external_data}
        begin, length = int(place["offset"]), int(place["length"])
        assert content[begin : begin + length] == by_name[tensor.name].raw_data
        assert tensor.dims == by_name[tensor.name].dims
