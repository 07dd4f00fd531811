"""Algorithms of convolutions: direct, matrix product (GEMM), or Winograd.

The matrix product is for CUDA.  It replaces the direct convolution if its matrices have little
padding (:func:`tvmflow.schedules.gemm.pays`), and with tensor cores also Winograd.  Otherwise a
cost model decides.

The choice is made in the layout pass, because the algorithms are different primary functions
with differently arranged weights.  Costs are in multiply-adds of vectors of ``c`` channels, with
``t`` tiles of ``m×m`` outputs and ``a = m + 2``::

    direct    =  9 * I * O' * H * W
    winograd  =  a*a * I * O' * t * product * idle  +  a*a * t * (I' + O') * tile
                 +  a*a * I * O' * weight  +  2 * launch

The factors are facts of the device (:class:`tvmflow.devices.presets.WinogradCost`):

- ``product``: a multiply-add of the products, relative to one of the direct schedule;
- ``tile``: writing, reading and transforming a vector of a transformed tile;
- ``weight``: reading one transformed weight, of which there are 16 or 36 for 9;
- ``launch``: a launch, of which there are two more.

``idle`` counts waves: on a GPU, how many times more work-items would keep it busy than the products
have.  Direct convolutions with few outputs split their sums over more work-items.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass

from tvm import IRModule, relax

from ...devices.choices import ALGORITHMS, DIRECT, GEMM, WINOGRAD
from ...devices.target import Device
from ...errors import CompileError
from ...ir.blocked import blocks_of
from ...ir.half_sums import fits_half
from ...ir.rewriter import constant_array, ints, op_name, shape_of
from ...ir.signatures import bindings_of
from ...runtime.json_types import JsonObject
from ...schedules import gemm
from ...schedules.conv2d import FEW_ITEMS
from ...schedules.winograd import TAPS, tiles

logger = logging.getLogger(__name__)

#: Largest cost of Winograd relative to the direct convolution: it takes three launches, more
#: memory, and rounds more, which small gains do not justify.
WORTH = 0.9


@dataclass(frozen=True)
class Convolution:
    """Facts of a convolution that the choice depends on."""

    batch: int
    inputs: int
    outputs: int
    #: Height and width of the output.
    height: int
    width: int
    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int
    #: Whether all weights are finite in 16 bits.
    fits_half: bool = True
    padding: tuple[int, ...] = (0, 0, 0, 0)

    @classmethod
    def of(cls, call: relax.Call) -> Convolution:
        """Return the facts of a call of ``relax.nn.conv2d``."""
        weight = constant_array(call.args[1])
        batch, outputs, height, width = shape_of(call)
        _, inputs, *kernel = shape_of(call.args[1])
        return cls(
            *(batch, inputs, outputs, height, width),
            kernel=ints(kernel),
            strides=ints(call.attrs.strides),
            dilation=ints(call.attrs.dilation),
            groups=int(call.attrs.groups),
            fits_half=weight is None or fits_half(weight),
            padding=ints(call.attrs.padding),
        )


@dataclass(frozen=True)
class Choice:
    """A convolution's algorithm, with the reason for it."""

    convolution: str
    algorithm: str
    reason: str
    #: Whether the user requested the algorithm.
    asked: bool
    layer: Convolution
    #: Whether the convolution's tensors are stored in 16 bits.
    half: bool
    #: Algorithms that can compute the convolution.
    possible: tuple[str, ...]

    def report(self) -> JsonObject:
        """Return the choice as JSON, for the module's metadata."""
        names = ("convolution", "algorithm", "asked", "reason")
        return {name: getattr(self, name) for name in names}

    def __str__(self) -> str:
        return f"{self.convolution}  {self.algorithm}  {self.reason}"


@dataclass(frozen=True)
class Measured:
    """An algorithm that was measured to be the fastest."""

    algorithm: str
    #: Journal and record that the result comes from, for reports.
    origin: str


def impossible(
    convolution: Convolution, algorithm: str, device: Device, half: bool, half_sums: bool = False
) -> str | None:
    """Return why an algorithm cannot compute a convolution; ``None`` if it can.

    ``half`` means that tensors are stored in 16 bits, ``half_sums`` that sums are in 16 bits too.
    """
    if algorithm == DIRECT:
        return None
    if algorithm == GEMM:
        return _no_product(convolution, device, half)
    for value, wanted, what in (
        (convolution.kernel, (TAPS, TAPS), "a {}×{} window"),
        (convolution.strides, (1, 1), "strides of {} and {}"),
        (convolution.dilation, (1, 1), "dilations of {} and {}"),
    ):
        if value != wanted:
            return f"it has {what.format(*value)}"
    if convolution.groups > 1:
        return f"it has {convolution.groups} groups"
    if half_sums:
        return "its sums are in 16 bits, and differences of such sums are too coarse"
    if half and algorithm == "winograd4":
        return (
            "its transformed tiles would be stored in 16 bits and lose 3 of the 11 digits, "
            "more than the tolerance of an operator"
        )
    return None


def _no_product(convolution: Convolution, device: Device, half: bool) -> str | None:
    """Return why a convolution cannot be a product of matrices; ``None`` if it can be."""
    gpu = device.multiprocessors
    if gpu is None:
        return "its schedules are for the target cuda"
    if half and not gpu.tensor_cores:
        return "the GPU has no tensor cores"
    if half and not convolution.fits_half:
        return "a weight is beyond the largest number of 16 bits"
    if convolution.groups > 1:
        return f"it has {convolution.groups} groups"
    return None


def cost(convolution: Convolution, algorithm: str, device: Device) -> float:
    """Return the cost of an algorithm by the formula above."""
    c = convolution
    outputs = blocks_of(c.outputs, device.channel_block)
    if algorithm == DIRECT:
        window = c.kernel[0] * c.kernel[1]
        return float(c.batch * window * c.inputs * outputs * c.height * c.width)
    m = WINOGRAD[algorithm]
    points = (m + TAPS - 1) ** 2
    count = c.batch * tiles(c.height, m) * tiles(c.width, m)
    blocks = blocks_of(c.inputs, device.channel_block) + outputs
    facts, idle = device.winograd, 1.0
    if not device.is_cpu:
        idle = max(1.0, FEW_ITEMS * device.convolution.vectors / (points * outputs * count))
    each_point = (
        c.inputs * outputs * count * facts.product * idle
        + count * blocks * facts.tile
        + c.inputs * outputs * facts.weight
    )
    return points * each_point + 2 * facts.launch


def choose(
    name: str,
    convolution: Convolution,
    device: Device,
    asked: str | None,
    half: bool,
    half_sums: bool = False,
    measured: Measured | None = None,
) -> Choice:
    """Choose the requested algorithm, else the one measured to be fastest, else the cheapest.

    Raises ``CompileError`` if the requested algorithm cannot compute the convolution.
    """
    reasons = {a: impossible(convolution, a, device, half, half_sums) for a in ALGORITHMS}
    if asked is not None:
        if (no := reasons[asked]) is not None:
            raise CompileError(
                f"The algorithm {asked} was asked for the convolution {name}, but {no}.",
                remedy="Leave it out of the algorithms, or ask for direct"
                + (", or compile with `dtype=fp32`." if "16 bits" in no else "."),
            )
        algorithm, reason = asked, "asked for"
    elif measured is not None and reasons.get(measured.algorithm, "unknown") is None:
        algorithm, reason = measured.algorithm, f"journal ({measured.origin})"
    else:
        if measured is not None:
            no = reasons.get(measured.algorithm, "there is no such algorithm")
            logger.info("%s of %s for %s: %s", measured.algorithm, measured.origin, name, no)
        algorithm, reason = _cheapest(convolution, device, half, reasons)
    possible = tuple(a for a, no in reasons.items() if no is None)
    return Choice(name, algorithm, reason, asked is not None, convolution, half, possible)


def _cheapest(
    convolution: Convolution, device: Device, half: bool, reasons: Mapping[str, str | None]
) -> tuple[str, str]:
    """Return the cheapest algorithm and the reason; ``reasons`` say which are impossible."""
    c = convolution
    # With fewer input channels than a block most lanes are empty, which only tensor cores make up
    # for.
    wide, taps = half or c.inputs >= device.channel_block, c.kernel[0] * c.kernel[1]
    pays = wide and gemm.pays(
        c.batch * c.height * c.width, c.outputs, taps * c.inputs,
        whole=taps * blocks_of(c.inputs, device.channel_block) * device.channel_block,
        full=gemm.FULL_HALF if half else gemm.FULL,
    )  # fmt: skip
    product = reasons[GEMM] is None and pays
    if product and half:
        return GEMM, "tensor cores multiply its matrices"
    able = [a for a, no in reasons.items() if no is None and a != GEMM]
    costs = {a: cost(convolution, a, device) for a in able}
    best = min(costs, key=lambda a: costs[a])
    if costs[best] > WORTH * costs[DIRECT]:
        best = GEMM if product else DIRECT
    if len(costs) == 1 and product:
        return GEMM, "its matrices are little more than the layer's own"
    if len(costs) == 1:
        return best, str(reasons["winograd2"])
    text = ", ".join(f"{a} {value / costs[DIRECT]:.2f}" for a, value in costs.items())
    return best, f"cost of {text}"


def convolutions(mod: IRModule) -> dict[relax.Var, str]:
    """Return node names of the convolutions with constant weights, by their variables.

    Intermediate results of a node are called ``NODE_1`` and so on: a convolution whose bias is
    added has the name of the sum.
    """
    bindings = bindings_of(mod["main"])
    found = {
        binding.var: str(binding.var.name)
        for binding in bindings
        if op_name(binding.value) == "relax.nn.conv2d"
        and constant_array(binding.value.args[1]) is not None
    }
    for binding in bindings:
        if op_name(binding.value) == "relax.add" and binding.value.args[0] in found:
            part = binding.value.args[0]
            if re.fullmatch(re.escape(binding.var.name) + r"_\d+", found[part]):
                found[part] = str(binding.var.name)
    return found
