"""What the knobs of direct convolutions depend on, and what binds all of their register tiles.

Also for pointwise convolutions (:mod:`.conv2d_1x1`); grouped and transposed ones and Winograd's
product take their input channels together in the same way.
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from math import gcd

from tvm import s_tir

from ..ir.scope import is_half, is_texture
from .common import Workload
from .family import Constraint
from .sharing import CONSTANT_BYTES

#: Block annotation of convolutions with several groups: blocks of output channels of each.
GROUP_BLOCKS = "tvmflow.group_blocks"
#: Where weights can be read.
WEIGHTS = ("direct", "local", "constant")


def input_lanes(inputs: int, block: int) -> int:
    """Input channels of one block that are taken together; they divide all of them."""
    return inputs if inputs < block else gcd(inputs, block)


@dataclass(frozen=True)
class Shape:
    """What the knobs depend on: extents of the loops, and how the input is read."""

    batch: int
    #: Blocks of output channels.
    outputs: int
    height: int
    width: int
    #: Channels of a block.
    lanes: int
    #: Input channels (of a group), and the window.
    inputs: int
    kernel_h: int
    kernel_w: int
    _: KW_ONLY
    padded: bool
    texture: bool
    #: How weights are stored: ``texture``, ``buffer``, or ``half`` in a buffer.
    weights: str
    #: Lanes of a block of the input: fewer than those of the output where each holds four channels.
    input_block: int
    #: Blocks of output channels of a group, where there are several groups; 0 where there is one.
    group_blocks: int = 0

    @classmethod
    def of(cls, workload: Workload, anchor: s_tir.schedule.SBlockRV) -> Shape:
        """Read it off the anchor's loops."""
        padded = workload.padding()
        reads = workload.reads_texture(*((anchor, 0) if padded is None else (padded, 0)))
        extents = workload.extents(anchor)
        sch = workload.sch
        scope = sch.get(anchor).reads[1].source.scope()
        weights = "texture" if is_texture(scope) else "half" if is_half(scope) else "buffer"
        source = sch.get(anchor).reads[0].source
        block = int(source.shape[-1]) if len(source.shape) == 5 else extents[4]
        return cls(
            *extents,
            padded=padded is not None,
            texture=reads,
            weights=weights,
            input_block=block,
            group_blocks=int(workload.annotation(anchor, GROUP_BLOCKS) or 0),
        )

    @property
    def tiled_blocks(self) -> int:
        """Blocks of output channels that a tile divides: those of a group read one input."""
        return self.group_blocks or self.outputs

    @property
    def together(self) -> int:
        """Inputs of one block that are taken together."""
        return input_lanes(self.inputs, self.input_block)

    @property
    def dots(self) -> bool:
        """Whether an input is four channels of 8 bits, which need a register in all lanes."""
        return self.input_block < self.lanes

    @property
    def weight_bytes(self) -> int:
        """Size of the weights as fp32."""
        products = self.outputs * self.lanes * self.inputs * self.kernel_h * self.kernel_w
        return 4 * products

    @property
    def is_pointwise(self) -> bool:
        """Whether the window is a single pixel."""
        return self.kernel_h == self.kernel_w == 1


#: Also of Winograd's products.
TILE_FITS = Constraint(
    "tile_o * tile_h * tile_w vectors must fit the device's registers.",
    lambda k, s, d: k.tile_o * k.tile_h * k.tile_w <= d.accumulators,
)
#: Vector products in an iteration, on a CPU.  Of MobileNetV2's convolutions, 852 trials, the best
#: have up to 56; a driver's compiler takes a second and more for some hundreds.
CPU_PRODUCTS = 112
#: Of register tiles; also those of pointwise convolutions.
TILE_CONSTRAINTS = (
    TILE_FITS,
    Constraint(
        f"On a CPU, tile_o * tile_h * tile_w * unroll_i is at most {CPU_PRODUCTS}.",
        lambda k, s, d: not d.is_cpu or k.tile_o * k.tile_h * k.tile_w * k.unroll_i <= CPU_PRODUCTS,
    ),
    Constraint(
        "tile_o must divide the output blocks of a group and tile_h the rows: "
        "a partial tile there is a test in the hot loop.",
        lambda k, s, d: s.tiled_blocks % k.tile_o == 0 and s.height % k.tile_h == 0,
    ),
    Constraint("tile_w is at most the width.", lambda k, s, d: k.tile_w <= s.width),
    Constraint(
        "unroll_i must divide the input channels that are taken together.",
        lambda k, s, d: s.together % k.unroll_i == 0,
    ),
)
#: Of where weights are read.
WEIGHT_CONSTRAINTS = (
    Constraint(
        "weights is direct, local or constant, and on a CPU direct.",
        lambda k, s, d: k.weights in (("direct",) if d.is_cpu else WEIGHTS),
    ),
    Constraint(
        "Constant memory holds plain fp32 buffers of at most 64 KiB.",
        lambda k, s, d: (
            k.weights != "constant" or (s.weights == "buffer" and s.weight_bytes <= CONSTANT_BYTES)
        ),
    ),
)
