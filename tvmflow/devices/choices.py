"""Choices that options of a compilation have, by name."""

from __future__ import annotations

#: Code generators.
TARGETS = ("opencl", "cuda", "llvm")
#: Where tensors between primary functions may be kept.
STORAGES = ("texture", "buffer", "auto")
#: In which tensors are stored.
PRECISIONS = ("fp32", "fp16")
#: What `calibrate` may be besides inputs: those that `verify` draws.
CALIBRATIONS = ("random",)
#: In which products and sums are taken; ``mixed``: products in 16 bits, whose sums are carried to
#: 32 bits in chunks, and ``auto``: what the device is fast at.
MIXED = "mixed"
ACCUMULATIONS = ("auto", "fp32", MIXED, "fp16")
#: Forms of an input or output that the application has in the blocked layout.
KEPT_FORMS = ("nchw4c", "texture")
#: Algorithms of convolutions: directly, as a product of matrices, and Winograd's with the outputs
#: of a tile in each direction.
DIRECT, GEMM, WINOGRAD = "direct", "gemm", {"winograd2": 2, "winograd4": 4}
ALGORITHMS = (DIRECT, GEMM, *WINOGRAD)
#: Forms of a module: for TVM's runtime, or a library that needs none.
TVM, STANDALONE = "tvm", "standalone"
FORMATS = (TVM, STANDALONE)
#: What a standalone library for OpenCL can have besides.
FALLBACKS = ("cpu",)
#: What it can store its weights as.
WEIGHTS = ("fp16", "int8")
#: What runs a standalone library, by the codes of `tvmflow_backend`.
BACKENDS = ("auto", "opencl", "cpu")
#: Weights above this many bytes travel beside the module: most file systems, app stores
#: and version control systems are still at ease with a file of this size.
EMBED_LIMIT_BYTES = 512 * 10**6
