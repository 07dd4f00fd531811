"""Tests of the ONNX front end; they run what it builds on the CPU, without the pipeline."""

from __future__ import annotations

import sys
from pathlib import Path

# Whatever way pytest imports test modules, they find the modules beside them.
sys.path.insert(0, str(Path(__file__).parent))
