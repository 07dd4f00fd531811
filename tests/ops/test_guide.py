"""The code of the guide to the loss of face boxes."""

from __future__ import annotations

from importlib.util import find_spec

from support import pages


def test_code_of_the_guide():
    blocks = pages.blocks("docs/giou.md", "python")
    assert len(blocks) == 3
    names: dict[str, object] = {}
    for block in blocks:
        if "import torch" in block.code and not find_spec("torch"):
            continue
        exec(compile(block.code, str(block), "exec"), names)
