"""What options make of a model before anything else is done with it.

The compiler reads the model that is made so, and the reference that results are compared with.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .bound_inputs import with_bound_inputs
from .results import with_results
from .rounded_weights import with_rounded_weights
from .source import Source

#: The options that change a model.
CHANGES = ("inputs", "results", "weights")


def changed_model(source: Source, options: Mapping[str, Any]) -> Source:
    """Return the model with what the options `inputs`, `results` and `weights` make of it."""
    source = with_bound_inputs(source, options.get("inputs"))
    source = with_results(source, options.get("results"))
    return with_rounded_weights(source, options.get("weights"))
