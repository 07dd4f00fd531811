"""Picture of a memory plan as SVG: which tensor occupies which block at which step.

Steps, the calls of primary functions, go to the right.  Blocks are stacked; their height is
proportional to their size, but at least enough for names.  A tensor is a rectangle from the step
that writes it to the last one that reads it, as high as the part of the block that it fills.
"""

from __future__ import annotations

import re
from xml.sax.saxutils import escape

from ..ir.units import bytes_text
from ..runtime.json_types import JsonMapping

COLOURS = {"texture": "#9ecae1", "buffer": "#fdbe85"}
#: Colour of the part of a block that its tensor does not fill.
UNUSED = "#f2f2f2"
_PLOT_HEIGHT = 440
_LEFT, _TOP, _RIGHT, _BOTTOM = 150, 64, 20, 46
#: Height and width of a letter in names, in pixels; the width is a slight overestimate.
_LETTER, _ADVANCE = 9, 5.4
#: Characters that XML cannot represent.
_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def memory_svg(plan: JsonMapping, name: str) -> str:
    """Draw the memory plan of a network, ``metadata["memory"]``, under the network's name."""
    return _Picture(plan, name).draw()


class _Picture:
    """SVG elements of one picture, from the back to the front.

    ``plan`` is the result of :meth:`tvmflow.graph.memory.MemoryPlan.report`.
    """

    def __init__(self, plan: JsonMapping, name: str):
        self.plan = plan
        self.name = name
        self.tensors = [t for t in plan["tensors"] if t["block"] is not None]
        self.steps = max((t["last"] for t in plan["tensors"]), default=0) + 1
        #: Pixels of a step: enough for a vertical name; few steps still fill the picture.
        self.step = min(60.0, max(12.0, 760 / self.steps))
        #: Heights of blocks in pixels; small blocks are stretched to hold a dozen letters.
        least = min(72.0, max(12.0, 600 / max(1, len(plan["blocks"]))))
        scale = _PLOT_HEIGHT / max(plan["peak_bytes"], 1)
        self.heights = [max(least, block["bytes"] * scale) for block in plan["blocks"]]
        self.stretched = any(b["bytes"] * scale < least for b in plan["blocks"])
        self.bottom = _TOP + max(40.0, sum(self.heights))
        self.width = round(_LEFT + self.steps * self.step + _RIGHT)
        self.height = round(self.bottom + _BOTTOM)
        self.parts: list[str] = []

    def draw(self) -> str:
        """Return the text of the SVG file."""
        self._head()
        for number, height in enumerate(self.heights):
            self._block(number, _TOP + sum(self.heights[:number]), height)
        if not self.tensors:
            self._text(_LEFT + 8, _TOP + 20, "No tensor passes between primary functions.")
        self._axis()
        space = 'xmlns="http://www.w3.org/2000/svg" font-family="sans-serif"'
        size = f'width="{self.width}" height="{self.height}"'
        head = f'<svg {space} {size} viewBox="0 0 {self.width} {self.height}">'
        return "\n".join([head, f'<rect {size} fill="white"/>', *self.parts, "</svg>\n"])

    def _head(self) -> None:
        peak, bound = self.plan["peak_bytes"], self.plan["lower_bound_bytes"]
        ratio = f", {peak / bound:.2f} times the bound" if bound else ""
        self._text(10, 20, f"{self.name}: memory of intermediate tensors", size=14, weight="bold")
        facts = f"peak {bytes_text(peak)}, lower bound {bytes_text(bound)}{ratio}"
        self._text(10, 37, facts, size=11)
        x = 10.0
        for label, colour in (*COLOURS.items(), ("rest of a block", UNUSED)):
            self._rectangle(x, 45, 10, 10, colour)
            self._text(x + 14, 54, label, size=10)
            x += 14 + 6 * len(label) + 14
        if self.stretched:
            self._text(x, 54, "(small blocks are drawn higher than to scale)", size=10)

    def _block(self, number: int, top: float, height: float) -> None:
        """Draw a block as a band, and the tensors in it."""
        block = self.plan["blocks"][number]
        kind = f"image {block['image']}" if block["image"] else "buffer"
        label, size = f"{number}: {kind}", bytes_text(block["bytes"])
        about = f"block {label}, {size}"
        self._rectangle(_LEFT, top, self.steps * self.step, height, UNUSED, about)
        if height >= _LETTER:
            middle = top + height / 2 + 3
            second = height >= 2.4 * _LETTER
            self._text(_LEFT - 6, middle - (6 if second else 0), label, anchor="end")
            if second:
                self._text(_LEFT - 6, middle + 6, size, anchor="end")
        for tensor in self.tensors:
            if tensor["block"] == number:
                self._tensor(tensor, top, height)

    def _tensor(self, tensor: JsonMapping, top: float, band: float) -> None:
        x = _LEFT + tensor["first"] * self.step
        width = (tensor["last"] - tensor["first"] + 1) * self.step
        whole = self.plan["blocks"][tensor["block"]]["bytes"]
        height = max(1.0, band * min(1.0, tensor["bytes"] / max(1, whole)))
        readers = ", ".join(tensor["readers"]) or "nobody"
        shape = "×".join(map(str, tensor["shape"]))
        about = (
            f"{tensor['name']}: {tensor['storage']} {shape}, {bytes_text(tensor['bytes'])}, "
            f"steps {tensor['first']} to {tensor['last']}, "
            f"written by {tensor['producer']}, read by {readers}"
        )
        self._rectangle(x, top, width, height, COLOURS[tensor["storage"]], about)
        name = str(tensor["name"])
        if len(name) * _ADVANCE <= width - 4 and band >= _LETTER + 2:
            self._text(x + width / 2, top + max(height / 2 + 3, 10), name, anchor="middle")
            return
        # Write the name vertically.  It may extend beyond its rectangle, because a band holds one
        # tensor at a time.
        room = int((band - 6) / _ADVANCE)
        if room >= min(4, len(name)):
            shown = name if len(name) <= room else name[: room - 1] + "…"
            self._text(x + width / 2 + 3, top + 3, shown, anchor="end", upright=True)

    def _axis(self) -> None:
        every = max(1, round(28 / self.step))
        for step in range(0, self.steps, every):
            x = _LEFT + (step + 0.5) * self.step
            self._text(x, self.bottom + 14, str(step), anchor="middle")
        middle, label = _LEFT + self.steps * self.step / 2, "step (call of a primary function)"
        self._text(middle, self.bottom + 32, label, 10, anchor="middle")

    # -- elements --------------------------------------------------------------------------

    def _rectangle(
        self, x: float, y: float, width: float, height: float, fill: str, about: str = ""
    ) -> None:
        title = f"<title>{_escaped(about)}</title>" if about else ""
        self.parts.append(
            f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" '
            f'fill="{fill}" stroke="#888" stroke-width="0.5">{title}</rect>'
        )

    def _text(
        self,
        x: float,
        y: float,
        text: str,
        size: int = _LETTER,
        *,
        anchor: str = "start",
        weight: str = "normal",
        upright: bool = False,
    ) -> None:
        turned = f' transform="rotate(-90 {x:.1f} {y:.1f})"' if upright else ""
        self.parts.append(
            f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" text-anchor="{anchor}" '
            f'font-weight="{weight}"{turned}>{_escaped(text)}</text>'
        )


def _escaped(text: str) -> str:
    return escape(_NOT_XML.sub("\ufffd", text))
