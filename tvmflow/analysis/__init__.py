"""What generated kernels do with memory and lanes, read from their code.

Every analysis is a function of a scheduled primary function and a target.
"""

from __future__ import annotations

from ..profiling.record import Finding
from .coalescing import Access, coalescing
from .divergence import Divergence, divergence
from .fusion import Fusion, fusion, fusion_findings
from .local_memory import BankAccess, LocalMemory, bank_conflicts, local_memory
from .lowered import Kernel, kernels_of
from .occupancy import Occupancy, occupancy
from .products import Product, products
from .registers import RegisterUse, registers, reported_registers
from .report import findings
from .texture_locality import TextureUse, texture_locality
from .vector_width import VectorWidth, vector_width

__all__ = [
    "Access",
    "BankAccess",
    "Divergence",
    "Finding",
    "Fusion",
    "Kernel",
    "LocalMemory",
    "Occupancy",
    "Product",
    "RegisterUse",
    "TextureUse",
    "VectorWidth",
    "bank_conflicts",
    "coalescing",
    "divergence",
    "findings",
    "fusion",
    "fusion_findings",
    "kernels_of",
    "local_memory",
    "occupancy",
    "products",
    "registers",
    "reported_registers",
    "texture_locality",
    "vector_width",
]
