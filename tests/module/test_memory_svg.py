"""The drawing of a memory plan, and the line about storage."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest

from tvmflow.module.memory_svg import COLOURS, memory_svg
from tvmflow.module.storage_summary import storage_summary

SVG = "{http://www.w3.org/2000/svg}"


def tensor(name, storage, block, first, last, size):
    return {
        "name": name, "storage": storage, "block": block, "first": first, "last": last,
        "bytes": size, "shape": [1, size // 16, 1, 1, 4], "producer": "conv2d",
        "readers": ["fused_a<b", "c&d"],
    }  # fmt: skip


PLAN = {
    "peak_bytes": 6400,
    "lower_bound_bytes": 5000,
    "blocks": [{"bytes": 4800, "image": "10x30"}, {"bytes": 1600, "image": None}],
    "tensors": [
        tensor("first", "texture", 0, 0, 1, 4800),
        tensor("sec<o>nd & \x01 more", "buffer", 1, 1, 3, 1600),
        tensor("third", "texture", 0, 2, 3, 2400),
        tensor("result", "buffer", None, 3, 3, 64),
    ],
}


def rectangles(text, about):
    """Return the rectangles whose tooltip begins with ``about``."""
    root = ElementTree.fromstring(text)
    found = []
    for node in root.iter(f"{SVG}rect"):
        title = node.find(f"{SVG}title")
        if title is not None and title.text.startswith(about):
            found.append({k: node.get(k) for k in node.keys()})  # noqa: SIM118
    return found


def test_a_rectangle_a_tensor_where_it_lives():
    text = memory_svg(PLAN, "net")
    (first,), (second,), (third,) = (
        rectangles(text, name) for name in ("first:", "sec<o>nd & ", "third:")
    )
    assert first["fill"] == third["fill"] == COLOURS["texture"]
    assert second["fill"] == COLOURS["buffer"]
    step = float(first["width"]) / 2
    assert float(second["width"]) == pytest.approx(3 * step, abs=0.2)
    assert float(third["x"]) - float(first["x"]) == pytest.approx(2 * step, abs=0.2)
    # In the same block, half as high; in another block below it.
    assert third["y"] == first["y"]
    assert float(first["height"]) == pytest.approx(2 * float(third["height"]), abs=0.2)
    assert float(second["y"]) >= float(first["y"]) + float(first["height"]) - 0.2
    assert rectangles(text, "result") == []


def test_texts_are_escaped_and_name_what_is_shown():
    text = memory_svg(PLAN, "a <net> & more")
    texts = [node.text for node in ElementTree.fromstring(text).iter(f"{SVG}text")]
    assert "a <net> & more: memory of intermediate tensors" in texts
    assert "peak 6.4 kB, lower bound 5.0 kB, 1.28 times the bound" in texts
    assert {"first", "third", "texture", "buffer", "0: image 10x30"} <= set(texts)
    assert "\x01" not in text


def test_everything_is_inside_the_picture():
    root = ElementTree.fromstring(memory_svg(PLAN, "net"))
    width, height = float(root.get("width")), float(root.get("height"))
    for node in root.iter(f"{SVG}rect"):
        x, y = float(node.get("x", 0)), float(node.get("y", 0))
        assert 0 <= x <= x + float(node.get("width")) <= width
        assert 0 <= y <= y + float(node.get("height")) <= height


@pytest.mark.parametrize("blocks", [0, 1, 60])
def test_any_number_of_blocks(blocks):
    plan = {
        "peak_bytes": 64 * blocks,
        "lower_bound_bytes": 64 * blocks,
        "blocks": [{"bytes": 64, "image": None}] * blocks,
        "tensors": [tensor(f"t{n}", "buffer", n, n, n + 1, 64) for n in range(blocks)],
    }
    text = memory_svg(plan, "net")
    ElementTree.fromstring(text)
    assert ("No tensor passes" in text) == (blocks == 0)


# -- the summary ------------------------------------------------------------------------------


def placement(cause, reason="", constant=False, tensor="t"):
    return {"cause": cause, "reason": reason, "constant": constant, "tensor": tensor}


def summary(plan=PLAN, target="opencl", placements=()):
    return storage_summary({"memory": plan, "target": target, "placements": list(placements)})


def test_a_summary_counts_intermediate_tensors():
    assert summary() == "2 textures, 1 buffer; 6.4 kB of intermediate memory"


BUFFERS = {**PLAN, "tensors": [{**t, "storage": "buffer"} for t in PLAN["tensors"]]}


@pytest.mark.parametrize(
    ("placements", "words"),
    [
        ([placement("cost"), placement("cost"), placement("obstacle")], "by the cost model"),
        ([placement("asked")] * 3 + [placement("cost", constant=True)] * 9, "as asked for"),
        ([placement("layout", "in blocks of 16 channels")], "tensors are in blocks of 16 channels"),
        ([placement("no images")], "the device has no images"),
        ([placement("obstacle")], "no tensor passes between kernels"),
        ([], "no tensor passes between kernels"),
    ],
)
def test_a_summary_says_why_there_are_no_textures(placements, words):
    text = summary(BUFFERS, placements=placements)
    assert text.startswith("0 textures, 3 buffers (")
    assert words in text


def test_a_summary_names_tensors_over_the_limits():
    over = [placement("limits", tensor=f"big{n}") for n in range(5)]
    assert "5 over the limits of the device's images, in buffers: big0, big1, big2 and others" in (
        summary(placements=over)
    )


def test_a_cpu_module_has_no_textures_to_explain():
    assert summary(BUFFERS, "llvm") == "3 buffers; 6.4 kB of intermediate memory"
