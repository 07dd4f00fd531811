"""What generated kernels do with memory and lanes, read from their code.

Every analysis is a function of a scheduled primary function and a target.
"""

from __future__ import annotations

from ...graph.missed_fusion import Fusion, fusion
from ..profiling.record import Finding
from .accumulators import Accumulators, accumulators
from .cache_lines import LineUse, cache_lines
from .coalescing import Access, coalescing
from .deadline import OutOfTimeError
from .divergence import Divergence, divergence
from .fusion_findings import fusion_findings
from .local_memory import BankAccess, LocalMemory, bank_conflicts, local_memory
from .lowered import Kernel, code_for_cpu, functions_of, kernels_of
from .occupancy import Occupancy, occupancy
from .parallelism import LoopNest, loop_nests
from .products import Product, products
from .registers import RegisterUse, registers, reported_registers
from .report import findings
from .texture_locality import TextureUse, texture_locality
from .vector_lanes import VectorLanes, vector_lanes
from .vector_width import VectorWidth, vector_width

__all__ = [
    "Access",
    "Accumulators",
    "BankAccess",
    "Divergence",
    "Finding",
    "Fusion",
    "Kernel",
    "LineUse",
    "LocalMemory",
    "LoopNest",
    "Occupancy",
    "OutOfTimeError",
    "Product",
    "RegisterUse",
    "TextureUse",
    "VectorLanes",
    "VectorWidth",
    "accumulators",
    "bank_conflicts",
    "cache_lines",
    "coalescing",
    "code_for_cpu",
    "divergence",
    "findings",
    "functions_of",
    "fusion",
    "fusion_findings",
    "kernels_of",
    "local_memory",
    "loop_nests",
    "occupancy",
    "products",
    "registers",
    "reported_registers",
    "texture_locality",
    "vector_lanes",
    "vector_width",
]
