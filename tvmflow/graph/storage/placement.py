"""Decisions of the storage pass, and their application to ``main`` and its functions.

A tensor that is a buffer for some functions and a texture for others is copied once, by a
primary function.  Before, with ``x`` an input of the model in the blocked layout::

    y = R.call_tir(conv2d, (x, w))         z = R.call_tir(depthwise, (x, v))

After::

    x_texture = R.call_tir(copy, (x,))     copy(x: buffer, y: scope "global.texture:p2")
    y = R.call_tir(conv2d, (x_texture, w))
    z = R.call_tir(depthwise, (x_texture, v))
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Literal

from tvm import IRModule, relax, te, tirx

from ...ir.expressions import substitute_vars
from ...ir.rewriter import with_bindings, with_body, with_main
from ...ir.scope import Stored
from ...ir.signatures import called_function, takes_textures, with_scopes
from ...runtime.json_types import JsonObject
from .uses import Uses, key

#: Kinds of reasons for a decision.
Cause = Literal["asked", "override", "cost", "limits", "no images", "layout", "obstacle", "copy"]


@dataclass(frozen=True)
class Placement(Stored):
    """The storage of one tensor, and the reason for it."""

    tensor: str
    shape: tuple[int, ...]
    dtype: str
    #: Memory scope; ``None`` is a buffer of its dtype.
    scope: str | None
    reason: str
    cause: Cause = "asked"
    #: Whether the tensor is a weight, not computed by the network.
    constant: bool = False

    def report(self) -> JsonObject:
        """Return the decision as JSON, for the module's metadata."""
        return asdict(self) | self.place()


def table(placements: Sequence[Placement]) -> list[str]:
    """Return one line for each decision, in aligned columns."""
    rows = [("tensor", "shape", "dtype", "storage", "image", "why")]
    for p in placements:
        shape = "×".join(map(str, p.shape)) or "scalar"
        image = "" if p.extent is None else str(p.extent)
        rows.append((p.tensor, shape, p.stored_as, p.storage, image, p.reason))
    widths = [max(len(row[column]) for row in rows) for column in range(5)]
    return [
        "  ".join([*(cell.ljust(w) for cell, w in zip(row[:5], widths, strict=True)), row[5]])
        for row in rows
    ]


@dataclass(frozen=True)
class Sides:
    """Placements of a tensor and, if it has one, of its copy.

    A tensor without a placement is a buffer that is not reported.
    """

    own: Placement | None
    copy: Placement | None = None


@dataclass
class Retarget:
    """Rewriter of ``main`` and of its functions' signatures."""

    #: The module to rewrite, and its tensors.
    mod: IRModule
    uses: Uses
    #: Placements of the tensors, by key.
    sides: Mapping[Hashable, Sides]
    #: Indices of the results that are textures.
    textures: Collection[int]

    def __post_init__(self) -> None:
        self.builder = relax.BlockBuilder(IRModule({}, attrs=self.mod.attrs))
        #: New functions by the original function's name and the scopes of the parameters.
        self.variants: dict[tuple[str, tuple[str | None, ...]], relax.GlobalVar] = {}
        #: Copies inserted so far, by the tensor's key.
        self.copies: dict[Hashable, relax.Var] = {}
        #: New bindings that replace the current binding.
        self.made: list[relax.Binding] = []

    def run(self) -> IRModule:
        """Return the rewritten module."""
        main = with_bindings(self.mod["main"], self._rewritten)
        self.made = []
        result = self._side(main.body.body, texture=0 in self.textures)
        blocks = list(main.body.blocks)
        if self.made:
            last = blocks.pop() if blocks else relax.DataflowBlock([])
            blocks.append(type(last)([*last.bindings, *self.made]))
        return with_main(self.mod, with_body(main, blocks, result), self.builder.get())

    def _rewritten(self, binding: relax.Binding) -> list[relax.Binding]:
        """Return the new binding, after the copies that it reads."""
        self.made = []
        self.made.append(self._retarget(binding))
        # Copy a texture that is later read as a buffer now, so that its memory can be reused.
        self._side(binding.var, texture=False)
        return self.made

    def _retarget(self, binding: relax.Binding) -> relax.Binding:
        """Return the same call, of the function with the signature that the placements require."""
        if self.uses.is_result(binding):
            fields = [
                self._side(field, texture=index in self.textures)
                for index, field in enumerate(self.uses.results)
            ]
            value = relax.Tuple(fields) if isinstance(binding.value, relax.Tuple) else fields[0]
            return relax.VarBinding(binding.var, value)
        call = called_function(self.mod, binding.value)
        if call is None:
            return self._plain(binding)
        function, arguments = call
        texture = takes_textures(function)
        arguments = [self._side(argument, texture=texture) for argument in arguments]
        scopes = [
            self._scope(argument, old) for argument, old in zip(arguments, call[1], strict=True)
        ]
        # Functions with several results: their results are not placed one by one and stay buffers.
        scopes += [self._scope(binding.var)] * (len(function.params) - len(scopes))
        old = binding.value
        callee = self._variant(function, old.args[0].name_hint, scopes)
        new = relax.Call(old.op, [callee, relax.Tuple(arguments)], old.attrs, old.ty_args)
        return relax.VarBinding(binding.var, new)

    def _plain(self, binding: relax.Binding) -> relax.Binding:
        """Return a view or a tuple with buffers as operands."""
        used = relax.analysis.free_vars(binding.value)
        replaced = {var: self._side(var, texture=False) for var in used}
        if all(side.same_as(var) for var, side in replaced.items()):
            return binding
        return relax.VarBinding(binding.var, substitute_vars(binding.value, replaced))

    def _side(self, expr: relax.Expr, *, texture: bool) -> relax.Expr:
        """Return a tensor as a texture or a buffer; insert its copy at the first use."""
        sides = self.sides.get(key(expr))
        copy = None if sides is None else sides.copy
        if copy is None or (copy.storage == "texture") != texture:
            return expr
        if key(expr) not in self.copies:
            x = te.placeholder(copy.shape, copy.dtype, "x")
            y = te.compute(copy.shape, lambda *indices: x[indices], name="y")
            copying = te.create_prim_func([x, y]).without_attr("global_symbol")
            callee = self._variant(copying, f"copy{copy.shape}", [self._scope(expr), copy.scope])
            # A plain Var, not a DataflowVar: it may be a result of `main`.
            var = self.copies[key(expr)] = relax.Var(copy.tensor, expr.ty)
            self.made.append(relax.VarBinding(var, relax.call_tir(callee, [expr], expr.ty)))
        return self.copies[key(expr)]

    def _variant(
        self, function: tirx.PrimFunc, name: str, scopes: list[str | None]
    ) -> relax.GlobalVar:
        variant = (name, tuple(scopes))
        if variant not in self.variants:
            hint = name.partition("(")[0]
            self.variants[variant] = self.builder.add_func(with_scopes(function, scopes), hint)
        return self.variants[variant]

    def _scope(self, expr: relax.Expr, old: relax.Expr | None = None) -> str | None:
        """Return the scope of a tensor, or of the copy that replaces the tensor ``old``."""
        sides = self.sides.get(key(expr if old is None else old))
        if sides is None:
            return None
        side = sides.own if old is None or expr.same_as(old) else sides.copy
        return None if side is None else side.scope
