"""Work-groups and tiles that extend past a map: no access is out of bounds."""

from __future__ import annotations

import re

import pytest
from onnx import helper
from support.checks import check_outputs, dumped_source
from support.first_stages import chosen_schedules
from support.operators import build, feeds_for, random

import tvmflow

pytestmark = pytest.mark.opencl

#: Weights and attributes of layers over two maps of 11 x 13 with 9 channels.
LAYERS = {
    "pointwise": ((20, 9, 1, 1), {}),
    "3x3": ((20, 9, 3, 3), {"pads": [1, 1, 0, 1], "dilations": [2, 1]}),
    "depthwise": ((9, 1, 3, 3), {"pads": [1] * 4, "group": 9}),
    "grouped": ((18, 3, 3, 2), {"strides": [1, 2], "group": 3}),
}
#: Powers of 2 that divide no axis, so that most groups extend past two axes or three.
KNOBS = {"tile_h": 2, "tile_w": 3, "group_o": 4, "group_h": 4, "group_w": 4}


def run(operator, weight, attributes, knobs, shape=(2, 9, 11, 13), folder=None, run_module=None):
    """Compile a layer for textures, with changed knobs, and compare it with ONNX Runtime."""
    node = helper.make_node(operator, ["x", "w"], ["y"], **attributes)
    model = build([node], {"x": shape}, ["y"], {"w": random(weight, 0.2)})
    options = {"target": "opencl", "device": "adreno", "storage": "texture"}
    given = {
        name: {**choice["knobs"], **knobs}
        for name, choice in chosen_schedules(model, **options).items()
        if choice["family"] in ("conv2d", "conv2d_1x1", "depthwise", "grouped", "conv2d_transpose")
    }
    with tvmflow.compile(model, **options, knobs=given, dump_ir=folder) as module:
        taken = module.metadata["schedules"]
        assert [taken[name]["source"] for name in given] == ["given"]
        check_outputs(model, module, feeds_for(model), run=run_module)


@pytest.mark.oclgrind
@pytest.mark.parametrize("layer", LAYERS)
def test_texels_are_read_inside_of_images(layer, under_oclgrind):
    run("Conv", *LAYERS[layer], KNOBS, run_module=under_oclgrind())


def test_reads_past_an_image_are_clamped(tmp_path):
    """Rows 11 to 15 of the second map would be outside of the image, as channels 20 to 31 are."""
    run("Conv", *LAYERS["pointwise"], KNOBS, folder=tmp_path)
    kernel = dumped_source(tmp_path, "conv2d_kernel")
    limits = set(re.findall(r"\bmin\(.*?, \(int\)(\d+)\)", kernel))
    assert {"10", "12"} <= limits


def test_rows_before_the_first_are_not_copied(tmp_path):
    """For TVM, a tile of this transposed convolution begins at row -1.

    Private memory has the size of what is inside: the copy wrote before its beginning, a fault.
    """
    attributes = {"strides": [3, 1], "pads": [1] * 4}
    run("ConvTranspose", (8, 1, 2, 2), attributes, {}, (1, 8, 8, 8), tmp_path)
    lines = dumped_source(tmp_path).splitlines()
    before = [at for at, line in enumerate(lines) if "min((int)(item_y - 1)" in line]
    # Stores whose index may be before the beginning have a test.
    assert all(any("1 <= item_y" in line for line in lines[at - 3 : at]) for at in before)
