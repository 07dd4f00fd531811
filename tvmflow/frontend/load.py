"""Import of an ONNX model as a Relax module with static shapes."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import onnx
import tvm

from ..errors import TvmflowError, UnsupportedModelError
from ..ir.call_checks import CallCheck
from ..ir.limits import LARGE_WEIGHT_BYTES
from ..ir.names import unique
from ..ir.tensors import SizeLimit, TensorInfo, count_name
from . import expanders  # noqa: F401 (registers them)
from .convert import binding_names, to_relax
from .graph import NOT_TAKEN, Graph, node_name, unsupported
from .index_checks import add_index_checks
from .int4 import keep_nibbles
from .prepare import prepare
from .propagate import call_checks, propagate
from .rewrite import fold_batch_norms, widen
from .source import Source, open_model

logger = logging.getLogger(__name__)


@dataclass
class ImportedModel:
    """A model in Relax, and what the compiler must know about it."""

    #: The file's stem, or the graph's name.
    name: str
    #: Module whose ``main`` takes the inputs in order, then the large weights, and returns a tensor
    #: for one output, else a tuple.  The attribute ``num_input`` counts the inputs.  Bindings are
    #: named after ONNX nodes: ``NODE`` for a node's result, ``NODE#1`` and so on for intermediate
    #: results.
    mod: tvm.IRModule
    #: Inputs and outputs in the model's order, with the model's names.
    inputs: tuple[TensorInfo, ...]
    outputs: tuple[TensorInfo, ...]
    #: Large weights, of at least 128 MiB by default, by parameter name in the parameters' order;
    #: memory-mapped if they come from a file.
    weights: dict[str, np.ndarray]
    #: Names of bindings by the ONNX names of their tensors.
    bindings: dict[str, str] = field(default_factory=dict)
    #: Size of each constant input, and the names of the initializers that it was computed from,
    #: by node.
    initializers: dict[str, list[tuple[int, tuple[str, ...]]]] = field(default_factory=dict)
    #: Checks of custom operators that run at each call.
    call_checks: tuple[CallCheck, ...] = ()
    #: Whether the model was in float16 before it was widened to fp32.
    half: bool = False
    #: The user's bounds for sizes known only at run time, and checks of indices and branches.
    limits: tuple[SizeLimit, ...] = ()
    #: Bodies of its VM loops, by the names that `tvmflow.ir.loops` uses.
    loops: dict[str, ImportedModel] = field(default_factory=dict)


def load_model(
    model: str | os.PathLike[str] | bytes | onnx.ModelProto | Source,
    shapes: Mapping[str, Sequence[int]] | None = None,
    *,
    bounds: Mapping[str, int] | None = None,
    large_weight_bytes: int = LARGE_WEIGHT_BYTES,
    has_machine: bool = True,
    check_indices: bool = False,
    can_check: bool = True,
) -> ImportedModel:
    """Import an ONNX model.

    ``model`` is a path with external data next to it, a serialized model, a model in memory, or one
    that `open_model` has parsed; ``shapes`` gives the shapes of inputs with dynamic dimensions, by
    name, and ``bounds`` the bounds of sizes known only at run time, by node or value.  Weights of
    at least ``large_weight_bytes`` are not loaded but returned as memory-mapped arrays.
    ``has_machine`` states that TVM's virtual machine runs the module, which can run loops.
    ``check_indices`` adds outputs that report indices out of range.  ``can_check`` states that the
    caller of the module checks `ImportedModel.limits`, so that a branch that cannot be computed is
    an error only when it is taken.

    Raises ``ModelError`` if the model cannot be read, is damaged or describes no computation;
    ``ShapeError`` if an input's shape does not become static, or a bound matches no node or value;
    ``UnsupportedModelError``, which lists everything in the model that cannot be compiled.
    """
    source = open_model(model, large_weight_bytes)
    untaken: dict[str, str] = {}
    while True:
        graph = prepare(source, shapes)
        graph.untaken = untaken
        error: TvmflowError | None = None
        try:
            imported = _imported(
                graph, bounds, has_machine=has_machine, check_indices=check_indices
            )
        except TvmflowError as failure:
            error = failure
        problems = [found for each in graph.with_bodies() for found in each.problems]
        if error is None and problems:
            error = unsupported(problems, source.label)
        if error is None:
            return imported
        failed = _failed_branch(graph, error, problems)
        if failed is None:
            raise error
        if not can_check:
            error.remedy = (
                f"{error.remedy} Or bind the input that decides which branch is taken to a "
                "constant (`inputs`)."
            )
            raise error
        for branch, reason in failed.items():
            logger.warning(
                "The branch %r cannot be computed for the compiled shapes (%s). A run that takes "
                "it raises an error.", branch.rstrip("/"), reason,
            )  # fmt: skip
        untaken |= failed


def _imported(
    graph: Graph, bounds: Mapping[str, int] | None, *, has_machine: bool, check_indices: bool
) -> ImportedModel:
    """Import a graph; problems are recorded in it."""
    output_names = list(graph.outputs)
    propagate(graph, bounds, has_machine=has_machine)
    limits = _add_counts(graph, output_names)
    if check_indices:
        limits += add_index_checks(graph, output_names)
    widen(graph)
    return _converted(graph, output_names, limits)


def _failed_branch(
    graph: Graph, error: TvmflowError, problems: Sequence[tuple[str, str, str]]
) -> dict[str, str] | None:
    """Return the branch that an error concerns, and the reason, if the other branch can be taken.

    ::

        y = If(c, then: Reshape(x, [2, 256]),   x[1, 512]: {"y/else/": "node 'y/else/r': ..."}
                  else: Reshape(x, [3, 256]))
    """
    # An operator that is not supported is an error in every branch.
    if not all(reason.startswith(NOT_TAKEN) for _, _, reason in problems):
        return None
    found = [(node, f"node {node!r}: {reason}") for _, node, reason in problems]
    if not found and graph.failed_in is not None:
        found = [(graph.failed_in, error.message.rstrip("."))]
    branches = [graph.branch_of(node) for node, _ in found]
    if not branches or None in branches:
        return None
    branch = str(branches[0])
    return None if graph.branches[branch] in graph.untaken else {branch: found[0][1]}


def _converted(
    graph: Graph, output_names: Sequence[str], limits: tuple[SizeLimit, ...] = ()
) -> ImportedModel:
    """Convert a graph and the bodies of its loops; a graph with problems gets no module."""
    fold_batch_norms(graph)
    keep_nibbles(graph)
    mod, weights = to_relax(graph)
    outputs = []
    for name, value in zip(output_names, graph.outputs, strict=True):
        kind = graph.type_of(value) if value in graph.types or value in graph.constants else None
        if kind is None:
            continue  # its node is refused
        dtype = "float16" if value in graph.half_outputs else kind.dtype
        axis = graph.counts[value][0] if value in graph.counts else None
        outputs.append(TensorInfo(name, kind.shape, dtype, bounded_axis=axis))
    loops = {
        name: _converted(body, [f"output_{index}" for index in range(len(body.outputs))])
        for name, body in graph.loops.items()
    }
    return ImportedModel(
        graph.name, mod, graph.inputs, tuple(outputs), weights,
        binding_names(graph), _initializers(graph),
        () if mod is None else call_checks(graph), half=graph.is_widened,
        limits=limits, loops=loops,
    )  # fmt: skip


def _initializers(graph: Graph) -> dict[str, list[tuple[int, tuple[str, ...]]]]:
    """Return the value of `ImportedModel.initializers`."""
    return {
        node_name(node): [
            (graph.constants[name].size, graph.initializers([name]))
            for name in node.input
            if name in graph.constants
        ]
        for node in graph.nodes
    }


def _add_counts(graph: Graph, names: list[str]) -> tuple[SizeLimit, ...]:
    """Add outputs that report sizes and choices known at run time only; return the limits.

    The names of the added outputs are appended to ``names``.
    """
    counted = list(zip(names, graph.outputs, strict=True))
    counts = {count_name(name): graph.counts[v][1] for name, v in counted if v in graph.counts}
    # For an output that a bound cuts, the size before the bound is returned.
    counts |= {count_name(limit.name): limit.count for limit in graph.limits}
    for name, value in counts.items():
        if name in names:
            raise UnsupportedModelError(
                f"The output name {name!r} is reserved for a size that is known only at run time.",
                remedy="Rename the output.",
            )
        names.append(name)
        graph.outputs.append(value)
    limits = [SizeLimit(count_name(m.name), m.node, m.bound) for m in graph.limits]
    for check in graph.checks:
        name = unique(f"{check.node}.branch", {*names})
        names.append(name)
        graph.outputs.append(check.taken)
        limits.append(SizeLimit(name, check.node, 0, reason=check.reason))
    return tuple(limits)
