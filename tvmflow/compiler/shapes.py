"""Compile several shapes into one module: share weights and functions, merge the programs.

Each shape is a variant with its own compilation.  After the stage "weights", equal weights are
stored once.  Equal primary functions get one name in all variants, and thus the same knobs,
schedule and code; others get different names.  After "lower" the programs are merged into one for
"build"::

    variant 0                 variant 1                 the program
    main, f, g                main, f, g'               main, main_1, f, g, g_1
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import tvm_ffi
from tvm import IRModule, relax, tirx
from tvm.ir import GlobalVar

from ..devices.target import TargetSpec
from ..errors import CompileError, ShapeError
from ..frontend.apply_options import apply_options
from ..frontend.batch import BatchProof, prove_independence
from ..frontend.expand_shapes import expand, is_open
from ..frontend.source import open_model
from ..graph.memory import shared_sizes
from ..ir.names import nodes_of_functions, unique, with_renamed_functions
from ..module.weights import content_digest
from .compilation import Attempt, Compilation
from .loops import with_bodies, with_loops
from .scheduling import log_journal_hits


def check_results(first: Compilation, other: Compilation) -> None:
    """Raise ``ShapeError`` if an output's rank or dtype differs between shapes."""
    for here, there in zip(first.model.outputs, other.model.outputs, strict=True):
        if len(here.shape) != len(there.shape) or here.dtype != there.dtype:
            raise ShapeError(
                f"The output {here.name!r} is {here.dtype}{list(here.shape)} for one of the shapes "
                f"and {there.dtype}{list(there.shape)} for another; expected as many axes for all.",
                remedy="Give a Squeeze in the model its axes, or compile several modules.",
            )


def expand_variants(job: Compilation) -> list[Compilation]:
    """Return the compilations of a job's shapes, which share the parsed model; none for one shape.

    If the shapes are several batches, `job.batch` tells whether a batch may be computed in parts.

    Raises ``ShapeError`` if the model cannot have the requested shapes, or they are too many, and
    `CompileError` if another option does not support several shapes.
    """
    options = job.options
    if not is_open(options.shapes, options.at):
        return []
    source = apply_options(open_model(job.source), vars(options))
    expansion = expand(source.inputs, options.shapes, options.extents_by_input)
    if len(expansion.variants) == 1:
        job.options = replace(options, shapes=dict(expansion.variants[0]), at={})
        return []
    if options.cuda_graph:
        raise CompileError(
            f"A CUDA graph was asked for, and {len(expansion.variants)} shapes; a graph keeps the "
            "addresses of one.",
            remedy="Compile without `cuda_graph`, or a module of each shape.",
        )
    job.batch = prove_independence(source, expansion.probes) if expansion.probes else None
    return [
        Compilation(
            job.source,
            replace(options, shapes=dict(shapes), at={}),
            target=job.target,
            parsed=source,
            entry=f"main_{number}" if number else "main",
            is_part=True,
        )
        for number, shapes in enumerate(expansion.variants)
    ]


def check_batch_outermost(job: Compilation, proof: BatchProof) -> BatchProof:
    """Return the proof, or a failed one if a blocked tensor's batch is not outermost."""
    sides = ((job.model.inputs, proof.inputs), (job.model.outputs, proof.outputs))
    for infos, batches in sides:
        for info in infos:
            if info.layout is not None and info.name in batches and batches[info.name].axis:
                reason = f"the batch of {info.name!r} is not outermost in the layout that is kept"
                return replace(proof, outputs={}, reason=reason, node="")
    return proof


# -- weights ------------------------------------------------------------------------------


@dataclass
class WeightPool:
    """Pool of the weights of all variants, in which equal weights are stored once."""

    weights: dict[str, np.ndarray] = field(default_factory=dict)
    scopes: dict[str, str] = field(default_factory=dict)
    _known: dict[tuple[object, ...], str] = field(default_factory=dict)
    _taken: set[str] = field(default_factory=set)

    def add(self, each: Compilation) -> None:
        """Add a variant's weights, and replace its arrays and names by those of the pool."""
        for name, array in each.weights.items():
            scope = each.weight_scopes.get(name)
            key = (array.shape, array.dtype.str, scope, content_digest(array))
            known = self._known.get(key)
            if known is None:
                known = self._known[key] = unique(name, self._taken)
                self.weights[known] = array
                if scope is not None:
                    self.scopes[known] = scope
            each.weights[name] = self.weights[known]
            each.weight_names[name] = known


# -- primary functions ---------------------------------------------------------------------


@dataclass
class FunctionPool:
    """Pool of the primary functions of all variants, in which equal functions share a name."""

    _functions: dict[str, tuple[tirx.PrimFunc, TargetSpec]] = field(default_factory=dict)
    _by_hash: dict[int, list[str]] = field(default_factory=dict)
    _taken: set[str] = field(default_factory=lambda: {"main"})

    def rename(self, each: Compilation) -> None:
        """Rename a variant's functions so that a name means the same function in all variants."""
        renamed: dict[str, str] = {}
        for var, function in each.mod.functions_items():
            if not isinstance(function, tirx.PrimFunc):
                continue
            name = var.name_hint
            plain = _nameless(function)
            key = tvm_ffi.structural_hash(plain)
            same = (n for n in self._by_hash.get(key, ()) if self._is(n, plain, each.target))
            known = next(same, None)
            if known is None:
                known = unique(name, self._taken)
                self._functions[known] = plain, each.target
                self._by_hash.setdefault(key, []).append(known)
            if known != name:
                renamed[name] = known
        each.mod = with_renamed_functions(each.mod, renamed)

    def _is(self, name: str, function: tirx.PrimFunc, target: TargetSpec) -> bool:
        known, its_target = self._functions[name]
        # Schedules depend on the target, too.
        return its_target == target and bool(tvm_ffi.structural_equal(known, function))


def _nameless(function: relax.Function | tirx.PrimFunc) -> relax.Function | tirx.PrimFunc:
    """Return a function without the attribute that holds its name."""
    return function.without_attr("global_symbol")


def merged(mods: Mapping[str, IRModule]) -> IRModule:
    """Merge programs; the keys are the new names of their functions ``main``."""
    names: dict[str, GlobalVar] = {}
    functions: dict[GlobalVar, relax.Function | tirx.PrimFunc] = {}
    for entry, mod in mods.items():
        for var, function in mod.functions_items():
            name = entry if var.name_hint == "main" else var.name_hint
            if name not in names:
                names[name] = GlobalVar(name)
                relax.expr._update_type(names[name], var.ty)
                functions[names[name]] = function
            elif not tvm_ffi.structural_equal(
                _nameless(functions[names[name]]), _nameless(function)
            ):
                raise CompileError(
                    f"Merging the shapes of one module failed: two functions are called {name}.",
                    remedy="Compile a module of each shape, and report the model.",
                )
    first = next(iter(mods.values()))
    for var, function in functions.items():
        if isinstance(function, relax.Function):
            # Each program has its own variables for the same functions.
            changed = tvm_ffi.structural_map(function, (GlobalVar, lambda v: names[v.name_hint]))
            if "global_symbol" in (function.attrs or {}):
                changed = changed.with_attr("global_symbol", var.name_hint)
            functions[var] = changed
    return IRModule(functions, attrs=first.attrs, global_infos=first.global_infos)


# -- stages starting at "schedule" ----------------------------------------------------------


def parts(job: Compilation) -> Sequence[Compilation]:
    """Return the compilations that go through the stages up to "lower" separately.

    These are the variants, each followed by its loops' bodies, or the job itself if it has none.
    """
    return [part for each in job.variants for part in with_bodies(each)] or [job]


def begin_schedules(job: Compilation, attempt: Attempt | None = None) -> None:
    """Save the unscheduled programs; with ``attempt``, restore them for this next attempt."""
    for each in parts(job):
        if attempt is None:
            each.unscheduled = each.mod
        else:
            each.attempt, each.mod = attempt, each.unscheduled
    if job.variants:
        job.attempt = attempt or job.attempt
        job.unscheduled = merged({each.entry: each.unscheduled for each in parts(job)})


def merge_schedules(job: Compilation) -> None:
    """Collect the schedules of all functions, and merge the scheduled programs."""
    each_part = parts(job)
    job.schedules = {n: s for each in reversed(each_part) for n, s in each.schedules.items()}
    job.scheduled = merged({each.entry: each.scheduled for each in each_part})
    job.half_sums = sorted({length for each in each_part for length in each.half_sums})
    log_journal_hits(job.attempt, job.schedules)


def share_memory(job: Compilation) -> None:
    """Set common sizes of allocations, and restore the programs to plan memory again."""
    plans = [each.memory for each in job.variants]
    sizes, job.shared_bytes = shared_sizes(plans)
    for each, own in zip(job.variants, sizes, strict=True):
        each.mod, each.allocation_sizes = each.scheduled, own


def merge_lowered(job: Compilation) -> None:
    """Merge the lowered programs of the variants and of their loops' bodies."""
    job.mod = merged({each.entry: each.mod for each in parts(job)})
    if any(each.bodies for each in job.variants):
        job.mod = with_loops(job.mod, job.variants)


def nodes_by_function(job: Compilation) -> dict[str, list[str]]:
    """Return the ONNX nodes of each primary function, for messages."""
    found: dict[str, list[str]] = {}
    for each in parts(job):
        for name, nodes in nodes_of_functions(each.unscheduled, each.nodes).items():
            found[name] = list(dict.fromkeys([*found.get(name, []), *nodes]))
    return found
