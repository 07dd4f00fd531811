"""Application of the options that change a model before anything else reads it.

The compiler and the reference for its results therefore read the same changed model.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .bound_inputs import with_bound_inputs
from .results import with_results
from .source import Source
from .weight_quantization import with_rounded_weights

#: The options that change a model.
MODEL_OPTIONS = ("inputs", "results", "weights")


def apply_options(source: Source, options: Mapping[str, Any]) -> Source:
    """Apply the options `inputs`, `results` and `weights` to a model."""
    source = with_bound_inputs(source, options.get("inputs"))
    source = with_results(source, options.get("results"))
    return with_rounded_weights(source, options.get("weights"))
