"""Modules of several batches for scaling measurements: given, or compiled from a model."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ...compiler.options import CompileOptions
from ...compiler.pipeline import compile
from ...errors import InputError
from ...module.load import load
from ...module.shapes import warn_default_shape
from .data_parallel import batch_of
from .devices import check_numbers

if TYPE_CHECKING:
    import onnx


@dataclass(frozen=True)
class Network:
    """Modules of one network, by batch."""

    target: str
    #: Triple of the machine that the modules are for.
    host: str
    modules: Mapping[int, Path]
    #: Inputs whose first axis is the batch.
    batched: frozenset[str]


def _save(
    model: Path, path: Path, options: CompileOptions, shapes: Mapping[str, tuple[int, ...]]
) -> Path:
    with closing(compile(model, options=options, shapes=shapes)) as compiled:
        return compiled.save(path)


def from_modules(paths: Sequence[Path]) -> Network:
    """Find the batches of module files.

    The batch is the first extent of the inputs in which the modules differ; in a single module, of
    all inputs with the same first extent as the first input.

    `InputError` if the modules are not of one network, or two have the same batch.
    """
    modules = [load(path) for path in paths]
    for path, module in zip(paths, modules, strict=True):
        warn_default_shape(module.variants, path, "scaling")
    first = modules[0]
    shapes = [{info.name: info.shape for info in module.inputs} for module in modules]
    if len(modules) == 1:
        leading = first.inputs[0].shape[:1] if first.inputs else ()
        batched = {name for name, shape in shapes[0].items() if leading and shape[:1] == leading}
    else:
        batched = {n for n in shapes[0] if len({s.get(n, ())[:1] for s in shapes}) > 1}
    for path, module, own in zip(paths, modules, shapes, strict=True):
        alike = own.keys() == shapes[0].keys() and all(
            own[n][n in batched :] == shapes[0][n][n in batched :] for n in own
        )
        if not alike or module.target != first.target:
            raise InputError(
                f"Measuring batches failed: {path} is not the network of {paths[0]} with another "
                "batch; their inputs or targets differ.",
                remedy="Give modules of one network, compiled for the same target.",
            )
    if not batched:
        raise InputError(
            f"Measuring batches failed: no input of {', '.join(map(str, paths))} has a batch "
            "dimension, or all have the same batch.",
            remedy="Give modules of different batches, or one with a batch dimension.",
        )
    found: dict[int, Path] = {}
    for path, module, own in zip(paths, modules, shapes, strict=True):
        extents = {own[name][0] for name in batched}
        batch = batch_of(module, batched)
        if len(extents) > 1 or batch in found:
            raise InputError(
                f"Measuring batches failed: {path} has the batch "
                f"{', '.join(map(str, sorted(extents)))}"
                + (f", as {found[batch]} has." if batch in found else "; one was expected."),
                remedy="Give one module of each batch.",
            )
        found[batch] = path
    return Network(first.target, first.metadata["host"], found, frozenset(batched))


def from_model(
    model: Path,
    batches: Sequence[int],
    folder: Path,
    options: CompileOptions,
    watch: Callable[[str], object] = lambda what: None,
) -> Network:
    """Compile a model for each batch to modules in a folder.

    The options' `shapes` define further open dimensions.  ``watch`` is called with a description of
    each compilation.

    `ShapeError` if no input has an open batch, `InputError` if a batch is not positive.
    """
    from ...frontend.shapes import batch_shapes

    check_numbers("batches", batches)
    inputs, shapes = _inputs_of(model), options.static_shapes
    found = {}
    for batch in sorted(set(batches)):
        watch(f"compiling batch {batch}")
        own = batch_shapes(inputs, shapes, batch)
        found[batch] = _save(model, folder / f"{batch}.so", options, {**shapes, **own})
    host = load(found[batch]).metadata["host"]
    return Network(options.target, host, found, frozenset(own))


def is_batch_open(model: Path) -> bool:
    """Return whether `from_model` can compile a model for any batch."""
    from ...frontend.shapes import with_open_batch

    return bool(with_open_batch(_inputs_of(model)))


def _inputs_of(model: Path) -> list[onnx.ValueInfoProto]:
    from ...frontend.source import open_model

    return open_model(model).inputs


def from_models(
    models: Sequence[Path],
    folder: Path,
    options: CompileOptions,
    watch: Callable[[str], object] = lambda what: None,
) -> Network:
    """Compile models of one network, each with its batch, to modules in a folder.

    Errors are the same as those of `from_modules`; ``watch`` is called with a description of each
    compilation.
    """
    paths = []
    for number, model in enumerate(models):
        watch(f"compiling {model}")
        # Messages contain the model's name, and two folders may have models of the same name.
        place = folder / str(number)
        place.mkdir()
        paths.append(_save(model, place / f"{model.stem}.so", options, options.static_shapes))
    return from_modules(paths)
