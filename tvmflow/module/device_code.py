"""Code for devices inside of a module of TVM's."""

from __future__ import annotations

from typing import Any


def modules_in(root: Any) -> list[Any]:
    """Modules of device code inside a module, however deep TVM nests them."""
    found, queue = [], [root]
    while queue:
        module = queue.pop()
        queue.extend(module.imports)
        if module.kind in ("opencl", "cuda"):
            found.append(module)
    return found


def sources_in(root: Any) -> list[str]:
    """Their source."""
    return [str(module.inspect_source()) for module in modules_in(root)]
