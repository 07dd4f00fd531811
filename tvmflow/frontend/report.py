"""One error for everything in a model that cannot be compiled."""

from __future__ import annotations

from collections.abc import Iterable

from ..errors import UnsupportedModelError
from .graph import Problem

#: Nodes listed by name for each reason; the rest are counted.
_NAMES_SHOWN = 8


def unsupported(problems: Iterable[Problem], label: str) -> UnsupportedModelError:
    """Describe all problems, grouped by operator and reason."""
    groups: dict[tuple[str, str], list[str]] = {}
    for problem in problems:
        groups.setdefault((problem.op_type, problem.reason), []).append(problem.node)
    lines = []
    for (op_type, reason), names in sorted(groups.items()):
        shown = ", ".join(names[:_NAMES_SHOWN])
        more = f" and {len(names) - _NAMES_SHOWN} more" if len(names) > _NAMES_SHOWN else ""
        count = "1 node" if len(names) == 1 else f"{len(names)} nodes"
        lines.append(f"  {op_type} ({count}): {reason}\n    {shown}{more}")
    operators = sorted({op_type for op_type, _ in groups})
    nodes = sum(map(len, groups.values()))
    return UnsupportedModelError(
        f"{label[:1].upper() + label[1:]} cannot be compiled: {nodes} "
        f"{'node uses' if nodes == 1 else 'nodes use'} what is not supported "
        f"({', '.join(operators)}).",
        remedy="Export the model without them, or cut it before them (onnx.utils.extract_model).",
        details="\n".join(lines),
    )
