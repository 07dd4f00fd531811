"""Names of the choices that compilation options have."""

from __future__ import annotations

#: Code generators.
TARGETS = ("opencl", "cuda", "llvm")
#: Storage of tensors between primary functions.
STORAGES = ("texture", "buffer", "auto")
#: Precisions in which tensors are stored.
PRECISIONS = ("fp32", "fp16")
#: Values of `calibrate` other than inputs: the random inputs of `verify`.
CALIBRATIONS = ("random",)
#: Precisions of products and sums: ``mixed`` computes products in 16 bits and adds chunks of them
#: in 32 bits; ``auto`` is the fastest that the device has.
MIXED = "mixed"
ACCUMULATIONS = ("auto", "fp32", MIXED, "fp16")
#: Forms of inputs and outputs that applications pass in the blocked layout.
KEPT_FORMS = ("nchw4c", "texture")
#: Algorithms of convolutions: direct, as a matrix product, and Winograd's with the tile's number of
#: outputs in each direction.
DIRECT, GEMM, WINOGRAD = "direct", "gemm", {"winograd2": 2, "winograd4": 4}
ALGORITHMS = (DIRECT, GEMM, *WINOGRAD)
#: Formats of a module: for TVM's runtime, or a library without it.
TVM, STANDALONE = "tvm", "standalone"
FORMATS = (TVM, STANDALONE)
#: Fallback kernels that a standalone library for OpenCL can carry.
FALLBACKS = ("cpu",)
#: Further kernels of a standalone library for OpenCL, for those that a driver computes wrongly.
SAFE = "safe"
ALTERNATIVES = ("none", SAFE)
#: Most choices of a function in a standalone library.
MOST_CHOICES = 8
#: Types in which a standalone library can store its weights.
WEIGHTS = ("fp16", "int8")
#: Backends of a standalone library, in the order of `tvmflow_backend`.
BACKENDS = ("auto", "opencl", "cpu")
#: Size above which weights are stored in a file next to the module: file systems, app stores and
#: version control systems still accept files of this size.
EMBED_LIMIT_BYTES = 512 * 10**6
