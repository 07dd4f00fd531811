"""Static shapes of a model's inputs, from the file and, where that leaves them open, the caller."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Mapping, Sequence

import onnx

from ..errors import ModelError, ShapeError, UnsupportedModelError
from ..ir.limits import check_size
from ..ir.tensors import TensorInfo, TensorType
from .source import DTYPES, dtype_name

#: A dimension in the file: an extent, a symbol, or ``None`` if it is unknown.  Some exporters write
#: an open dimension as 0, which a given shape may set.
_Dim = int | str | None
#: Names that exporters write for unknown extents; two of them need not be equal.
_PLACEHOLDER = re.compile(r"[?*]|-1|none|null|unk(nown)?([_.]*\d*)?", re.IGNORECASE)
#: Extents of symbols that given shapes have set, with the input that set them.
_Symbols = Mapping[str, tuple[int, str]]

#: Marks a symbol that was set to several extents.
_CONTRADICTED = 0

logger = logging.getLogger(__name__)

_FIXED = "Give no shape for it: the model fixes it. Another one needs the model exported again."


def static_inputs(
    inputs: Sequence[onnx.ValueInfoProto], shapes: Mapping[str, Sequence[int]] | None
) -> tuple[TensorInfo, ...]:
    """Return all inputs with static shapes.

    ``shapes`` gives the shapes of dynamic inputs, and may repeat others.  A symbol that is set for
    one input is set for all others that use it.  If given shapes set a symbol to different extents,
    a warning is logged and each input keeps its own, as in ONNX Runtime; names that mean an unknown
    extent bind nothing.

    Raises ``ShapeError`` if a shape is missing, names no input, contradicts the model, or is too
    large; ``UnsupportedModelError`` if an input is not a tensor of a supported element type.
    """
    given = {name: _extents(name, shape) for name, shape in (shapes or {}).items()}
    declared = declared_dims(inputs)
    for name in given:
        if name not in declared:
            known = ", ".join(map(repr, declared)) or "no inputs"
            raise ShapeError(
                f"A shape is given for the input {name!r}, but the model has {known}.",
                remedy="Use the name of one of the model's inputs.",
            )
    symbols: dict[str, tuple[int, str]] = {}
    for name, shape in given.items():
        _check(name, declared[name], shape, symbols)
    result, open_inputs = [], []
    for value in inputs:
        name, dims = value.name, declared[value.name]
        static = given.get(name) or _resolve(dims, symbols)
        if static is None:
            open_inputs.append(name)
            continue
        kind = TensorType(static, DTYPES[value.type.tensor_type.elem_type])
        remedy = "Give it a smaller shape with `shapes`." if given else "Export a smaller input."
        check_size(f"The input {name!r}", kind, remedy)
        # If the model states no rank, all dimensions are open.
        ranked = dims if dims is not None else [None] * len(static)
        open_dims = tuple(n for n, dim in enumerate(ranked) if not is_fixed(dim))
        result.append(TensorInfo(name, kind.shape, kind.dtype, open_dims=open_dims))
    if open_inputs:
        raise _open_error(open_inputs, declared, symbols)
    return tuple(result)


def declared_dims(inputs: Sequence[onnx.ValueInfoProto]) -> dict[str, list[_Dim] | None]:
    """Return the dimensions of the inputs in the file; ``None`` for an input of unknown rank."""
    return {value.name: _declared(value) for value in inputs}


def with_open_batch(inputs: Sequence[onnx.ValueInfoProto]) -> list[str]:
    """Return the names of the inputs whose first dimension is open."""
    dims = declared_dims(inputs)
    return [name for name, known in dims.items() if known and not is_fixed(known[0])]


def is_fixed(dim: _Dim) -> bool:
    """Return whether the file fixes a dimension's extent."""
    return isinstance(dim, int) and dim > 0


def batch_shapes(
    inputs: Sequence[onnx.ValueInfoProto], shapes: Mapping[str, Sequence[int]], batch: int
) -> dict[str, tuple[int, ...]]:
    """Return the shapes at a batch of all inputs that have one.

    The batch is the first dimension of the first input that leaves it open.  ``shapes`` gives, with
    any batch, the shapes of inputs with other open dimensions.

    Raises ``ShapeError`` if no input has an open first dimension, an input with a batch has other
    open dimensions, or a given shape contradicts the model.
    """
    declared = declared_dims(inputs)
    dims = {name: known for name, known in declared.items() if known}
    is_open = with_open_batch(inputs)
    if not is_open:
        texts = "; ".join(f"{name!r} has {_text(known)}" for name, known in dims.items())
        raise ShapeError(
            f"Batches were asked of a model none of whose inputs has an open first dimension: "
            f"{texts}.",
            remedy="Export the model with an open batch, or give a model or module of each batch.",
        )
    first = dims[is_open[0]][0]
    batched = [name for name in is_open if dims[name][0] == first]
    symbols = {first: (batch, is_open[0])} if isinstance(first, str) else {}
    given = {}
    for name in (name for name in shapes if name in declared):
        extents = _extents(name, shapes[name])
        given[name] = (batch, *extents[1:]) if name in batched and extents else extents
        _check(name, declared[name], given[name], symbols)
    result = {}
    for name in batched:
        shape = given.get(name) or _resolve([batch, *dims[name][1:]], symbols)
        if shape is None:
            raise _open_error([name], declared, symbols)
        result[name] = shape
    return result


def _extents(name: str, shape: Sequence[int]) -> tuple[int, ...]:
    """Check that a given shape has positive integer extents, and return it."""
    try:
        extents = tuple(int(extent) for extent in shape)
        exact = all(extent == given for extent, given in zip(extents, shape, strict=True))
    except (TypeError, ValueError, OverflowError):
        exact = False
    if not exact or any(extent <= 0 for extent in extents):
        raise ShapeError(
            f"The shape given for the input {name!r} is {shape!r}, expected positive whole "
            "numbers.",
            remedy=f"`shapes={name}=1,3,224,224`, for example",
        )
    return extents


def _declared(value: onnx.ValueInfoProto) -> list[_Dim] | None:
    """Return an input's dimensions in the file, ``None`` if its rank is unknown."""
    kind = value.type.WhichOneof("value")
    if kind is None:
        raise ModelError(
            f"The input {value.name!r} has no type.", remedy="Export the model with typed inputs."
        )
    if kind != "tensor_type":
        raise UnsupportedModelError(
            f"The input {value.name!r} is a {kind.removesuffix('_type').replace('_', ' ')}, "
            "only dense tensors can be compiled.",
            remedy="Export the model with plain tensors as inputs.",
        )
    tensor = value.type.tensor_type
    if tensor.elem_type not in DTYPES:
        raise UnsupportedModelError(
            f"The input {value.name!r} has the element type {dtype_name(tensor.elem_type)}, "
            f"expected one of {', '.join(sorted(DTYPES.values()))}.",
            remedy="Convert the model to one of these types.",
        )
    if not tensor.HasField("shape"):
        return None
    return [_dim(dim) for dim in tensor.shape.dim]


def _dim(dim: onnx.TensorShapeProto.Dimension) -> _Dim:
    # Some exporters write -1 for an open dimension; one that is not set would read as 0.
    if dim.HasField("dim_value") and dim.dim_value >= 0:
        return int(dim.dim_value)
    symbol = dim.dim_param.strip()
    return None if not symbol or _PLACEHOLDER.fullmatch(symbol) else symbol


def _check(
    name: str, dims: list[_Dim] | None, shape: tuple[int, ...], symbols: dict[str, tuple[int, str]]
) -> None:
    """Compare a given shape with the declared one, and record the symbols that it sets."""
    if dims is None:
        return

    def remedy(more: str = "") -> str:
        if all(map(is_fixed, dims)):
            return _FIXED
        return f"`shapes={name}={_suggestion(dims, symbols)}`, for example{more}"

    if len(dims) != len(shape):
        raise ShapeError(
            f"The input {name!r} has {len(dims)} dimensions {_text(dims)}, but the given shape "
            f"{_text(shape)} has {len(shape)}.",
            remedy=remedy(),
        )
    for dim, extent in zip(dims, shape, strict=True):
        if is_fixed(dim) and dim != extent:
            raise ShapeError(
                f"The input {name!r} has the shape {_text(dims)} in the model, which contradicts "
                f"the given {_text(shape)}.",
                remedy=remedy("; extents that the model fixes change only by exporting it again"),
            )
        if isinstance(dim, str):
            known, origin = symbols.setdefault(dim, (extent, name))
            if known not in (_CONTRADICTED, extent):
                symbols[dim] = _CONTRADICTED, origin
                where = "itself" if origin == name else repr(origin)
                logger.warning(
                    "The given shape %s of the input %r makes the dimension %r %d, but the input "
                    "%s makes it %d. The model is compiled for the shapes as given.",
                    *(_text(shape), name, dim, extent, where, known),
                )


def _known(dim: _Dim, symbols: _Symbols) -> _Dim:
    """Return a dimension, with its symbol replaced if that has one extent."""
    extent, _ = symbols.get(str(dim), (_CONTRADICTED, ""))
    return extent if isinstance(dim, str) and extent != _CONTRADICTED else dim


def _resolve(dims: list[_Dim] | None, symbols: _Symbols) -> tuple[int, ...] | None:
    """Return the shape if it is static once the known symbols are set."""
    if dims is None:
        return None
    known = [_known(dim, symbols) for dim in dims]
    shape = tuple(dim for dim in known if isinstance(dim, int))
    return shape if len(shape) == len(dims) else None


def _open_error(
    names: Iterable[str], declared: Mapping[str, list[_Dim] | None], symbols: _Symbols
) -> ShapeError:
    """Return an error that lists the inputs whose shapes are still open."""
    parts, options = [], []
    for name in names:
        dims = declared[name]
        parts.append(f"{name!r} has {'an unknown rank' if dims is None else _text(dims)}")
        options.append(f"`shapes={name}={_suggestion(dims, symbols)}`")
    return ShapeError(
        f"The model is compiled for static shapes, but {'; '.join(parts)}.",
        remedy=f"Set all extents, for example {' '.join(options)}",
    )


def _suggestion(dims: list[_Dim] | None, symbols: _Symbols) -> str:
    """Return a valid example shape, with open dimensions as batch 1 and an image of 224×224."""
    if dims is None:
        return "1,3,224,224"
    extents = []
    for axis, dim in enumerate(_known(dim, symbols) for dim in dims):
        if not is_fixed(dim):
            image_axis = len(dims) == 4 and (axis >= 2 or (axis == 1 and dims[3] == 3))
            dim = 1 if axis == 0 else 224 if image_axis else 16
        extents.append(str(dim))
    return ",".join(extents)


def _text(dims: Sequence[_Dim]) -> str:
    """Format dimensions as in ``[N, 3, ?, ?]``."""
    return "[" + ", ".join("?" if dim is None else str(dim) for dim in dims) + "]"
