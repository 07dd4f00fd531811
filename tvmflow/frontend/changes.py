"""What options make of a model before anything else is done with it.

The compiler reads the model that is made so, and the reference that results are compared with.
"""

from __future__ import annotations

from collections.abc import Mapping

from .results import with_results
from .rounded_weights import with_rounded_weights
from .source import Source


def changed_model(source: Source, results: Mapping[str, str] | None, weights: str | None) -> Source:
    """Return the model whose outputs are `results`, with weights that `weights` holds."""
    return with_rounded_weights(with_results(source, results), weights)
