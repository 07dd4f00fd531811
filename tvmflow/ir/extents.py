"""How several shapes of one module are written: ranges of the batch, and open extents.

`tvmflow.frontend.expand_shapes` expands them; options, which read this, need neither TVM nor ONNX.
"""

from __future__ import annotations

import re

#: A given extent: a number, `OPEN`, or a range of the batch such as ``1..8``.
Extent = int | str

OPEN = "?"
#: In lists of extents by input: the one input that has open extents.
THE_OPEN_INPUT = ""

RANGE = re.compile(r"(-?\d+)\.\.(-?\d+)")
