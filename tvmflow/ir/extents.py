"""Notation for several shapes of one module: ranges of the batch, and open extents.

`tvmflow.frontend.expand_shapes` expands them.  Options import this file, so it needs neither TVM
nor ONNX.
"""

from __future__ import annotations

import re

#: An extent in a shape option: a number, `OPEN`, or a range of the batch such as ``1..8``.
Extent = int | str

OPEN = "?"
#: Key of extents that belong to the only input with open extents.
ANY_INPUT = ""

RANGE = re.compile(r"(-?\d+)\.\.(-?\d+)")
