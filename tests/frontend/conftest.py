"""Tests of the ONNX front end, most of which run imported models without tvmflow's pipeline."""

from __future__ import annotations

import sys
from pathlib import Path

# Test modules import modules next to them, independently of pytest's import mode.
sys.path.insert(0, str(Path(__file__).parent))
