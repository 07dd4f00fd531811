"""Write docs/operators.md, the ONNX operators and what is refused of them, from the converters.

A converter refuses a node by raising ``Refusal``: the sentences are read off its source, and that
of the functions and private classes which it names.  What varies in one is `…` on the page.
"""

from __future__ import annotations

import ast
import inspect
import sys
import textwrap
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import onnx

from tvmflow.cli.options import with_flags
from tvmflow.frontend.contrib import EXPANSIONS
from tvmflow.frontend.converter import CONVERTERS, RESULT_TYPES
from tvmflow.frontend.dynamic import MAKERS, RULES
from tvmflow.frontend.expansion import EXPANDERS
from tvmflow.frontend.graph import CONTRIB_DOMAIN
from tvmflow.frontend.load import __package__ as FRONTEND  # It registers all rules.

PAGE = Path(__file__).with_name("operators.md")
#: Functions on all nodes of the body of a loop: what they refuse are other operators.
ON_BODIES = ("propagate", "to_relax")
HEAD = """# Operators, types and control flow

What tvmflow compiles of ONNX. `python docs/write_operators.py` writes this page; the refusals in
the table are the words of the messages, and one message lists every node that is refused.

- **Operator sets**: 1 to the newest; 1 to 6 are brought to 7 by ONNX's version converter and rules
  of our own.
- **Shapes** are static; open dimensions are set with `--shape`. There may be several [in one
  module](shapes.md), and [results of any size up to a bound](deploying.md#sizes-known-at-run-time)
  (NonMaxSuppression, NonZero, Compress and what reads them). Other shapes that depend on values of
  run time are refused.
- **Types**: float32, float16 (computed in float32), float64, bool, and whole numbers of 8 to 64
  bits; of 4 bits for weights, which stay packed; of 16 bits between real operators.
- **Quantized networks**: ONNX's operators, QuantizeLinear and DequantizeLinear around real ones,
  and [those of ONNX Runtime](#quantized-operators-of-onnx-runtime).
- **Control flow**: If, Loop, Scan, sequences and optional values. Branches are inlined or selected
  from, short loops are unrolled. Long loops, and those whose condition or count is computed, run in
  TVM's virtual machine, which standalone libraries do not have.
- **Weights**: also external data, and more than 2 GB.
- **PyTorch**: `tvmflow.compile(net, (torch.rand(1, 3, 224, 224),))`, with the extra `torch`.

Standalone libraries take no inputs or outputs without elements. What an operator reads from
constants may be computed, as long as it follows from constants and shapes.

ONNX 1.23 has 1,884 test cases of all operators; 295 are of other types (float8, text, sequences) or
of operators outside ONNX's own set. Of the other 1,589, 1,262 are right on `llvm` and `opencl` as
they are, 265 with shapes, axes or weights as constants, and 13 of constants only; 48 are refused,
one ONNX Runtime does not run, and none is wrong. Of the 521 with operators of convolutional
networks 513 are right (`benchmarks/operator_cases.py`).

## Operators

The column "since" has the first of ONNX's operator sets with the operator. Constant,
ConstantOfShape, EyeLike, Range, Shape, Size and the windows of signals, which follow from
constants, are computed when a model is read; Identity and ONNX Runtime's quantized operators are
replaced with others.

| operator | since | refused, if |
|---|---|---|
"""
TAIL = """
## Quantized operators of ONNX Runtime

What ONNX Runtime's quantizers write (`quantize_static` in both formats and with
`UseQDQContribOps`, `quantize_dynamic`, `get_qnn_qdq_config`, and of weights only
`MatMulNBitsQuantizer` and `MatMulBnb4Quantizer`) is taken, with numbers of 2, 4, 8 and 16 bits. Of
the domain `com.microsoft` these are:
{names}.

Results are those of ONNX Runtime without its graph optimisations; with them its own results differ
by some steps. Three things are not the same: QLinearSoftmax may round a number that is nearly
between two steps the other way, DynamicQuantizeLSTM keeps the state in fp32, where ONNX Runtime
rounds it to 8 bits at each step, and MatMulNBits keeps its input, which `accuracy_level=4` lets
ONNX Runtime round to 8 bits. Weights of products in packed blocks must be constants; those of 4
bits stay packed where blocks fill K and a product is in fp32. Attention takes the masks that ONNX
Runtime takes on CPUs; rotary positions, a cache that past and present share and weights that were
packed for CUDA are refused, with the reason.
"""


def operators() -> str:
    """Return the page."""
    rows = (row(op_type) for op_type in sorted({*CONVERTERS, *EXPANDERS, *MAKERS}))
    return HEAD + "\n".join(filter(None, rows)) + "\n" + TAIL.format(
        names=textwrap.fill(", ".join(sorted({*EXPANSIONS, *_contributed()})), 100)
    )  # fmt: skip


def _contributed() -> Iterator[str]:
    """Yield the operators of ONNX Runtime's that are expanded when types are known."""
    prefix = f"{CONTRIB_DOMAIN}."
    return (name.removeprefix(prefix) for name in EXPANDERS if name.startswith(prefix))


def row(op_type: str) -> str | None:
    """Return an operator's line, if it is ONNX's."""
    schemas = [s for s in onnx.defs.get_all_schemas_with_history()
               if s.name == op_type and not s.domain]  # fmt: skip
    if not schemas:
        return None
    since = str(min(s.since_version for s in schemas))
    gone = [s.since_version for s in schemas if s.deprecated]
    if gone:
        since += f", until {min(gone) - 1}"
    return f"| {op_type} | {since} | {'; '.join(dict.fromkeys(refusals(op_type)))} |"


def refusals(op_type: str) -> Iterator[str]:
    """Yield what may refuse an operator says: its converter, and what is asked before that."""
    seen: set[tuple[str, str]] = set()
    registries = [CONVERTERS, RESULT_TYPES, EXPANDERS, *([RULES] if op_type in MAKERS else [])]
    for function in (registry.get(op_type) for registry in registries):
        if function is None:
            continue
        module = sys.modules[function.__module__]
        name = function.__name__
        body = lambda_of(module, op_type) if name == "<lambda>" else functions(module).get(name)
        if body is not None:
            yield from sentences(module, body, seen)


def sentences(module: ModuleType, body: ast.AST, seen: set[tuple[str, str]]) -> Iterator[str]:
    """Yield the refusals in a function, and in those of the front end that it names."""
    own = {n.id for n in ast.walk(body) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
    for node in ast.walk(body):
        if isinstance(node, ast.Call):
            called = node.func
            name = called.id if isinstance(called, ast.Name) else getattr(called, "attr", "")
            if name in ("Refusal", "refusal"):
                yield text(node.args[0])
            if name == "array" and ast.unparse(called) == "c.array":
                yield f"computed at run time: {text(node.args[1])}"
        if isinstance(node, ast.Name) and node.id not in own:
            found = getattr(module, node.id, None)
            home = sys.modules.get(getattr(found, "__module__", ""), module)
            is_private = inspect.isclass(found) and found.__name__.startswith("_")
            if not (inspect.isfunction(found) or is_private) or node.id in ON_BODIES:
                continue
            if not home.__name__.startswith(FRONTEND):
                continue
            key = (home.__name__, found.__name__)
            if key not in seen and found.__name__ in functions(home):
                seen.add(key)
                yield from sentences(home, functions(home)[found.__name__], seen)


@cache
def tree(module: ModuleType) -> ast.Module:
    """Return a module's source."""
    return ast.parse(inspect.getsource(module))


@cache
def functions(module: ModuleType) -> dict[str, ast.AST]:
    """Return the functions and classes of a module by name."""
    kinds = ast.FunctionDef | ast.ClassDef
    return {n.name: n for n in ast.walk(tree(module)) if isinstance(n, kinds)}


def lambda_of(module: ModuleType, op_type: str) -> ast.AST | None:
    """Return an operator's formula in a call of ``formulas``."""
    for node in ast.walk(tree(module)):
        if isinstance(node, ast.keyword) and node.arg == op_type:
            return node.value
    return None


def text(node: Any) -> str:
    """Return what a string says, with `…` for what is put in."""
    if isinstance(node, ast.Constant):
        return str(node.value).replace("|", "\\|")
    if isinstance(node, ast.JoinedStr):
        parts = (text(v) if isinstance(v, ast.Constant) else "…" for v in node.values)
        # Options are printed as the commands' flags.
        return with_flags("".join(parts))
    return "…"


if __name__ == "__main__":
    PAGE.write_text(operators())
