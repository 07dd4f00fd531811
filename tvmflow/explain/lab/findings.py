"""What the analysis of each step finds, and which of it the next step's does not."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from itertools import pairwise

from tvm import tirx

from ...devices.target import TargetSpec
from ..analysis import Finding, findings

Found = tuple[Finding, ...]

#: Of names that schedules give to copies of a tensor.
_COPY = re.compile(r"(_pad|_local|_shared|_global)+$")


def found_and_removed(
    functions: Iterable[tirx.PrimFunc], target: TargetSpec
) -> list[tuple[Found, Found]]:
    """Of each scheduled function what is found in it, and of this what the next one removes."""
    found = [_largest(findings(function, target)) for function in functions]
    removed = [_missing(step, following) for step, following in pairwise(found)]
    return list(zip(found, [*removed, ()], strict=True))


def _largest(found: Sequence[Finding]) -> Found:
    """Of each kind and line the finding of the largest share: a line may be unrolled."""
    by_share = sorted(found, key=lambda finding: -finding.share)
    first: dict[tuple[str, int], Finding] = {}
    for finding in by_share:
        first.setdefault((finding.kind, finding.line), finding)
    return tuple(first.values())


def _missing(before: Found, now: Found) -> Found:
    """What was found of a tensor, or of a whole kernel, and is not any more."""
    still = {_subject(finding) for finding in now}
    return tuple(finding for finding in before if _subject(finding) not in still)


def _subject(finding: Finding) -> tuple[str, str]:
    tensor, bracket, _index = finding.access.partition("[")
    return finding.kind, _COPY.sub("", tensor) if bracket else ""
