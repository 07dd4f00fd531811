"""Layout pass: convert convolutions and the operators between them to ``NCHW{c}c``.

Before (``c = 16``)::

    lv  : [1, 24, 56, 56]      = R.nn.conv2d(x, W, ...)        x : [1, 96, 56, 56]
    lv1 : [1, 24, 56, 56]      = R.add(lv, b)                  b : [1, 24, 1, 1]
    lv2 : [1, 24, 56, 56]      = R.add(lv1, shortcut)
    gv  : [1, 24]              = R.reshape(R.mean(lv2, [2, 3]), ...)

After::

    lv  : [1, 2, 56, 56, 16]   = R.call_tir(conv2d, (x', W'))  x' : [1, 6, 56, 56, 16]
    lv1 : [1, 2, 56, 56, 16]   = R.add(lv, b')                 b' : [1, 2, 1, 1, 16]
    lv2 : [1, 2, 56, 56, 16]   = R.add(lv1, shortcut')
    lv3 : [1, 2, 1, 1, 16]     = R.mean(lv2, [2, 3])
    gv  : [1, 24]              = R.reshape(R.call_tir(unpack, (lv3,)), ...)

Every variable may exist in two forms, plain and blocked; a form is made for its first reader
and reused.  Operators without a rule read the plain form.  Weights are constants and are
rearranged here, at compile time.  Inputs and outputs of the model are plain, except those that
the application has in blocks (:mod:`.interface`).

A rule (:mod:`.rules`) gets the pass and the old call.  It returns a :class:`Result`; or ``LATER``
for a call that is computed in the plain layout if something reads it; or ``None`` to decline: the
operator then reads and writes plain tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from enum import Enum
from typing import Any

import numpy as np
from tvm import IRModule, relax, te
from tvm.ir import GenericConst

from ...devices.choices import MIXED
from ...devices.presets import WinogradCost
from ...devices.target import Device
from ...ir import blocked
from ...ir.expressions import PRODUCT
from ...ir.half_sums import dtype_of_sums
from ...ir.names import resolve_names
from ...ir.rewriter import Rewriter, constant, constant_array, identifier, op_name, shape_of
from .algorithms import Choice, Convolution, Measured, choose, convolutions
from .interface import BlockedInterface


@dataclass(frozen=True)
class Result:
    """The expression that replaces a call, and whether it is in the blocked layout."""

    expr: relax.Expr
    is_blocked: bool


class Later(Enum):
    """The result of a rule for a call that is emitted only if something reads it."""

    LATER = 0


class _NamingBuilder(relax.BlockBuilder):
    """A builder that names the results of rules after the variable that they rewrite."""

    hint = ""

    def emit(self, expr: relax.Expr, name_hint: str = "") -> relax.Var:
        return super().emit(expr, name_hint or self.hint)


class LayoutPass(Rewriter):
    """Rewriter of ``main``; the rules of single operators are in :mod:`.rules`."""

    def __init__(
        self,
        mod: IRModule,
        device: Device,
        accumulate: str = "fp32",
        interface: BlockedInterface | None = None,
        *,
        algorithms: Mapping[str, str] | None = None,
        aliases: Mapping[str, str] | None = None,
        half: bool = False,
        measured: Callable[[Convolution, bool], Measured | None] | None = None,
        direct: bool = False,
    ):
        super().__init__(mod)
        self.interface = interface or BlockedInterface()
        self.bb = _NamingBuilder(mod)
        self.device = device
        #: Whether tensors are stored in 16 bits.
        self.half = half
        #: Names of the convolutions by their variables.
        self.convolutions = convolutions(mod)
        self.algorithms = resolve_names(
            algorithms or {},
            list(self.convolutions.values()),
            aliases or {},
            table="The algorithms",
            kind="convolution",
            unknown="The algorithms name {!r}, which is no convolution with constant weights",
        )
        #: Returns the fastest algorithm of a convolution, in 16 bits or not, from journals.
        self.measured = measured
        #: Whether convolutions are direct unless another algorithm was requested, which keeps
        #: their weights.
        self.direct = direct
        self.choices: list[Choice] = []
        #: Channels in a block.
        self.block = device.channel_block
        self.accumulate = accumulate
        #: Blocked forms of the old variables; plain forms are in `env`.
        self.blocked_forms: dict[relax.Var, relax.Expr] = {}
        #: Blocked forms whose lanes after the last channel are zeros.
        self.zero_lanes: set[relax.Expr] = set()
        #: Large weights that the graph transposes, by the transposed variable.
        self.transposed: dict[relax.Var, relax.Expr] = {}
        #: Values of the old variables.
        self.definitions: dict[relax.Var, relax.Expr] = {}
        #: Old variables whose values are only emitted if something reads their plain form.
        self.deferred: dict[relax.Var, relax.Expr] = {}
        #: Number of conversions inserted, for tests.
        self.packed = self.unpacked = 0

    def start(self, params: list[relax.Var]) -> None:
        """Store the parameters, which include large weights."""
        self.params = params
        for index in self.interface.inputs:
            old = self.mod["main"].params[index]
            self.blocked_forms[old] = params[index]
            del self.env[old]

    def parameter(self, index: int, old: relax.Var) -> relax.Var:
        """Return the new parameter, in its blocked form if the application has it blocked."""
        new = super().parameter(index, old)
        if index not in self.interface.inputs:
            return new
        shape = blocked.blocked_shape(shape_of(old), self.block)
        return relax.Var(new.name, relax.TensorType(shape, old.ty.dtype))

    def result(self, old: relax.Expr) -> relax.Expr:
        """Return the new result, with the blocked outputs in their blocked forms."""
        if not self.interface.outputs:
            return super().result(old)
        value = old if isinstance(old, relax.Tuple) else self.definitions.get(old)
        while isinstance(value, relax.Var):
            old, value = value, self.definitions.get(value)
        fields = list(value.fields) if isinstance(value, relax.Tuple) else [old]
        results = [
            self._blocked_result(field)
            if index in self.interface.outputs
            else self.substitute(field)
            for index, field in enumerate(fields)
        ]
        return relax.Tuple(results) if isinstance(value, relax.Tuple) else results[0]

    def _blocked_result(self, expr: relax.Expr) -> relax.Expr:
        """Return the blocked form of an output, with all blocks and lanes."""
        if isinstance(expr, relax.Var):
            form = self.blocked(expr)
            if shape_of(form) == blocked.blocked_shape(shape_of(expr), self.block):
                return form
        return self.emit("pack", blocked.pack, self.substitute(expr), self.block, pattern=None)

    def algorithm(self, convolution: Convolution, dtype: np.dtype) -> str:
        """Choose an algorithm for the convolution that is being rewritten."""
        half = self.half or dtype.itemsize == 2
        asked = self.algorithms.get(self.node) or ("direct" if self.direct else None)
        known = self.measured(convolution, half) if self.measured is not None else None
        sums = self.accumulate == "fp16"
        device = self.device
        if self.accumulate == MIXED:
            # Costs are relative to multiply-adds of the direct schedule, which are half as
            # expensive here; Winograd's products stay in fp32 (`tvmflow.codegen.chunked_sums`).
            facts = {name: 2 * value for name, value in asdict(device.winograd).items()}
            device = replace(device, winograd=WinogradCost(**facts))
        choice = choose(self.node, convolution, device, asked, half, sums, known)
        self.choices.append(choice)
        return choice.algorithm

    def emit(
        self,
        name: str,
        compute: Callable[..., te.Tensor],
        *arguments: object,
        pattern: int | None = PRODUCT,
        **options: object,
    ) -> relax.Var:
        """Emit a primary function of this name, which TVM fuses as ``pattern`` says."""
        attributes = None if pattern is None else {"op_pattern": pattern}
        return self.bb.emit_te(
            compute, *arguments, **options, primfunc_name_hint=name, primfunc_attrs=attributes
        )

    def is_blocked(self, expr: relax.Expr) -> bool:
        """Return whether the blocked form of an old expression exists already."""
        return expr in self.blocked_forms

    def plain(self, var: relax.Var) -> relax.Expr:
        """Return the plain form, converted from the blocked one at its first use."""
        if var in self.deferred:
            value = self.substitute(self.deferred.pop(var))
            self.env[var] = self.bb.emit(value, name_hint=identifier(var.name))
        elif var in self.blocked_forms and var not in self.env:
            source, channels = self.blocked_forms[var], shape_of(var)[1]
            self.unpacked += 1
            name = f"{identifier(var.name)}_plain"
            self.env[var] = self.emit(
                "unpack", blocked.unpack, source, channels, pattern=None, name_hint=name
            )
        return self.env.get(var, var)

    def blocked(self, expr: relax.Expr) -> relax.Expr:
        """Return the blocked form of an old expression of rank 4, converted at its first use."""
        array = constant_array(expr)
        if array is not None:
            return constant(blocked.block_constant(array, self.block))
        if expr not in self.blocked_forms:
            self.blocked_forms[expr] = self.pack(self.plain(expr), expr)
        return self.blocked_forms[expr]

    def existing(self, expr: relax.Expr) -> relax.Expr:
        """Return the blocked form of an old expression if it exists already, else the plain one."""
        return self.blocked(expr) if self.is_blocked(expr) else self.substitute(expr)

    def plain_as(self, expr: relax.Expr, shape: tuple[int, ...]) -> relax.Expr:
        """Return the plain form of an old expression, in another shape of the same elements."""
        plain = self.substitute(expr)
        return plain if shape_of(expr) == shape else self.bb.emit(relax.op.reshape(plain, shape))

    def blocked_as(self, expr: relax.Expr, shape: tuple[int, ...]) -> relax.Expr:
        """Return the blocked form of an old expression of less than four axes, as ``shape``."""
        if shape_of(expr) == shape:
            return self.blocked(expr)
        return self.pack(self.plain_as(expr, shape), expr)

    def pack(self, plain: relax.Expr, var: relax.Var) -> relax.Expr:
        """Emit the conversion of a plain tensor to blocks, named after an old variable."""
        self.packed += 1
        name = f"{identifier(var.name)}_blocked"
        packed = self.emit("pack", blocked.pack, plain, self.block, pattern=None, name_hint=name)
        self.zero_lanes.add(packed)
        return packed

    def is_parameter(self, expr: relax.Expr) -> bool:
        """Return whether ``expr`` is an unchanged input or large weight of the model."""
        return any(self.env.get(expr, expr).same_as(p) for p in self.params)

    def rewrite(self, var: relax.Var, value: relax.Expr) -> relax.Expr | None:
        """Apply the operator's rule; without one it reads and writes plain tensors."""
        transposes = op_name(value) == "relax.permute_dims" and len(shape_of(var)) == 2
        if transposes and self.is_parameter(value.args[0]):
            self.transposed[var] = self.substitute(value.args[0])
        self.definitions[var] = value
        is_result = var.same_as(self.mod["main"].body.body)
        if self.interface.outputs and is_result and isinstance(value, relax.Tuple | relax.Var):
            return None  # `result` handles the tuple: some of its fields are read in blocked form
        rule = RULES.get(op_name(value) or "")
        self.bb.hint, self.node = identifier(var.name), self.convolutions.get(var, "")
        result = rule(self, value) if rule is not None else None
        if result is Later.LATER:
            self.deferred[var] = value
            return None
        if result is None:
            return self.substitute(value)
        if result.is_blocked:
            expr = result.expr
            if not isinstance(expr, (relax.Var, GenericConst)):
                expr = self.bb.emit(expr, name_hint=identifier(var.name))
            self.blocked_forms[var] = expr
            return None
        return result.expr

    def sums(self, call: relax.Call, length: int, weight: np.ndarray | None = None) -> str | None:
        """Return how a call's products are added, as `.dtype_of_sums` does.

        ``length`` is the number of products in a sum with constant weights, or of elements in a sum
        without weights; the first axis of ``weight`` is its output channels.
        """
        if str(call.ty.dtype) != "float32":
            return None
        return dtype_of_sums(self.accumulate, length, weight)

    def emit_blocked(
        self, name: str, compute: Callable[..., te.Tensor], *arguments: object, **options: Any
    ) -> Result:
        """Emit a primary function whose result is blocked."""
        return Result(self.emit(name, compute, *arguments, **options), True)

    def constant(self, array: np.ndarray | np.generic) -> relax.Expr:
        """Return a new constant of at least one axis: TVM embeds scalars into functions."""
        return constant(np.atleast_1d(array))


Rule = Callable[[LayoutPass, relax.Call], Result | Later | None]

#: Rules by operator.
RULES: dict[str, Rule] = {}


def rule(*operators: str) -> Callable[[Rule], Rule]:
    """Register a function as the rule of operators."""

    def register(function: Rule) -> Rule:
        RULES.update(dict.fromkeys(operators, function))
        return function

    return register


def is_float(expr: relax.Expr) -> bool:
    """Return whether a tensor has floating-point elements."""
    return str(expr.ty.dtype).startswith("float")
