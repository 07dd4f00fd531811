"""Results whose size each run decides, as read by programs in C and C++."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from onnx import parser
from support.drivers import run_program
from support.mock_library import c_program, cpp_program, java_classes, run_java

import tvmflow

pytestmark = [pytest.mark.opencl, pytest.mark.cross]

MODEL = """<ir_version: 8, opset_import: ["" : 17]>
positives (float[7] x) => (y) {
    above = Relu (x)
    places = NonZero (above)
    axis = Constant <value_ints = [0]> ()
    at = Squeeze (places, axis)
    y = Gather (x, at)
}"""
#: Fewer rows than the bound, as many, more, and none.
FEEDS = np.float32([
    [-1, 2, 0, 3, -4, 0, 0], [1, 2, 3, 4, -1, 0, 0], [1, 2, 3, 4, 5, 6, -7], [-1] * 7
])  # fmt: skip

PROGRAM = r"""
#include <inttypes.h>
#include <stdio.h>
#include "tvmflow.h"

int main(int argc, char** arguments) {
  FILE* file = argc > 1 ? fopen(arguments[1], "rb") : NULL;
  tvmflow_model* m;
  tvmflow_tensor rows, number, all;
  float x[7], y[4];
  int64_t count, whole, i;
  if (tvmflow_create(NULL, &m) || tvmflow_output(m, 0, &rows) || tvmflow_output(m, 1, &number) ||
      tvmflow_output(m, 2, &all))
    return puts(tvmflow_message(m)), 1;
  printf("%s %d, %s, %s\n", rows.name, (int)rows.shape[0], number.name, all.name);
  while (file && fread(x, sizeof(x), 1, file) == 1) {
    if (tvmflow_set_input(m, 0, TVMFLOW_FLOAT32, x, sizeof(x)) || tvmflow_run(m) ||
        tvmflow_get_output(m, 0, TVMFLOW_FLOAT32, y, sizeof(y)) ||
        tvmflow_get_output(m, 1, TVMFLOW_INT64, &count, sizeof(count)) ||
        tvmflow_get_output(m, 2, TVMFLOW_INT64, &whole, sizeof(whole)))
      return puts(tvmflow_message(m)), 1;
    printf("%" PRId64 ":", whole);
    for (i = 0; i < count; ++i) printf(" %g", (double)y[i]);
    puts("");
  }
  if (file) fclose(file);
  tvmflow_destroy(m);
  return 0;
}
"""

CPP_PROGRAM = r"""
#include <fstream>
#include <iostream>
#include "tvmflow.hpp"

int main(int, char** arguments) {
  tvmflow::Model model{std::string(arguments[1])};
  std::cout << model.OutputInfo(0).name << " " << model.OutputInfo(0).shape[0] << ", "
            << model.OutputInfo(1).name << ", " << model.OutputInfo(2).name << "\n";
  std::ifstream file(arguments[2], std::ios::binary);
  std::vector<float> x(7);
  while (file.read(reinterpret_cast<char*>(x.data()), 7 * sizeof(float))) {
    model.SetInput(0, x);
    model.Run();
    const std::vector<float> y = model.Output<float>(0);
    const int64_t count = model.Output<int64_t>(1)[0];
    std::cout << model.Output<int64_t>(2)[0] << ":";
    for (int64_t i = 0; i < count; ++i) std::cout << " " << y[i];
    std::cout << "\n";
  }
}
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    path = tmp_path_factory.mktemp("library") / "libpositives.so"
    options = {"target": "opencl", "format": "standalone", "file_name": path.name}
    with closing(
        tvmflow.compile(parser.parse_model(MODEL), **options, bounds={"places": 4})
    ) as module:
        return module.save(path)


def check(text):
    first, *lines = text.splitlines()
    assert first == "y 4, y.count, places.count"
    for line, x in zip(lines, FEEDS, strict=True):
        count, _, values = line.partition(":")
        assert int(count) == (x > 0).sum()
        assert [float(v) for v in values.split()] == [*x[x > 0]][:4]


@pytest.fixture(scope="module")
def feeds(library):
    path = library.with_name("feeds")
    FEEDS.tofile(path)
    return path


def test_c(library, feeds, tmp_path):
    (tmp_path / "main.c").write_text(PROGRAM)
    check(run_program(c_program(tmp_path / "run", tmp_path / "main.c", library), feeds))


@pytest.mark.java
def test_java(library, feeds, tmp_path):
    classes = java_classes(tmp_path / "classes", Path(__file__).with_name("RunCounts.java"))
    check(run_java(classes, "RunCounts", library, feeds))


def test_cpp(library, feeds, tmp_path):
    (tmp_path / "main.cpp").write_text(CPP_PROGRAM)
    check(run_program(cpp_program(tmp_path / "run", tmp_path / "main.cpp"), library, feeds))
