"""Sessions give the results of ONNX Runtime's, and compile each shape once."""

from __future__ import annotations

import logging
import subprocess
import sys
import threading

import numpy as np
import onnx
import onnx.parser
import onnxruntime
import pytest

import tvmflow
from tvmflow.errors import TargetError, UnknownOptionError
from tvmflow.onnxruntime import InvalidArgument, InvalidGraph, InvalidProtobuf, NoSuchFile
from tvmflow.onnxruntime import NotImplemented as NotSupported
from tvmflow.verify.tolerance import assert_close

LLVM = ["tvmflow-llvm"]


def image(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def check(session, content, x):
    """Compare a session's outputs with ONNX Runtime's."""
    expected = onnxruntime.InferenceSession(content).run(None, {"x": x})
    for got, wanted in zip(session.run(None, {"x": x}), expected, strict=True):
        assert_close(got, wanted)


def test_the_interface_is_that_of_onnx_runtime(content):
    ours = tvmflow.InferenceSession(content, providers=LLVM)
    theirs = onnxruntime.InferenceSession(content)
    for each in ("get_inputs", "get_outputs", "get_overridable_initializers"):
        found, expected = getattr(ours, each)(), getattr(theirs, each)()
        assert [(a.name, a.shape, a.type) for a in found] == [
            (a.name, a.shape, a.type) for a in expected
        ]
    names = [
        "producer_name",
        "graph_name",
        "domain",
        "description",
        "version",
        "custom_metadata_map",
    ]
    meta, wanted = ours.get_modelmeta(), theirs.get_modelmeta()
    assert [getattr(meta, n) for n in names] == [getattr(wanted, n) for n in names]
    assert ours.get_providers() == ["tvmflow-llvm", "CPUExecutionProvider"]
    assert ours.get_provider_options() == {"tvmflow-llvm": {}}


def test_each_shape_is_compiled_once(content, compiled):
    session = tvmflow.InferenceSession(content, providers=LLVM)
    assert compiled == []
    for width in (10, 13, 10):
        check(session, content, image(1, 3, 8, width))
    assert compiled == [((1, 3, 8, 10),), ((1, 3, 8, 13),)]


def test_outputs_are_those_asked_for(content):
    session = tvmflow.InferenceSession(content, providers=LLVM)
    x = image(1, 3, 8, 10)
    y, mean = session.run(None, {"x": x})
    (only,) = session.run(["mean"], {"x": x})
    np.testing.assert_array_equal(only, mean)
    again = session.run(["mean", "y"], {"x": x})
    np.testing.assert_array_equal(again[1], y)
    with pytest.raises(InvalidArgument, match=r"(?s)'meen'.*Did you mean 'mean'"):
        session.run(["meen"], {"x": x})


def test_a_static_model_is_compiled_at_creation(content, compiled):
    model = onnx.load_from_string(content)
    dims = model.graph.input[0].type.tensor_type.shape.dim
    dims[0].dim_value, dims[3].dim_value = 1, 10
    tvmflow.InferenceSession(model.SerializeToString(), providers=LLVM)
    assert compiled == [((1, 3, 8, 10),)]


@pytest.mark.parametrize("given", [(1, 3, 8, 10), {"x": (1, 3, 8, 10)}])
def test_shapes_are_compiled_before_the_first_run(content, compiled, given):
    session = tvmflow.InferenceSession(content, providers=LLVM, precompile=[given])
    assert compiled == [((1, 3, 8, 10),)]
    check(session, content, image(1, 3, 8, 10))
    assert len(compiled) == 1


def test_the_model_may_go_away(content, tmp_path):
    path = tmp_path / "model.onnx"
    path.write_bytes(content)
    session = tvmflow.InferenceSession(str(path), providers=LLVM)
    path.unlink()
    check(session, content, image(1, 3, 8, 10))


def test_external_data_is_part_of_the_key(content, tmp_path, compiled):
    path = tmp_path / "model.onnx"
    for factor in (1, 2):
        model = onnx.load_from_string(content)
        weight = onnx.numpy_helper.to_array(model.graph.initializer[0]) * np.float32(factor)
        model.graph.initializer[0].CopyFrom(onnx.numpy_helper.from_array(weight, "w"))
        changed = model.SerializeToString()
        onnx.save(model, path, save_as_external_data=True, location="w.bin", size_threshold=0)
        check(tvmflow.InferenceSession(path, providers=LLVM), changed, image(1, 3, 8, 10))
    assert len(compiled) == 2


def test_a_batch_runs_in_compiled_parts(content, compiled):
    session = tvmflow.InferenceSession(content, providers=LLVM)
    for batch in (2, 1, 5, 4):
        check(session, content, image(batch, 3, 8, 10, seed=batch))
    assert compiled == [((2, 3, 8, 10),), ((1, 3, 8, 10),)]
    # More than four parts: it is worth a compilation.
    check(session, content, image(9, 3, 8, 10))
    assert compiled[2:] == [((9, 3, 8, 10),)]
    # Another process knows the sizes from the disk.
    check(tvmflow.InferenceSession(content, providers=LLVM), content, image(5, 3, 8, 10))
    assert len(compiled) == 3


def test_samples_that_depend_on_each_other_are_not_parted(compiled):
    content = onnx.parser.parse_model("""
        <ir_version: 8, opset_import: ["" : 17]>
        centred (float[N, 6] x) => (float[N, 6] y)
        { m = ReduceMean<axes=[0]>(x)
          y = Sub(x, m) }
        """).SerializeToString()
    session = tvmflow.InferenceSession(content, providers=LLVM)
    for batch in (1, 2, 4):
        x = image(batch, 6)
        (expected,) = onnxruntime.InferenceSession(content).run(None, {"x": x})
        assert_close(session.run(None, {"x": x})[0], expected)
    assert len(compiled) == 3


def test_values_that_choose_a_branch_are_compiled_in(compiled):
    content = onnx.parser.parse_model("""
        <ir_version: 8, opset_import: ["" : 17]>
        resampled (float[1, N] x, int64 rate) => (float[1, M] y)
        { slow = Constant<value = int64 {8000}>()
          is_slow = Equal(rate, slow)
          y = If(is_slow) <
            then_branch = first () => (float[1, M] a)
            { start = Constant<value = int64[1] {0}>()
              end = Constant<value = int64[1] {3}>()
              axis = Constant<value = int64[1] {1}>()
              a = Slice(x, start, end, axis) },
            else_branch = second () => (float[1, N] b)
            { b = Neg(x) }
          > }
        """).SerializeToString()
    session = tvmflow.InferenceSession(content, providers=LLVM)
    expected = onnxruntime.InferenceSession(content)
    for rate in (16000, 8000, 16000):
        feed = {"x": image(1, 7), "rate": np.array(rate)}
        assert_close(session.run(None, feed)[0], expected.run(None, feed)[0])


def test_padding_to_buckets_crops_the_outputs(content, compiled):
    session = tvmflow.InferenceSession(
        content, providers=LLVM, buckets={"x": [(2, 3, 8, 20), (2, 3, 8, 12)]}, pad={"x": 0}
    )
    x = image(1, 3, 8, 9)
    y, mean = session.run(None, {"x": x})
    (expected, _) = onnxruntime.InferenceSession(content).run(None, {"x": x})
    # A convolution's own border is zeros, too; the mean is over more elements.
    assert_close(y, expected)
    assert mean.shape == (1, 5)
    session.run(None, {"x": image(2, 3, 8, 13)})
    session.run(None, {"x": image(3, 3, 8, 13)})  # No bucket holds it.
    assert compiled == [((2, 3, 8, 12),), ((2, 3, 8, 20),), ((3, 3, 8, 13),)]


def test_padding_may_repeat_the_edge(content):
    buckets = {"x": [(1, 3, 8, 16)]}
    session = tvmflow.InferenceSession(content, providers=LLVM, buckets=buckets, pad={"x": "edge"})
    x = image(1, 3, 8, 10)
    (mean,) = session.run(["mean"], {"x": x})
    padded = np.concatenate([x, *[x[..., -1:]] * 6], axis=3)
    (_, expected) = onnxruntime.InferenceSession(content).run(None, {"x": padded})
    assert_close(mean, expected)


def test_onnx_runtime_answers_while_a_shape_is_compiled(content, monkeypatch, compiled):
    from tvmflow.onnxruntime.modules import Modules

    gate, compile_one = threading.Event(), Modules._compile

    def slow(self, shapes):
        assert gate.wait(60)
        return compile_one(self, shapes)

    monkeypatch.setattr(Modules, "_compile", slow)
    session = tvmflow.InferenceSession(content, providers=LLVM, while_compiling="onnxruntime")
    x = image(1, 3, 8, 10)
    check(session, content, x)
    check(session, content, x)
    assert compiled == []
    threads = [t for t in threading.enumerate() if t.name == "tvmflow-compile"]
    assert len(threads) == 1
    gate.set()
    threads[0].join()
    assert len(compiled) == 1
    (runner,) = session._runners.values()
    assert runner != session._by_reference
    check(session, content, x)


def test_many_shapes_are_reported(content, caplog):
    session = tvmflow.InferenceSession(content, providers=LLVM)
    with caplog.at_level(logging.WARNING):
        for width in range(4, 13):
            session.run(None, {"x": image(1, 3, 8, width)})
    (text,) = [r.getMessage() for r in caplog.records if "shapes of" in r.getMessage()]
    assert "axis 3 of 'x' (8 values from 4 to 11)" in text
    assert "buckets" in text


def test_least_recently_used_shapes_are_closed(content, compiled):
    session = tvmflow.InferenceSession(content, providers=LLVM, keep=2)
    for width in (4, 5, 4, 6):
        session.run(None, {"x": image(1, 3, 8, width)})
    assert [key[0][3] for key in session._runners] == [4, 6]
    (modules,) = session._modules.values()
    assert sorted(key[0][3] for key in modules._live) == [4, 6]
    check(session, content, image(1, 3, 8, 5))
    assert len(compiled) == 3


def test_threads_share_a_session(content, compiled):
    session = tvmflow.InferenceSession(content, providers=LLVM)
    expected = onnxruntime.InferenceSession(content)
    wrong = []

    def work(seed):
        for n in range(6):
            x = image(1, 3, 8, 6 + (n + seed) % 3, seed=seed)
            got = session.run(["y"], {"x": x})[0]
            if not np.allclose(got, expected.run(["y"], {"x": x})[0], atol=1e-4):
                wrong.append((seed, n))

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert len(compiled) == 3


def test_bindings_hold_inputs_and_outputs(content):
    session = tvmflow.InferenceSession(content, providers=LLVM)
    x, mean = image(1, 3, 8, 10), np.zeros((1, 5), np.float32)
    y, expected = session.run(None, {"x": x})
    binding = session.io_binding()
    binding.bind_cpu_input("x", x)
    binding.bind_output("y")
    binding.bind_ortvalue_output("mean", tvmflow.onnxruntime.OrtValue.ortvalue_from_numpy(mean))
    session.run_with_iobinding(binding)
    np.testing.assert_array_equal(binding.copy_outputs_to_cpu()[0], y)
    np.testing.assert_array_equal(mean, expected)
    assert binding.get_outputs()[1].shape() == [1, 5]
    binding.bind_ortvalue_input("x", tvmflow.onnxruntime.OrtValue(x * 2))
    session.run_with_iobinding(binding)
    assert not np.array_equal(mean, expected)


def test_providers_may_change(content):
    session = tvmflow.InferenceSession(content, providers=LLVM)
    check(session, content, image(1, 3, 8, 10))
    session.set_providers([("tvmflow-llvm", {"check_indices": True})])
    assert session.get_provider_options() == {"tvmflow-llvm": {"check_indices": True}}
    (mean,) = session.run(["mean"], {"x": image(1, 3, 8, 10)})
    assert mean.shape == (1, 5)


@pytest.mark.opencl
def test_a_session_on_opencl(content):
    session = tvmflow.InferenceSession(content, providers=["tvmflow-opencl"])
    for shape in ((1, 3, 8, 10), (3, 3, 8, 11)):
        check(session, content, image(*shape))


@pytest.mark.parametrize(
    ("feed", "sentence"),
    [
        ({"image": image(1, 3, 8, 10)}, r"'image', but the model has 'x'"),
        ({}, "lacks 'x'"),
        ({"x": image(1, 3, 8, 10), "xx": image(1)}, r"'xx'.*Did you mean 'x'"),
        ({"x": image(3, 8, 10)}, r"shape \[3, 8, 10\].*\['N', 3, 8, 'W'\]"),
        ({"x": image(1, 4, 8, 10)}, r"shape \[1, 4, 8, 10\]"),
        ({"x": image(1, 3, 8, 0)}, r"shape \[1, 3, 8, 0\].*with elements"),
        ({"x": image(1, 3, 8, 10).astype(np.float64)}, r"float64.*tensor\(float\).*astype"),
        ({"x": "text"}, "str|U4"),
    ],
)
@pytest.mark.parametrize("again", [False, True])
def test_feeds_that_do_not_fit_are_refused(content, feed, sentence, again):
    session = tvmflow.InferenceSession(content, providers=LLVM)
    if again:
        session.run(None, {"x": image(1, 3, 8, 10)})
    with pytest.raises(InvalidArgument, match=f"(?s){sentence}"):
        session.run(None, feed)
    check(session, content, image(1, 3, 8, 10))


def test_lists_are_accepted(content):
    session = tvmflow.InferenceSession(content, providers=LLVM)
    x = image(1, 3, 8, 10)
    np.testing.assert_array_equal(
        session.run(["y"], {"x": x.tolist()})[0], session.run(["y"], {"x": x})[0]
    )


@pytest.mark.parametrize(
    ("arguments", "kind", "sentence"),
    [
        ({"providers": ["tvmflow-lvm"]}, TargetError, "no provider 'tvmflow-lvm'.*tvmflow-llvm"),
        ({"providers": [("tvmflow-llvm", {"dtyp": "fp16"})]}, UnknownOptionError, "dtype"),
        ({"providers": [("tvmflow-llvm", {"shapes": {}})]}, TargetError, "precompile"),
        ({"providers": LLVM, "provider_options": [{}, {}]}, TargetError, "options of 2"),
        ({"buckets": {"z": [(1,)]}}, InvalidArgument, "input 'z'.*'x'"),
        ({"buckets": {}, "pad": {"x": "mirror"}}, InvalidArgument, "'mirror'.*edge"),
        ({"while_compiling": "never"}, InvalidArgument, "'never'"),
        ({"precompile": [(1, 3)]}, InvalidGraph, "'x'"),
    ],
)
def test_arguments_that_make_no_sense_are_refused(content, arguments, kind, sentence):
    with pytest.raises(kind, match=f"(?s){sentence}"):
        tvmflow.InferenceSession(content, **arguments)


def test_models_that_cannot_be_read_are_refused(tmp_path):
    with pytest.raises(NoSuchFile, match="no such file"):
        tvmflow.InferenceSession(tmp_path / "none.onnx")
    with pytest.raises(InvalidProtobuf, match="not an ONNX model"):
        tvmflow.InferenceSession(b"\x00\x01 something else")


def test_a_model_that_is_refused_has_the_sentence_of_compile():
    model = onnx.parser.parse_model("""
        <ir_version: 8, opset_import: ["" : 17, "elsewhere" : 1]>
        odd (float[2] x) => (float[2] y) { y = elsewhere.Strange(x) }
        """)
    with pytest.raises(NotSupported) as ours:
        tvmflow.InferenceSession(model, providers=LLVM)
    with pytest.raises(tvmflow.errors.UnsupportedModelError) as theirs:
        tvmflow.compile(model, target="llvm")
    assert str(ours.value) == str(theirs.value)


def test_foreign_providers_are_skipped(content, caplog):
    with caplog.at_level(logging.WARNING):
        session = tvmflow.InferenceSession(
            content, providers=["TensorrtExecutionProvider", "CPUExecutionProvider"]
        )
    assert session.get_providers()[0] == "tvmflow-llvm"
    assert "TensorrtExecutionProvider has no counterpart" in caplog.text


def test_onnx_runtime_is_not_imported(content, tmp_path):
    (tmp_path / "model.onnx").write_bytes(content)
    program = (
        "import sys, numpy as np\n"
        "import tvmflow.onnxruntime as onnxruntime\n"
        "session = onnxruntime.InferenceSession(sys.argv[1])\n"
        "session.run(None, {'x': np.ones((1, 3, 8, 10), np.float32)})\n"
        "print('onnxruntime' in sys.modules, hasattr(onnxruntime, 'SessionOptions'))\n"
    )
    command = [sys.executable, "-c", program, tmp_path / "model.onnx"]
    found = subprocess.run(command, check=True, capture_output=True, text=True)
    assert found.stdout.split() == ["False", "True"]
