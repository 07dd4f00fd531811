"""How each convolution is computed: directly, as a product of matrices, or by Winograd's algorithm.

A product of matrices is for CUDA, and takes the place of the direct convolution where its
matrices are mostly their own (:func:`tvmflow.schedules.gemm.pays`); with tensor cores also that of
Winograd's.  Else a cost decides.

The choice is made in the layout pass, because the algorithms are different primary functions
with differently arranged weights.  What it costs is compared in multiply-adds of vectors of
``c`` channels, with ``t`` tiles of ``m×m`` outputs and ``a = m + 2``::

    direct    =  9 * I * O' * H * W
    winograd  =  a*a * I * O' * t * product  +  a*a * t * (I' + O') * tile  +  a*a * I * O' * weight

``product``, ``tile`` and ``weight`` are facts of the device
(:class:`tvmflow.target.WinogradCost`): what a multiply-add of the products costs, relative to
one of the direct schedule; what a vector of a transformed tile costs that is written, read and
transformed; and what one of the transformed weights costs that is read, 16 or 36 for 9.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tvm import relax

from ..errors import CompileError
from ..graph.rewriter import constant_array, identifier, shape_of
from ..schedules import gemm
from ..schedules.winograd import TAPS, tiles
from ..tables import check_values, read_table
from ..target import Device
from .blocked import blocks_of
from .narrow import fits_half

DIRECT = "direct"
#: A product of matrices, :mod:`tvmflow.schedules.gemm`.
GEMM = "gemm"
#: Outputs of a tile in each direction, by algorithm.
WINOGRAD = {"winograd2": 2, "winograd4": 4}
ALGORITHMS = (DIRECT, GEMM, *WINOGRAD)
#: What Winograd's may cost, of the direct one: it takes three launches, more memory, and rounds
#: more, which small gains are not worth.
WORTH = 0.9
_REMEDY = f"Write names of convolutions, each with one of {', '.join(ALGORITHMS)}."


@dataclass(frozen=True)
class Convolution:
    """What the choice depends on."""

    batch: int
    inputs: int
    outputs: int
    #: Of the output.
    height: int
    width: int
    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int
    #: Whether no weight would be infinite in 16 bits.
    fits_half: bool = True

    @classmethod
    def of(cls, call: relax.Call) -> Convolution:
        """Read it off a call of ``relax.nn.conv2d``."""

        def ints(values: Iterable[Any]) -> tuple[int, ...]:
            return tuple(int(value) for value in values)

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
        )


@dataclass(frozen=True)
class Choice:
    """An algorithm, and why."""

    convolution: str
    algorithm: str
    reason: str
    #: Whether the user asked for it.
    asked: bool

    def report(self) -> dict[str, Any]:
        """The choice as JSON, for the module's metadata."""
        return {
            "convolution": self.convolution,
            "algorithm": self.algorithm,
            "asked": self.asked,
            "reason": self.reason,
        }

    def __str__(self) -> str:
        return f"{self.convolution}  {self.algorithm}  {self.reason}"


def impossible(
    convolution: Convolution,
    algorithm: str,
    device: Device,
    half: bool,
    half_sums: bool = False,
) -> str | None:
    """Why an algorithm cannot compute a convolution, or ``None``.

    ``half`` says that tensors are stored in 16 bits, ``half_sums`` that products are added so.
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
    """Why a convolution cannot be a product of matrices, or ``None``."""
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


def _product_pays(convolution: Convolution, device: Device) -> bool:
    c = convolution
    depth = c.kernel[0] * c.kernel[1] * c.inputs
    # Of less than a block of input channels most lanes would be empty.
    wide = c.inputs >= device.channel_block
    return wide and gemm.pays(c.batch * c.height * c.width, c.outputs, depth)


def cost(convolution: Convolution, algorithm: str, device: Device) -> float:
    """The formula above."""
    c = convolution
    outputs = blocks_of(c.outputs, device.channel_block)
    if algorithm == DIRECT:
        window = c.kernel[0] * c.kernel[1]
        return float(c.batch * window * c.inputs * outputs * c.height * c.width)
    m = WINOGRAD[algorithm]
    points = (m + TAPS - 1) ** 2
    count = c.batch * tiles(c.height, m) * tiles(c.width, m)
    blocks = blocks_of(c.inputs, device.channel_block) + outputs
    facts = device.winograd
    return points * (
        c.inputs * outputs * count * facts.product
        + count * blocks * facts.tile
        + c.inputs * outputs * facts.weight
    )


def choose(
    name: str,
    convolution: Convolution,
    device: Device,
    asked: str | None,
    half: bool,
    half_sums: bool = False,
) -> Choice:
    """The algorithm that was asked for, else the one that costs least.

    Raises
    ------
    CompileError
        If the algorithm that was asked for cannot compute the convolution.
    """
    if asked is not None:
        if (reason := impossible(convolution, asked, device, half, half_sums)) is not None:
            raise CompileError(
                f"The algorithm {asked} was asked for the convolution {name}, but {reason}.",
                remedy="Leave it out of the algorithms, or ask for direct"
                + (", or compile with --dtype fp32." if "16 bits" in reason else "."),
            )
        return Choice(name, asked, "asked for", True)
    reasons = {a: impossible(convolution, a, device, half, half_sums) for a in ALGORITHMS}
    product = reasons.pop(GEMM) is None and _product_pays(convolution, device)
    if product and half:
        return Choice(name, GEMM, "tensor cores multiply its matrices", False)
    costs = {a: cost(convolution, a, device) for a, no in reasons.items() if no is None}
    best = min(costs, key=lambda a: costs[a])
    if costs[best] > WORTH * costs[DIRECT]:
        best = GEMM if product else DIRECT
    if len(costs) == 1 and product:
        return Choice(name, GEMM, "its matrices are little more than the layer's own", False)
    if len(costs) == 1:
        return Choice(name, best, str(reasons["winograd2"]), False)
    text = ", ".join(f"{a} {value / costs[DIRECT]:.2f}" for a, value in costs.items())
    return Choice(name, best, f"cost of {text}", False)


# -- what the user asks for ------------------------------------------------------------------


def read_algorithms(path: Path) -> dict[str, str]:
    """Read a file of algorithms: a JSON object, or a TOML table in a file ``*.toml``.

    Raises
    ------
    CompileError
        If the file cannot be read, or is not of that form.
    """
    content = read_table(path, "The algorithms", '{"conv1": "winograd4"}', _REMEDY)
    check_algorithms(content)
    return content


def check_algorithms(algorithms: Mapping[Any, Any]) -> None:
    """Refuse algorithms that do not exist.

    Raises
    ------
    CompileError
        Naming the convolution and what was asked for it.
    """
    check_values(algorithms, ALGORITHMS, "algorithm of the convolution", _REMEDY)


def resolve_algorithms(
    algorithms: Mapping[str, str], convolutions: Iterable[str], aliases: Mapping[str, str]
) -> dict[str, str]:
    """Algorithms by the names of the convolutions that there are.

    Parameters
    ----------
    algorithms
        As the user wrote them.
    convolutions
        Names of the convolutions: those of their nodes.
    aliases
        Names of nodes by those of the tensors that they write.

    Raises
    ------
    CompileError
        If a name is that of no convolution; it lists the nearest.
    """
    known = list(convolutions)
    result: dict[str, str] = {}
    for name, algorithm in algorithms.items():
        found = next((n for n in (name, identifier(name), aliases.get(name)) if n in known), None)
        if found is None:
            names = known + [alias for alias, node in aliases.items() if node in known]
            near = list(dict.fromkeys(difflib.get_close_matches(name, names, n=4, cutoff=0.5)))
            nearest = f"; the nearest are {', '.join(near)}" if near else ""
            raise CompileError(
                f"The algorithms name {name!r}, which is no convolution with constant weights"
                f"{nearest}.",
                remedy="Compile with -v, which prints the name of every convolution.",
            )
        if result.get(found, algorithm) != algorithm:
            raise CompileError(
                f"The algorithms ask for both {result[found]} and {algorithm} for the convolution "
                f"{found}, which {name!r} is another name of.",
                remedy="Name each convolution once.",
            )
        result[found] = algorithm
    return result
