"""HTML page of a predicted time: the sum and its range, bars and a table of the layers.

It has the style of a profile's page, and no script.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from html import escape

from ..module.files import write_file
from ..tuning.predict_network import Layer, NetworkTime
from ..tuning.verified import Range
from .profiling.page.write import asset, digest

#: Height of a layer's bar in pixels.
_HEIGHT = 14
_STYLE = """
.bars { max-height: none } .bars svg .mark { cursor: inherit }
.range { stroke: var(--ink); stroke-width: 1.5 }
.bars small { color: var(--soft) } .facet strong { font-size: 1.1rem }
p.notes { padding-left: .8rem }
th { padding: .35rem .3rem; font-size: 12px; white-space: nowrap }
tr:target { background: var(--found) }
@media (max-width: 600px) { .spare { display: none }
  .facets { grid-template-columns: repeat(2, minmax(0, 1fr)) } }
"""
#: Colours of predictions of the model, and of lower bounds.
_COLOURS = {"model": "colour1", "bound": "colour2"}
#: Columns of the table: title, class, and whether narrow windows leave it out.
_COLUMNS = (
    *(("layer", "text", False), ("family", "text", True), ("calls", "", False)),
    *(("each, µs", "", True), ("total, µs", "", False), ("range, µs", "", False)),
    *(("share", "", True), ("by", "text", False)),
)


def write_page(path: str | os.PathLike[str], name: str, found: NetworkTime) -> None:
    """Write the page of a network's predicted time; `ArtifactError` if it cannot be written."""
    write_file(path, page_text(name, found))


def page_text(name: str, found: NetworkTime) -> str:
    """Return the page of the predicted time of a network of this name."""
    title = f"Predicted time of {escape(name)} on {found.gpu}"
    layers = sorted(found.layers, key=lambda layer: -layer.total)
    style = asset("style.css") + _STYLE
    # Names in a network come from its author, so no text may become a script.
    policy = f"default-src 'none'; style-src {digest(style)}"
    lines = [
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">',
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">',
        f'<meta name="viewport" content="width=device-width"><title>{title}</title>',
        f"<style>{style}</style></head><body><header><h1>{title}</h1>",
        *_summary(found),
        "</header><main><section><h2>Time by layer</h2>",
        _legend(),
        '<ol class="bars">',
        *_bars(layers, found),
        '</ol></section><section><h2>Layers</h2><div class="scroll wide"><table><thead>',
        _row("th", (head for head, _, _ in _COLUMNS)),
        "</thead><tbody>",
        *(_layer(number, layer, found) for number, layer in enumerate(layers)),
        "</tbody></table></div></section></main></body></html>\n",
    ]
    return "\n".join(lines)


def _summary(found: NetworkTime) -> Iterator[str]:
    low, high = found.range
    facets = {
        "kernels": f"{1e3 * found.seconds:.2f} ms",
        "range": f"{1e3 * low:.2f} – {1e3 * high:.2f} ms",
        "lower bounds": f"{found.bound_share:.1%} of it",
        "precision": f"{found.dtype}, sums {found.accumulate}",
        "kernels for": found.device,
    }
    yield '<div class="facets">'
    for name, text in facets.items():
        yield f'<div class="facet"><span class="note">{name}</span>'
        yield f"<strong>{escape(text)}</strong></div>"
    verification = found.verification
    mark = "" if verification.is_verified else ' class="notes"'
    yield f"</div><p{mark}>{escape(verification.sentence)}</p>"
    yield (
        '<p class="note">These times are not measured. Ranges assume that all layers are off in '
        "the same direction. The host's time, and copies to and from the device, are left out. "
        f"{escape(' '.join(found.missing))}</p>"
    )


def _legend() -> str:
    meanings = {
        "model": "the model's prediction",
        "bound": "a lower bound, of bytes and multiply-adds",
    }
    entries = "".join(
        f'<li><i class="{_COLOURS[by]}"></i>{meaning}</li>' for by, meaning in meanings.items()
    )
    return f'<ul class="legend">{entries}<li>— range</li></ul>'


def _bars(layers: Iterable[Layer], found: NetworkTime) -> Iterator[str]:
    """Yield a bar for each layer with its range, as links to the rows of the table."""
    most = max(layer.total_range[1] for layer in found.layers)
    for number, layer in enumerate(layers):
        low, high = (f"{end / most:.2%}" for end in layer.total_range)
        middle = _HEIGHT / 2
        label = f"{escape(layer.label)} <small>{escape(layer.family)}</small>"
        drawing = (
            f'<svg width="100%" height="{_HEIGHT}" role="img" '
            f'aria-label="{_range_text(layer.total_range)} µs"><rect class="mark '
            f'{_COLOURS[_by(layer)]}" y="2" height="{_HEIGHT - 4}" '
            f'width="{layer.total / most:.2%}"/>'
            f'<line class="range" x1="{low}" x2="{high}" y1="{middle}" y2="{middle}"/></svg>'
        )
        yield (
            f'<li><a href="#layer{number}"><span class="name" title="{_names(layer)}">'
            f"{label}</span><span>{drawing}</span>"
            f'<span class="value">{1e6 * layer.total:.1f} µs</span>'
            f'<span class="value">{found.share(layer):.1%}</span></a></li>'
        )


def _layer(number: int, layer: Layer, found: NetworkTime) -> str:
    functions = escape(", ".join(layer.functions))
    name = (
        f'<span class="two" title="{_names(layer)}"><span>{escape(layer.label)}</span>'
        f"<small>{functions}</small></span>"
    )
    reason = f' title="{escape(layer.bound)}"' if layer.bound else ""
    cells = (
        *(name, escape(layer.family), layer.calls),
        *(f"{1e6 * layer.seconds:.1f}", f"{1e6 * layer.total:.1f}"),
        *(_range_text(layer.total_range), f"{found.share(layer):.1%}"),
        f"<span{reason}>{_by(layer)}</span>",
    )
    return _row("td", cells, f' id="layer{number}"')


def _row(tag: str, cells: Iterable[object], mark: str = "") -> str:
    classes = (
        " ".join(filter(None, (kind, "spare" if is_spare else "")))
        for _, kind, is_spare in _COLUMNS
    )
    pairs = zip(classes, cells, strict=True)
    return f"<tr{mark}>" + "".join(f'<{tag} class="{c}">{v}</{tag}>' for c, v in pairs) + "</tr>"


def _names(layer: Layer) -> str:
    return escape(", ".join(layer.nodes or layer.functions))


def _by(layer: Layer) -> str:
    return "bound" if layer.bound else "model"


def _range_text(ends: Range) -> str:
    low, high = ends
    return f"{1e6 * low:.0f} – {1e6 * high:.0f}"
