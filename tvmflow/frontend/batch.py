"""Prove from an ONNX graph that the samples of a batch do not depend on each other.

A module that was compiled for batches 4 and 1 may compute five samples as 4 + 1 only if no sample's
result depends on another sample, nor on how many there are.  The proof follows the batch through
the nodes, before constants are folded: it knows the axis along which the samples of each value lie,
or that a value does not depend on the batch.  Where the rule of an operator (:mod:`.batch_rules`)
refuses, or an operator has none, the proof ends with that node and the reason.

Many models compute shapes (``Shape``, ``Gather``, ``Concat``, ``Reshape``).  For each number that
comes from the extent of the batch, the proof knows whether it is that extent times a constant, or
depends on it in another way.  Such numbers may be requested extents, and nothing else.

The model is propagated at two batches.  The batch may lie along an axis only if the axis's extent
is the same multiple of both batches, and all other extents agree.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto

from ..errors import TvmflowError
from ..runtime.json_types import JsonObject
from .batch_rules import (
    DEPENDS,
    FREE,
    MULTIPLE,
    Batch,
    BatchFacts,
    Node,
    NotProvenError,
    batches_of_results,
)
from .expand_shapes import Shapes
from .graph import node_name
from .nested import reads
from .prepare import prepare
from .propagate import evaluated, propagate
from .source import Source

__all__ = ["Batch", "BatchProof", "prove_independence"]


@dataclass(frozen=True)
class BatchProof:
    """The verdict on a model: the batch axes of its inputs and outputs, or why there are none."""

    #: Batch axis of each input that has one.
    inputs: Mapping[str, Batch]
    #: Batch axis of each output; empty unless independence is proven.
    outputs: Mapping[str, Batch]
    #: Why the proof ended; empty if independence is proven.
    reason: str = ""
    #: The node at which the proof ended; empty if it is proven, or ended at no node.
    node: str = ""

    @property
    def proven(self) -> bool:
        """True if a batch may be computed in parts."""
        return not self.reason

    def report(self) -> JsonObject:
        """Return the verdict as JSON, for a module's metadata."""
        return {"proven": self.proven, **asdict(self)}


def prove_independence(source: Source, probes: Sequence[tuple[Shapes, Shapes]]) -> BatchProof:
    """Return the verdict on a model; each probe is its shapes at two batches, 2 and 3.

    With several probes (of other extents), the first one that is not proven decides.
    """
    proofs = [_prove(source, pair) for pair in probes]
    return next((proof for proof in proofs if not proof.proven), proofs[0])


def _prove(source: Source, shapes: tuple[Shapes, Shapes]) -> BatchProof:
    """Follow the batch through a model, node by node."""
    inputs: dict[str, Batch] = {}
    node: onnx.NodeProto | None = None
    try:
        inputs = _batches_of_inputs(*shapes)
        graphs = [prepare(source, each) for each in shapes]
        nodes, others = (list(graph.nodes) for graph in graphs)
        if [n.SerializeToString() for n in nodes] != [n.SerializeToString() for n in others]:
            raise NotProvenError("the model has other nodes for another batch")
        names = list(graphs[0].outputs)
        for graph in graphs:
            propagate(graph)
        values = BatchFacts(graphs, dict(inputs))
        for node in nodes:
            _follow(values, node)
        node = None
        outputs = {}
        for name in names:
            if (batch := values.batches.get(values.aliases.get(name, name))) is None:
                raise NotProvenError(f"the output {name!r} has no axis for the batch")
            outputs[name] = batch
    except NotProvenError as reason:
        where = "" if node is None else f"{node_name(node)} ({node.op_type})"
        return BatchProof(inputs, {}, str(reason), where)
    except TvmflowError as error:
        # The compilation itself reports an error of the model.
        return BatchProof(inputs, {}, f"the model has no other batches: {error.message}")
    return BatchProof(inputs, outputs)


def _batches_of_inputs(small: Shapes, large: Shapes) -> dict[str, Batch]:
    found = {}
    for name, shape in small.items():
        pairs = zip(shape, large[name], strict=True)
        axes = [axis for axis, (a, b) in enumerate(pairs) if a != b]
        if len(axes) > 1:
            raise NotProvenError(f"the input {name!r} has the batch on several axes")
        if axes:
            found[name] = Batch(axes[0])
    return found


def _follow(values: BatchFacts, node: onnx.NodeProto) -> None:
    """Note the batches of a node's results, or the kinds of their numbers."""
    results = [name for name in node.output if name]
    given = [values.aliases.get(name, name) for name in reads(node) if name]
    if node.op_type in ("Identity", "Dropout") and not node.domain:
        if node.op_type == "Dropout" and len(node.input) > 2 and node.input[2]:
            raise NotProvenError("it may be random")
        values.aliases[node.output[0]] = given[0]
        if given[0] in values.batches:
            values.batches |= dict.fromkeys(results[1:], values.batches[given[0]])
        return
    batched = any(name in values.batches for name in given)
    if not batched and not any(values.kinds[n].any() for n in given if n in values.kinds):
        return
    c = Node(values, node)
    if node.domain:
        raise NotProvenError("it is a custom operator")
    if node.op_type in ("Shape", "Size") and batched:
        values.kinds[results[0]] = _kinds_of_shape(c)
    elif not batched and (kinds := _kinds_of_numbers(c)) is not None:
        values.kinds[results[0]] = kinds
    else:
        for name, batch in zip(node.output, batches_of_results(c), strict=False):
            if name:
                _check_shapes(values.shape(name), values.shape(name, 1), batch)
                values.batches[name] = batch


def _check_shapes(small: Sequence[int], large: Sequence[int], batch: Batch) -> None:
    """Compare the batch of a result with the result's shapes at both batches."""
    for size, shape in ((2, small), (3, large)):
        expected = list(small)
        expected[batch.axis : batch.axis + 1] = [size * batch.each]
        if list(shape) != expected:
            raise NotProvenError(
                f"its result is {list(small)} for a batch of 2 and {list(large)} for one of 3"
            )


# -- numbers computed from shapes ------------------------------------------------------------------


def _kinds_of_shape(c: Node) -> np.ndarray:
    batch = c.main()
    if c.node.op_type == "Size":
        return np.array(MULTIPLE)
    kinds = np.full(c.rank(), FREE)
    kinds[batch.axis] = MULTIPLE
    return kinds[c.attributes.get("start", 0) : c.attributes.get("end", c.rank())]


#: Operators that only move the numbers of their first input, or of all inputs.
_MOVES = (
    "Cast", "Concat", "Flatten", "Gather", "Reshape", "Slice", "Squeeze", "Transpose", "Unsqueeze",
)  # fmt: skip


def _kinds_of_numbers(c: Node) -> np.ndarray | None:
    """Return the kinds of a node's numbers; ``None`` if it computes others than constants."""
    op_type, constants = c.node.op_type, c.values.graphs[0].constants
    result = constants.get(c.node.output[0])
    if result is None or any(name and name not in constants for name in c.inputs):
        return None
    none = np.zeros(0), np.zeros(0)
    operands = [c.constant(index) if name else none for index, name in enumerate(c.inputs)]
    arrays, kinds = ([operand[part] for operand in operands] for part in (0, 1))
    if op_type in _MOVES:
        moved = len(arrays) if op_type == "Concat" else 1
        if any(kind.any() for kind in kinds[moved:]):
            return np.full(result.shape, DEPENDS)
        if op_type == "Cast" and c.attributes.get("to") == TensorProto.BOOL:
            return np.where(kinds[0] == FREE, FREE, DEPENDS)
        # Two operands of one name have one kind.
        given = {
            name: kinds[n].astype(np.int64) if n < moved else array
            for n, (name, array) in enumerate(zip(c.node.input, arrays, strict=True))
            if name
        }
        try:
            return evaluated(c.node, given, c.opset)[c.node.output[0]].astype(np.int64)
        except Exception as error:
            raise NotProvenError("its numbers cannot be followed") from error
    whole = all(array.dtype.kind in "iu" for array in arrays)
    if op_type in ("Mul", "Div", "Add", "Sub", "Equal") and whole:
        return _kinds_of_arithmetic(op_type, arrays, kinds).reshape(result.shape)
    if op_type == "Where" and not kinds[0].any():
        return np.asarray(np.where(arrays[0] != 0, kinds[1], kinds[2]))
    return None


def _kinds_of_arithmetic(
    op_type: str, arrays: Sequence[Any], kinds: Sequence[np.ndarray]
) -> np.ndarray:
    """Return kinds: a multiple of the batch stays one times a constant, or plus another one."""
    (a, b), (x, y) = (np.broadcast_arrays(*pair) for pair in (arrays, kinds))
    found = np.where((x == FREE) & (y == FREE), FREE, DEPENDS)
    first, second = (x == MULTIPLE) & (y == FREE), (x == FREE) & (y == MULTIPLE)
    if op_type == "Mul":
        found[first | second] = MULTIPLE
    elif op_type == "Div":
        # At a batch of 2 the number is twice what belongs to a sample.
        found[first & (b != 0) & (a % np.where(b == 0, 1, 2 * b) == 0)] = MULTIPLE
    elif op_type in ("Add", "Sub"):
        found[(x == MULTIPLE) & (y == MULTIPLE)] = MULTIPLE
    else:
        # No batch is below one: exporters compare extents with -1.
        found[(first & (a > 0) & (b <= 0)) | (second & (b > 0) & (a <= 0))] = FREE
    return found
