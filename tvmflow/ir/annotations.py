"""Names and limits that schedules and passes on TIR have in common."""

from __future__ import annotations

#: End of the names of parameters that kernels read from constant memory.
CONSTANT_SUFFIX = "_in_constant_memory"
#: Annotation of a loop, an attribute once blocks are lowered: two copies of its body, one for the
#: border of a picture and one without tests (`tvmflow.codegen.loop_peeling`).
PEEL_BORDERS = "pragma_tvmflow_borders"
#: Texels that straight-line code on a GPU may read ahead: half of the most vectors of an Adreno's
#: work-item.
MOST_TEXELS = 24
