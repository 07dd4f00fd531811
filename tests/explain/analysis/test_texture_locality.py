"""Images that are read in rows, columns and squares, once and repeatedly."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from analysis_kernels import squares, texel_columns
from onnx import helper
from support.operators import build, random
from support.scheduled_networks import scheduled
from support.simulated import executed
from tvm.script import tirx as T

import tvmflow
from tvmflow.devices.target import resolve, with_storage
from tvmflow.explain.analysis import findings, texture_locality
from tvmflow.explain.analysis.texture_locality import block_of

ADRENO = resolve("opencl", "adreno")
#: Items that read every other texel of every other row.
SCATTERED = squares(32, 8, 8, 2)


@T.prim_func(s_tir=True)
def blurred(
    a: T.Buffer((66, 66, 4), "float32", scope="global.texture:0.1"),
    b: T.Buffer((4096, 4), "float32"),
):
    """Read windows of 3 x 3, in groups of 8 x 8."""
    for by in T.thread_binding(8, thread="blockIdx.y"):
        for bx in T.thread_binding(8, thread="blockIdx.x"):
            for y in T.thread_binding(8, thread="threadIdx.y"):
                for x in T.thread_binding(8, thread="threadIdx.x"):
                    for lane in T.vectorized(4):
                        b[(by * 8 + y) * 64 + bx * 8 + x, lane] = 0.0
                    for i, j in T.grid(3, 3):
                        for lane in T.vectorized(4):
                            b[(by * 8 + y) * 64 + bx * 8 + x, lane] = (
                                b[(by * 8 + y) * 64 + bx * 8 + x, lane]
                                + a[by * 8 + y + i, bx * 8 + x + j, lane]
                            )


@T.prim_func(s_tir=True)
def tiled(
    a: T.Buffer((64, 64, 4), "float32", scope="global.texture:0.1"),
    b: T.Buffer((4096, 4), "float32"),
):
    """Copy two texels of two rows in each item, one after the other."""
    for group in T.thread_binding(16, thread="blockIdx.x"):
        for item in T.thread_binding(64, thread="threadIdx.x"):
            for y in T.unroll(2):
                for x in T.unroll(2):
                    for lane in T.vectorized(4):
                        b[((group * 64 + item) * 2 + y) * 2 + x, lane] = a[
                            group // 4 * 16 + item // 8 * 2 + y,
                            group % 4 * 16 + item % 8 * 2 + x,
                            lane,
                        ]


def long_rows(steps):
    """Read a row of texels in each item, from one end to the other."""

    @T.prim_func(s_tir=True)
    def rows(
        a: T.Buffer((64, steps, 4), "float32", scope="global.texture:0.1"),
        b: T.Buffer((64, 4), "float32"),
    ):
        for _ in T.thread_binding(1, thread="blockIdx.x"):
            for item in T.thread_binding(64, thread="threadIdx.x"):
                for lane in T.vectorized(4):
                    b[item, lane] = 0.0
                for k in T.serial(steps):
                    for lane in T.vectorized(4):
                        b[item, lane] = b[item, lane] + a[item, k, lane]

    return rows


@T.prim_func(s_tir=True)
def uneven(
    a: T.Buffer((1, 64, 4), "float32", scope="global.texture:0.1"),
    b: T.Buffer((256, 4), "float32"),
):
    """Read a row of texels in the third of four groups, and one texel in the others."""
    for group in T.thread_binding(4, thread="blockIdx.x"):
        for item in T.thread_binding(64, thread="threadIdx.x"):
            for lane in T.vectorized(4):
                b[group * 64 + item, lane] = a[0, item * (group // 2) * (1 - group % 2), lane]


def only(function, device="adreno"):
    (use,) = texture_locality(function, resolve("opencl", device))
    return use


def test_blocks_are_lines_of_the_cache():
    assert [block_of(16, 64), block_of(8, 64), block_of(16, 32)] == [(2, 2), (4, 2), (2, 1)]
    assert block_of(16, 64, is_tiled=False) == (4, 1)


@pytest.mark.parametrize(
    ("height", "width", "efficiency"), [(8, 8, 1.0), (2, 32, 1.0), (1, 64, 0.5), (64, 1, 0.5)]
)
def test_squares_are_whole_blocks(height, width, efficiency):
    use = only(squares(64, height, width))
    assert (use.texels, use.reuse, use.group_texels) == (4096, 1.0, 64)
    assert (use.blocks, use.efficiency) == (1024 / efficiency, efficiency)


def test_scattered_texels():
    use = only(SCATTERED)
    assert (use.texels, use.blocks, use.efficiency) == (1024, 1024, 0.25)


def test_items_use_the_rest_of_a_block_later():
    use = only(tiled)
    # At each of four instructions, an item reads one texel of its own block.
    assert (use.blocks, use.efficiency) == (4 * 1024, 0.25)
    assert (use.group_texels, use.group_blocks, use.least_group_blocks) == (256, 64, 64)
    assert not [f for f in findings(tiled, ADRENO) if f.kind == "texture-locality"]


def test_images_of_cpus_are_rows():
    """The 16 items of a vector are a row, two rows of 8, or a column."""
    uses = [only(squares(64, h, w), "cpu") for h, w in ((1, 64), (8, 8), (64, 1))]
    assert [use.blocks for use in uses] == [1024, 1024, 4096]
    assert only(texel_columns(64), "cpu").blocks == 4096


def test_groups_of_a_kernel_are_looked_at_and_no_others():
    assert only(uneven).group_texels == (1 + 1 + 64 + 1) / 4


def test_windows_read_their_neighbours_texels_again():
    use = only(blurred)
    assert (use.texels, use.group_texels) == (9 * 4096, 100)
    assert use.reuse == 9 * 64 / 100
    # Windows that begin at odd places make the square of 8 x 8 touch 5 blocks, not 4.
    blocks = 64 * sum((5 if i % 2 else 4) * (5 if j % 2 else 4) for i in range(3) for j in range(3))
    assert use.blocks == blocks


@pytest.mark.parametrize("steps", [4096, 1 << 14])
def test_groups_that_read_very_much(steps):
    """Counts are exact up to the limit on examined texels."""
    use = only(long_rows(steps))
    assert (use.texels, use.reuse) == (64 * steps, 1.0)
    assert use.group_texels == min(64 * steps, 1 << 19)
    assert use.group_blocks == use.least_group_blocks
    assert not [f for f in findings(long_rows(steps), ADRENO) if f.kind == "texture-locality"]


def test_findings():
    (finding,) = (f for f in findings(SCATTERED, ADRENO) if f.kind == "texture-locality")
    assert finding.cost == {"bytes": 768 * 64.0}
    assert finding.share == 0.75
    assert "a[" in SCATTERED.script().splitlines()[finding.line - 1]
    assert not [f for f in findings(squares(64, 8, 8), ADRENO) if f.kind == "texture-locality"]


def test_order():
    functions = (squares(64, 8, 8), squares(64, 1, 64), SCATTERED)
    efficiencies = [only(f).efficiency for f in functions]
    assert efficiencies == sorted(efficiencies, reverse=True) == [1.0, 0.5, 0.25]


RUN = """
import sys
import numpy as np
import tvmflow
module = tvmflow.load(sys.argv[1])
(info,) = module.inputs
module(np.random.default_rng(0).standard_normal(info.shape).astype(np.float32))
"""


@pytest.mark.oclgrind
@pytest.mark.opencl
@pytest.mark.parametrize("pad", [0, 1])
def test_counts_are_those_of_a_simulator(tmp_path, pad):
    """Check every kernel of a convolution whose groups extend over the picture's edge."""
    node = helper.make_node("Conv", ["x", "w"], ["y"], pads=[pad] * 4)
    side = 11 - 2 * pad
    model = build([node], {"x": (1, 7, side, side)}, ["y"], {"w": random((9, 7, 3, 3))})
    target = with_storage(ADRENO, "texture")
    predicted = {}
    for function in scheduled(model, target, "texture").values():
        for use in texture_locality(function, target):
            kind = "write" if use.is_store else "read"
            key = (use.kernel, kind)
            predicted[key] = predicted.get(key, 0) + use.texels
    with tvmflow.compile(model, device="adreno", storage="texture") as module:
        module.save(tmp_path / "m.so")
    command = ["oclgrind", "--inst-counts", sys.executable, "-c", RUN, str(tmp_path / "m.so")]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    counted = {}
    for kernel, counts in executed(said).items():
        for kind in ("read", "write"):
            names = [name for name in counts if name.startswith(f"{kind}_image")]
            if names:
                counted[kernel, kind] = sum(counts[name] for name in names)
    assert len(counted) >= 4
    # Nine columns and ten rows of items, the last beyond the map; reads outside of the picture
    # count, too, which the sampler answers without the image.  Without padding, the last texel is
    # read instead, and is predicted.
    asked = np.indices((10, 9, 3, 3))
    places = asked[:2] + asked[2:] - pad
    outside = ((places < 0) | (places >= side)).any(axis=0)
    blocks_in, blocks_out = 2, 3
    predicted["conv2d_kernel", "read"] += int(outside.sum()) * pad * blocks_in * blocks_out
    assert counted == predicted
