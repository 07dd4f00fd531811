"""The same network gives the same standalone library in each process."""

from __future__ import annotations

import sys
from pathlib import Path

from support.commands import run

CODE = """
import tvmflow
model = tvmflow.models.make("mobilenet_v2", width=0.25, size=32, classes=7)
options = {"target": "opencl", "format": "standalone", "fallback": "cpu", "device": "adreno"}
with tvmflow.compile(model, **options) as module:
    assert module.metadata["stage_ms"]["build"] > 0
    module.save("libnet.so")
"""


def test_a_library_is_the_same_in_each_process(tmp_path: Path):
    found = []
    for seed in "1", "2":
        folder = tmp_path / seed
        folder.mkdir()
        run("env", "-C", folder, sys.executable, "-c", CODE, PYTHONHASHSEED=seed)
        found.append((folder / "libnet.so").read_bytes())
    assert found[0] == found[1]
