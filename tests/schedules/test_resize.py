"""Resizes between convolutions and of plain pictures: results, vectors, any knobs."""

from __future__ import annotations

import re

import numpy as np
import pytest
from onnx import helper
from support.checks import check_any_knobs, check_outputs, dumped_source, of_family, options_of
from support.operators import build, feeds_for, random
from support.row_reductions import MODES, TURNS
from support.turns import in_turn

import tvmflow
from tvmflow.schedules import resize

pytestmark = pytest.mark.opencl

#: Attributes, and factors of rows and columns.
CASES = {
    "linear": ({"mode": "linear"}, (2, 3)),
    "smaller": ({"mode": "linear"}, (0.5, 1)),
    "corners": ({"mode": "linear", "coordinate_transformation_mode": "align_corners"}, (2, 2)),
    "nearest": (
        {
            "mode": "nearest",
            "nearest_mode": "floor",
            "coordinate_transformation_mode": "asymmetric",
        },
        (3, 2),
    ),
    "cubic": ({"mode": "cubic"}, (2, 2)),
    "rows": ({"mode": "cubic"}, (2, 1)),
}


def network(case, channels=10):
    """Build a resize between convolutions, followed by an activation, and one of a plain input."""
    attributes, factors = CASES[case]
    nodes = [
        helper.make_node("Conv", ["x", "a"], ["t"]),
        helper.make_node("Resize", ["t", "", "scales"], ["u"], **attributes),
        helper.make_node("Relu", ["u"], ["v"]),
        helper.make_node("Conv", ["v", "b"], ["y"]),
        helper.make_node("Resize", ["p", "", "scales"], ["z"], **attributes),
    ]
    constants = {
        "a": random((channels, 3, 1, 1)),
        "b": random((5, channels, 1, 1), 0.3),
        "scales": np.array([1, 1, *factors], np.float32),
    }
    inputs = {"x": (2, 3, 8, 7), "p": (1, 2, 6, 6)}
    return build(nodes, inputs, ["y", "z"], constants, opset=18)


@pytest.mark.parametrize(("case", "mode"), in_turn(CASES, MODES, *TURNS))
def test_resizes_are_right(case, mode):
    model = network(case)
    with tvmflow.compile(model, **options_of(mode)) as module:
        check_outputs(model, module, feeds_for(model), mode[3])
        found = of_family(resize, module.metadata["schedules"])
    # Cubic modes have a function for each axis.
    assert len(found) == {"cubic": 4}.get(case, 2)
    assert {choice["shape"]["lanes"] for choice in found.values()} >= {
        16 if mode[1] == "cpu" else 4
    }


@pytest.mark.parametrize("device", ["cpu", "adreno"])
def test_any_knobs_are_right(device):
    model = network("linear", channels=6)
    check_any_knobs(model, resize, device, (2, 5), feeds_for(model))


@pytest.mark.parametrize("storage", ["texture", "buffer"])
def test_texels_are_read_and_written_whole(storage, tmp_path):
    """Two neighbours of two rows and columns take 8 reads of four channels, and 2 writes."""
    with tvmflow.compile(network("corners"), device="adreno", storage=storage, dump_ir=tmp_path):
        pass
    text = dumped_source(tmp_path, r"fused_resize\w*_relu_kernel")
    if storage == "texture":
        assert len(re.findall("read_imagef", text, re.IGNORECASE)) == 8
        assert text.count("write_imagef") == 2
    else:
        assert len(re.findall(r"at_float4\(t_ptr", text)) == 8
        assert len(re.findall(r"put_float4\(\w*intermediate_ptr", text)) == 2
        assert not re.search(r"intermediate_ptr\[", text)


def test_a_cpu_computes_a_row_in_vectors(tmp_path):
    with tvmflow.compile(network("linear"), device="cpu", dump_ir=tmp_path) as module:
        found = of_family(resize, module.metadata["schedules"])
        blocked = [c for c in found.values() if c["shape"]["lanes"] == 16]
        assert blocked[0]["knobs"]["tile_w"] > 4
    assert re.search(r"put_float16\(compute_intermediate_ptr", dumped_source(tmp_path))
