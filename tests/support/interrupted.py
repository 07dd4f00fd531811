"""Commands that a test interrupts."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

#: Restores Ctrl-C: a shell's background processes, and their children, ignore it.
HEED_CTRL_C = """
import signal
signal.signal(signal.SIGINT, signal.default_int_handler)
"""


def start(script: str, *arguments: str, folder: Path) -> subprocess.Popen[str]:
    temporary = folder / "tmp"
    temporary.mkdir()
    return subprocess.Popen(
        [sys.executable, "-c", HEED_CTRL_C + script, *arguments],
        cwd=folder,
        env={**os.environ, "TMPDIR": str(temporary)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def everything(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))
