"""``tvmflow predict``: a network's time on a GPU that is not connected, by layer."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from ..compiler.options import CompileOptions
from ..devices.gpus import GPUS
from .options import TUNED, load_operators, with_compile_flags, words
from .output import note_file, out_console, print_facts, print_json, print_table
from .session import command
from .text import ms_text

if TYPE_CHECKING:
    from rich.console import Console

    from ..tuning.predict_network import NetworkTime
    from ..tuning.verified import Range

EXAMPLES = """
[bold]Examples[/bold]
  tvmflow predict mobilenet_v2.onnx --gpu adreno-740
      time and range of each layer, on a phone that is not connected
  tvmflow predict mobilenet_v2.onnx --gpu adreno-660 --dtype fp16 --html predicted.html
  tvmflow predict net.onnx --gpu mali-g710 --json > predicted.json
  tvmflow predict net.onnx --gpu adreno-740 --journal adreno740
      with knobs that were measured on this GPU, from a journal that ships with tvmflow
"""

_COLUMNS = ("layer", "family", ">calls", ">each, µs", ">total, µs", ">range, µs", ">share", "by")
#: Columns that a narrow terminal leaves out, the first ones first.
_SPARE = (">each, µs", "family", ">range, µs", ">calls")


@command
@with_compile_flags(*(name for name in TUNED if name != "target"), "journals")
def predict_time(
    model: Path,
    gpu: Annotated[
        str,
        words(*GPUS),
        "GPU",
        "The GPU to predict for: an Adreno or Mali, such as adreno-660, adreno-740 or mali-g76. It "
        "is the default of --device.",
    ],
    options: CompileOptions,
    html: Annotated[Path | None, "OUT.html", "Write a page with all layers."] = None,
    ops: list[Path] | None = None,
) -> None:
    """Predict a network's time on a phone's GPU that is not connected, by layer.

    Times of convolutions that read textures, also pointwise and depthwise ones, are predicted by a
    model, which is fitted to measurements of phones. Those of other kernels are lower bounds by
    their bytes and multiply-adds. Ranges are as wide as the errors of predictions for GPUs, or
    networks, that a fit has not seen. The host's time, and copies to and from the device, are left
    out.
    """
    from ..devices.gpus import find_gpu
    from ..module.files import TEXT, check_writable
    from ..tuning.predict_network import predict_network
    from ..tuning.session import Network

    chosen = find_gpu(gpu)
    if html is not None:
        check_writable(html, TEXT)
    load_operators(ops)
    found = predict_network(Network(model, options), chosen)
    if html is not None:
        from ..explain.prediction_page import write_page

        write_page(html, model.name, found)
        note_file(html)
    if not print_json({"model": model, **found.to_json()}):
        _print(model.name, found, out_console())


def _print(name: str, found: NetworkTime, console: Console) -> None:
    rows = [
        (
            *(layer.label, layer.family, layer.calls),
            *(f"{1e6 * seconds:.1f}" for seconds in (layer.seconds, layer.total)),
            *(_range_text(layer.total_range), f"{found.share(layer):.1%}"),
            "bound" if layer.bound else "model",
        )
        for layer in sorted(found.layers, key=lambda layer: -layer.total)
    ]
    low, high = (ms_text(1e3 * end) for end in found.range)
    facts = [
        ("kernels", f"{ms_text(1e3 * found.seconds)}, in a range of {low} to {high}"),
        ("lower bounds", f"{found.bound_share:.1%} of it"),
        ("precision", f"{found.dtype}, sums in {found.accumulate}"),
        ("kernels for", found.device),
        ("verification", found.verification.sentence),
        ("left out", " ".join(found.missing) or None),
    ]
    print_facts(f"{name} on {found.gpu}, predicted", facts, console)
    print_table("Layers", _COLUMNS, rows, console, _SPARE)


def _range_text(ends: Range) -> str:
    low, high = ends
    return f"{1e6 * low:.0f} - {1e6 * high:.0f}"
