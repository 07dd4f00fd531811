"""The code of the guide to the loss of face boxes."""

from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path

GUIDE = Path(__file__).parents[2] / "docs" / "giou.md"


def test_code_of_the_guide(capsys):
    blocks = re.findall(r"```python\n(.*?)```", GUIDE.read_text(), re.DOTALL)
    assert len(blocks) == 5
    names: dict[str, object] = {}
    for block in blocks:
        if "import torch" in block and not find_spec("torch"):
            continue
        exec(compile(block, str(GUIDE), "exec"), names)
    assert "17 boxes in sample 2" in capsys.readouterr().out
