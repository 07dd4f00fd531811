"""The module file: a shared library that describes itself.

``OUT.so`` is the library that TVM exports (host code, device code, the virtual
machine's program) with sections behind it that are not loaded with the library:

``.tvmflow.weights``
    Weights in the safetensors format.  Absent when they exceed the embed limit;
    they then travel beside the module as ``OUT.so.weights``, in the same format.
``.tvmflow.meta``
    A JSON object: `FORMAT`, versions, target, inputs, outputs, kernels, options.
``.tvmflow.functions``
    The scheduled primary functions as TVM's JSON, compressed, for `tvmflow profile`.
``.tvmflow.digest``
    SHA-256 of the metadata, then SHA-256 of everything before the first added
    section, as it finally stands.  Digests of weights and functions are in the metadata.

Reading maps the weights and never loads the library: a module for another
machine can be inspected.
"""

from __future__ import annotations

from .reader import FORMAT, Artifact, read_artifact
from .weights import LazyWeight, WeightLike
from .writer import write_artifact

__all__ = [
    "FORMAT",
    "Artifact",
    "LazyWeight",
    "WeightLike",
    "read_artifact",
    "write_artifact",
]
