"""Static analyses of generated kernels: how they use memory and lanes.

Every analysis takes a scheduled primary function, or one of its kernels, and its target, and
returns records in the order of the code.  Those for CPUs (`accumulators`, `cache_lines`,
`loop_nests`, `vector_lanes`) return none for GPUs, the others none for ``llvm``.
"""

from __future__ import annotations

from ...graph.missed_fusion import Fusion, fusion
from ..isa.nvidia import reported_registers
from ..profiling.record import Finding
from .cache_lines import LineUse, cache_lines
from .cpu_loops import Accumulators, LoopNest, VectorLanes, accumulators, loop_nests, vector_lanes
from .deadline import OutOfTimeError
from .divergence import Divergence, divergence
from .global_memory import Access, VectorWidth, coalescing, vector_width
from .local_memory import BankAccess, LocalMemory, bank_conflicts, local_memory
from .lowered import LoweredKernel, code_for_cpu, functions_of, kernels_of
from .occupancy import Occupancy, RegisterUse, occupancy, registers
from .products import Product, products
from .report import findings
from .texture_locality import TextureUse, texture_locality

# Records.
__all__ = ["Access", "Accumulators", "BankAccess", "Divergence", "Finding", "Fusion", "LineUse"]
__all__ += ["LocalMemory", "LoopNest", "Occupancy", "OutOfTimeError", "Product", "RegisterUse"]
__all__ += ["TextureUse", "VectorLanes", "VectorWidth"]
# Analyses of one property, and all of them.
__all__ += ["accumulators", "bank_conflicts", "cache_lines", "coalescing", "divergence", "fusion"]
__all__ += ["local_memory", "loop_nests", "occupancy", "products", "registers"]
__all__ += ["findings", "reported_registers", "texture_locality", "vector_lanes", "vector_width"]
# Subjects of analyses.
__all__ += ["LoweredKernel", "code_for_cpu", "functions_of", "kernels_of"]
