"""Standalone libraries of several shapes: Python, C, C++ and Java, and their refusals."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from onnx import helper
from support import open_networks
from support.commands import run
from support.drivers import for_programs, run_program
from support.mock_library import c_program, cpp_program, java_classes, run_java
from support.open_networks import with_open_extents
from support.operators import build
from support.small_plans import sealed

import tvmflow
from tvmflow.errors import InputError, TvmflowError
from tvmflow.ir.tensors import TensorInfo
from tvmflow.module.standalone.format import Section
from tvmflow.module.standalone.read import find_plan
from tvmflow.verify.tolerance import assert_close, table_for

pytestmark = [pytest.mark.opencl, pytest.mark.cross]

SIZES = ((12, 12), (9, 31))
SEVERAL = {"shapes": {"x": ("1..2", 3, "?", "?")}, "at": SIZES}
SHAPES = [(batch, 3, *size) for size in SIZES for batch in (1, 2)]
STANDALONE = {"target": "opencl", "device": "adreno", "format": "standalone"}
CONFIGURATIONS = {
    "buffers": {"storage": "buffer"},
    "textures": {"storage": "texture"},
    "fp16": {"dtype": "fp16", "accumulate": "fp32"},
    "kept": {"keep_layout": {"x": "texture"}},
}
NEAREST = "not [1, 3, 10, 31]; the nearest is [1, 3, 9, 31]."


@pytest.fixture(scope="module")
def network():
    return open_networks.classifier()


@pytest.fixture(scope="module")
def library(network, tmp_path_factory):
    path = tmp_path_factory.mktemp("library") / "libshapes.so"
    options = {**STANDALONE, **SEVERAL, "file_name": path.name}
    with closing(tvmflow.compile(network, **options)) as module:
        return module.save(path)


@pytest.fixture(scope="module")
def first_scores(network):
    """Return the first score of each shape, for an image of ones."""
    return [
        float(open_networks.reference(network, {"x": np.ones(shape, np.float32)})[0][0, 0])
        for shape in SHAPES
    ]


@pytest.mark.onnxruntime
@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_every_shape_is_right_in_python(name, network):
    with tvmflow.compile(network, **STANDALONE, **SEVERAL, **CONFIGURATIONS[name]) as module:
        test = module.self_test()
        assert (test.compared, test.tolerance_used < 1) == (30, True)
        for seed, shape in enumerate([*SHAPES, *SHAPES[::-1], (5, 3, 9, 31)]):
            x = open_networks.values(shape, seed)
            (expected,) = open_networks.reference(network, {"x": x})
            assert_close(module(x)[0], expected, table=table_for(module.metadata))
        x = open_networks.values((1, 3, 12, 12))
        (expected,) = open_networks.reference(network, {"x": x})
        found = module.run([np.concatenate([x, x, x])], pad_batch=True)[0]
        assert_close(found[2:], expected, table=table_for(module.metadata))
        with pytest.raises(InputError, match=r"the nearest is x \[1, 3, 9, 31\]"):
            module(open_networks.values((1, 3, 10, 31)))
        times = module.variants[3].profile({"x": open_networks.values(SHAPES[3])}, runs=1)
        assert len(times) > 2


def test_one_set_of_weights_and_memory_of_the_largest(library, network):
    plan = find_plan(library)
    assert plan is not None
    assert plan.shapes == 4
    largest = {"shapes": {"x": SHAPES[3]}}
    with closing(tvmflow.compile(network, **STANDALONE, **largest)) as alone:
        own = find_plan(alone.path)
    assert own is not None
    assert own.shapes == 1
    sizes = [int(p.header["weight_bytes"]) for p in (plan, own)]
    assert sizes[0] == sizes[1]
    # Images of other proportions do not fit into each other in all directions.
    assert plan.metadata["memory_bytes"] <= 1.5 * own.metadata["memory_bytes"]


PROGRAM = r"""
#include <stdio.h>
#include "tvmflow.h"

static float image[2 * 3 * 9 * 31], scores[10];

int main(void) {
  const int64_t other[4] = {1, 3, 10, 31};
  tvmflow_model* m;
  tvmflow_test test;
  tvmflow_tensor in, out;
  uint32_t i;
  unsigned j;
  if (tvmflow_create(NULL, &m) || tvmflow_self_test(m, &test)) return puts(tvmflow_message(m)), 1;
  printf("%u %d\n", (unsigned)test.compared, test.tolerance_used < 1);
  for (j = 0; j < sizeof(image) / sizeof(image[0]); ++j) image[j] = 1;
  for (i = tvmflow_shape_count(m); i-- > 0;) {
    if (tvmflow_choose_shape(m, i) || tvmflow_input(m, 0, &in) || tvmflow_choose_shape(m, 0) ||
        tvmflow_set_shape(m, 0, in.shape, in.dimensions) || tvmflow_output(m, 0, &out) ||
        tvmflow_set_input(m, 0, TVMFLOW_FLOAT32, image, in.bytes) || tvmflow_run(m) ||
        tvmflow_get_output(m, 0, TVMFLOW_FLOAT32, scores, out.bytes))
      return puts(tvmflow_message(m)), 1;
    printf("%u %.9g\n", tvmflow_shape(m), (double)scores[0]);
  }
  printf("%d %s\n", tvmflow_set_shape(m, 0, other, 4), tvmflow_message(m));
  printf("%d %s\n", tvmflow_set_shape(m, 1, other, 4), tvmflow_message(m));
  printf("%d %s\n", tvmflow_set_shape(m, 0, other, 9), tvmflow_message(m));
  printf("%d %s\n", tvmflow_set_shape(m, 0, NULL, 4), tvmflow_message(m));
  printf("%d %s\n", tvmflow_set_shape(m, 0, other, 3), tvmflow_message(m));
  printf("%d %s\n", tvmflow_choose_shape(m, 4), tvmflow_message(m));
  if (tvmflow_start(m)) return 1;
  printf("%d %s\n", tvmflow_choose_shape(m, 1), tvmflow_message(m));
  printf("%d\n", (int)tvmflow_set_input(m, 0, TVMFLOW_FLOAT32, image, 4));
  tvmflow_destroy(m);
  return 0;
}
"""

CPP_PROGRAM = r"""
#include <iostream>
#include "tvmflow.hpp"

int main(int, char** arguments) {
  tvmflow::Model model{std::string(arguments[1])};
  for (uint32_t i = model.shape_count(); i-- > 0;) {
    model.ChooseShape(i);
    const tvmflow_tensor info = model.InputInfo(0);
    model.ChooseShape(0);
    model.SetShape(0, std::vector<int64_t>(info.shape, info.shape + info.dimensions));
    model.SetInput(0, std::vector<float>(info.bytes / sizeof(float), 1.0f));
    model.Run();
    std::cout.precision(9);
    std::cout << model.shape() << " " << model.Output<float>(0)[0] << "\n";
  }
  try {
    model.SetShape(0, {1, 3, 10, 31});
  } catch (const tvmflow::Error& error) {
    std::cout << error.status() << " " << error.what() << "\n";
  }
}
"""


def check_scores(lines, expected):
    found = [line.split() for line in lines]
    assert [int(number) for number, _ in found] == [3, 2, 1, 0]
    np.testing.assert_allclose([float(v) for _, v in found], expected[::-1], rtol=1e-4, atol=1e-5)


@pytest.mark.onnxruntime
def test_c(library, first_scores, tmp_path):
    (tmp_path / "main.c").write_text(PROGRAM)
    program = c_program(tmp_path / "run", tmp_path / "main.c", library)
    lines = run_program(program).splitlines()
    assert lines[0] == "30 1"
    check_scores(lines[1:5], first_scores)
    assert lines[5].startswith("1 Input 'x': the network has 4 shapes, but " + NEAREST)
    assert lines[6].startswith("1 There is no input 1: the network has 1")
    assert lines[7].startswith("1 Setting the shape of input 0: expected up to 8 extents, got 9")
    assert lines[8].startswith("1 Setting the shape of input 0: expected up to 8 extents, got 4 at")
    assert "but not [1, 3, 10]; the nearest is [1, 3, 12, 12]" in lines[9]
    assert lines[10].startswith("1 There is no shape 4: the network has 4")
    assert lines[11].startswith("8 Choosing a shape: a run was started and not waited for")
    assert lines[12] == "8"


TWO_INPUTS = r"""
#include <stdio.h>
#include "tvmflow.h"

static float x[2] = {1, 2}, z[3] = {3, 4, 5}, sum;

int main(void) {
  const int64_t two = 2, three = 3;
  tvmflow_model* m;
  tvmflow_tensor a, b;
  if (tvmflow_create(NULL, &m) || tvmflow_set_shape(m, 1, &three, 1) ||
      tvmflow_set_shape(m, 0, &two, 1) || tvmflow_input(m, 0, &a) || tvmflow_input(m, 1, &b) ||
      tvmflow_set_input(m, 0, TVMFLOW_FLOAT32, x, sizeof(x)) ||
      tvmflow_set_input(m, 1, TVMFLOW_FLOAT32, z, sizeof(z)) || tvmflow_run(m) ||
      tvmflow_get_output(m, 0, TVMFLOW_FLOAT32, &sum, sizeof(sum)))
    return puts(tvmflow_message(m)), 1;
  printf("%d %d %g\n", (int)a.shape[0], (int)b.shape[0], (double)sum);
  if (tvmflow_choose_shape(m, 0) || tvmflow_warm_up(m) ||
      tvmflow_get_output(m, 0, TVMFLOW_FLOAT32, &sum, sizeof(sum)))
    return puts(tvmflow_message(m)), 1;
  printf("%g\n", (double)sum);
  tvmflow_destroy(m);
  return 0;
}
"""


def test_a_shape_that_is_set_keeps_those_of_other_inputs(tmp_path):
    """Inputs of an earlier shape are no longer set: warming up runs with zeros."""
    sums = [helper.make_node("ReduceSum", [name], [f"s{name}"], keepdims=0) for name in "xz"]
    nodes = [*sums, helper.make_node("Add", ["sx", "sz"], ["y"])]
    network = with_open_extents(build(nodes, {"x": (2,), "z": (3,)}, ["y"]), "N")
    network.graph.input[1].type.tensor_type.shape.dim[0].dim_param = "M"
    library = tmp_path / "libsums.so"
    sizes = {"x": ((1,), (2,), (1,), (2,)), "z": ((1,), (1,), (3,), (3,))}
    several = {"shapes": {"x": ("?",), "z": ("?",)}, "at": sizes, "file_name": library.name}
    with closing(tvmflow.compile(network, **STANDALONE, **several)) as module:
        module.save(library)
    (tmp_path / "main.c").write_text(TWO_INPUTS)
    program = c_program(tmp_path / "run", tmp_path / "main.c", library)
    assert run_program(program).splitlines() == ["2 3 15", "0"]


@pytest.mark.onnxruntime
def test_cpp(library, first_scores, tmp_path):
    (tmp_path / "main.cpp").write_text(CPP_PROGRAM)
    program = cpp_program(tmp_path / "run", tmp_path / "main.cpp")
    lines = run_program(program, library).splitlines()
    check_scores(lines[:4], first_scores)
    assert lines[4].startswith("1 ")
    assert NEAREST in lines[4]


@pytest.mark.java
@pytest.mark.onnxruntime
def test_java(library, first_scores, tmp_path):
    classes = java_classes(tmp_path / "classes", Path(__file__).with_name("RunShapes.java"))
    lines = run_java(classes, "RunShapes", library, tmp_path).splitlines()
    assert lines[0].startswith("passed: "), lines
    check_scores(lines[1:5], first_scores)
    assert NEAREST in lines[5]


@pytest.mark.parametrize(
    ("field", "value"), [("first_launch", 1), ("launches", 0), ("launches", 1 << 31)]
)
def test_shapes_that_are_not_those_of_the_launches(library, field, value, tmp_path):
    """Python and the library's runtime refuse them despite a right digest."""
    content = bytearray(library.read_bytes())
    plan = find_plan(library)
    assert plan is not None
    start = bytes(content).index(plan.content)
    offset, count = plan.header["section"][Section.SHAPES].tolist()
    records = np.frombuffer(plan.content, plan[Section.SHAPES].dtype, count, offset).copy()
    records[field][1] = value
    made = bytearray(plan.content)
    made[offset : offset + records.nbytes] = records.tobytes()
    content[start : start + len(made)] = sealed(bytes(made))
    damaged = tmp_path / library.name
    damaged.write_bytes(content)
    with pytest.raises(TvmflowError, match="shapes"):
        tvmflow.load(damaged)
    (tmp_path / "main.c").write_text(PROGRAM)
    program = c_program(tmp_path / "run", tmp_path / "main.c", damaged)
    process = run(program, status=1, **for_programs())
    assert "its shapes are wrong" in process.stdout


def test_inputs_are_told_by_shape(library):
    with closing(tvmflow.load(library)) as module:
        assert [v.inputs[0] for v in module.variants] == [
            TensorInfo("x", shape, "float32") for shape in SHAPES
        ]
        assert module.metadata["batch"]["proven"]
