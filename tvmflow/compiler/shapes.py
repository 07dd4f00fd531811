"""Several shapes in one module: what the compilations of its variants share, and how they merge.

Each variant goes through the stages on its own.  After "weights" equal weights become one, and
primary functions get names that no other variant has for another function; equal ones share a
name, and so knobs, schedule and code.  After "lower" all are one program for "build"::

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
from ..frontend.expand_shapes import Expansion, is_open
from ..frontend.load import expand_shapes
from ..frontend.source import Source, open_model
from ..graph.memory import shared_sizes
from ..ir.names import nodes_of_functions, unique, with_renamed_functions
from ..module.weights import content_digest
from .compilation import Attempt, Compilation
from .loops import with_bodies, with_loops
from .scheduling import log_journal_hits


def check_results(first: Compilation, other: Compilation) -> None:
    """Raise ``ShapeError`` if results have other ranks for some shapes: callers have one kind."""
    for here, there in zip(first.model.outputs, other.model.outputs, strict=True):
        if len(here.shape) != len(there.shape) or here.dtype != there.dtype:
            raise ShapeError(
                f"The output {here.name!r} is {here.dtype}{list(here.shape)} for one of the shapes "
                f"and {there.dtype}{list(there.shape)} for another; expected as many axes for all.",
                remedy="Give a Squeeze in the model its axes, or compile several modules.",
            )


def expand_variants(job: Compilation) -> list[Compilation]:
    """The compilations of a job's variants, none if it has one shape; the model is read once.

    With several batches, the job gets the verdict on whether they may be computed in parts.

    Raises ``ShapeError`` if the shapes asked for are none of the model's, or too many, and
    `CompileError` if another option does not go with several of them.
    """
    options = job.options
    if not is_open(options.shapes, options.at):
        return []
    source = apply_options(open_model(job.source), vars(options))
    expansion = expand_shapes(source, options.shapes, options.extents_by_input)
    if len(expansion.variants) == 1:
        job.options = replace(options, shapes=dict(expansion.variants[0]), at={})
        return []
    if options.cuda_graph:
        raise CompileError(
            f"A CUDA graph was asked for, and {len(expansion.variants)} shapes; a graph keeps the "
            "addresses of one.",
            remedy="Compile without `cuda_graph`, or a module of each shape.",
        )
    job.batch = _proof(source, expansion)
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


def _proof(source: Source, expansion: Expansion) -> BatchProof | None:
    return prove_independence(source, expansion.probes) if expansion.probes else None


def kept_apart(job: Compilation, proof: BatchProof) -> BatchProof:
    """The verdict, where inputs and outputs keep a blocked layout: its batch is outermost."""
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
    """Weights of all variants, those of equal content once."""

    weights: dict[str, np.ndarray] = field(default_factory=dict)
    scopes: dict[str, str] = field(default_factory=dict)
    _known: dict[tuple[object, ...], str] = field(default_factory=dict)
    _taken: set[str] = field(default_factory=set)

    def add(self, each: Compilation) -> None:
        """Take a variant's weights in, and leave it arrays and names of the pool."""
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
    """Names of the primary functions of all variants, equal ones once."""

    _functions: dict[str, tuple[tirx.PrimFunc, TargetSpec]] = field(default_factory=dict)
    _by_hash: dict[int, list[str]] = field(default_factory=dict)
    _taken: set[str] = field(default_factory=lambda: {"main"})

    def rename(self, each: Compilation) -> None:
        """Give the functions of a variant names that mean the same in all variants."""
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
        # What the target prefers decides on schedules.
        return its_target == target and bool(tvm_ffi.structural_equal(known, function))


def _nameless(function: relax.Function | tirx.PrimFunc) -> relax.Function | tirx.PrimFunc:
    """A function without its name: functions that were renamed have it as an attribute."""
    return function.without_attr("global_symbol")


def merged(mods: Mapping[str, IRModule]) -> IRModule:
    """One program of several, by the names that their functions ``main`` shall have."""
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
            # The same function has another variable in each program.
            changed = tvm_ffi.structural_map(function, (GlobalVar, lambda v: names[v.name_hint]))
            if "global_symbol" in (function.attrs or {}):
                changed = changed.with_attr("global_symbol", var.name_hint)
            functions[var] = changed
    return IRModule(functions, attrs=first.attrs, global_infos=first.global_infos)


# -- stages from "schedule" on --------------------------------------------------------------


def parts(job: Compilation) -> Sequence[Compilation]:
    """What goes through the stages up to "lower": the variants, or a job of one shape itself.

    Behind each the bodies of its loops.
    """
    return [part for each in job.variants for part in with_bodies(each)] or [job]


def begin_schedules(job: Compilation, attempt: Attempt | None = None) -> None:
    """Keep the programs before they are scheduled; or, with ``attempt``, begin there again."""
    for each in parts(job):
        if attempt is None:
            each.unscheduled = each.mod
        else:
            each.attempt, each.mod = attempt, each.unscheduled
    if job.variants:
        job.attempt = attempt or job.attempt
        job.unscheduled = merged({each.entry: each.unscheduled for each in parts(job)})


def merge_schedules(job: Compilation) -> None:
    """Collect the choices for all functions, and the functions with them."""
    each_part = parts(job)
    job.schedules = {n: s for each in reversed(each_part) for n, s in each.schedules.items()}
    job.scheduled = merged({each.entry: each.scheduled for each in each_part})
    job.half_sums = sorted({length for each in each_part for length in each.half_sums})
    log_journal_hits(job.attempt, job.schedules)


def share_memory(job: Compilation) -> None:
    """Let the blocks of all variants be of the same sizes, for plans that are made anew."""
    plans = [each.memory for each in job.variants]
    sizes, job.shared_bytes = shared_sizes(plans)
    for each, own in zip(job.variants, sizes, strict=True):
        each.mod, each.allocation_sizes = each.scheduled, own


def merge_lowered(job: Compilation) -> None:
    """Make one program of those of the variants and of their loops."""
    job.mod = merged({each.entry: each.mod for each in parts(job)})
    if any(each.bodies for each in job.variants):
        job.mod = with_loops(job.mod, job.variants)


def nodes_by_function(job: Compilation) -> dict[str, list[str]]:
    """ONNX nodes of each primary function, for messages."""
    found: dict[str, list[str]] = {}
    for each in parts(job):
        for name, nodes in nodes_of_functions(each.unscheduled, each.nodes).items():
            found[name] = list(dict.fromkeys([*found.get(name, []), *nodes]))
    return found
