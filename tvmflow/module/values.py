"""Values of calls: checks of inputs, named outputs, and tensors of other libraries."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, TypeAlias, overload

import numpy as np

from ..errors import InputError
from ..ir.tensors import TensorInfo, TensorType, dtype_from_name
from .weights import ALIGN_BYTES

if TYPE_CHECKING:
    import tvm_ffi
    from typing_extensions import Self


class Outputs(tuple[Any, ...]):
    """A network's outputs, by position and by name.

    Behaves as a tuple of arrays in the order of the ONNX model (also for one
    output: ``(scores,) = module(image)``), and as a mapping from names:
    ``module(image)["scores"]``, ``dict(outputs)``, ``np.savez(file, **outputs)``.
    """

    names: tuple[str, ...]

    def __new__(cls, names: Sequence[str], values: Iterable[Any]) -> Self:
        """Create outputs from names and values in the same order."""
        self = super().__new__(cls, values)
        self.names = tuple(names)
        return self

    @overload  # type: ignore[override]
    def __getitem__(self, key: str | int) -> Any: ...
    @overload
    def __getitem__(self, key: slice) -> tuple[Any, ...]: ...
    def __getitem__(self, key: str | int | slice) -> Any:
        if isinstance(key, str):
            try:
                return tuple.__getitem__(self, self.names.index(key))
            except ValueError:
                raise KeyError(f"{key!r}; the outputs are {', '.join(self.names)}") from None
        return tuple.__getitem__(self, key)

    def __contains__(self, key: object) -> bool:
        """Return whether there is an output of this name."""
        return key in self.names

    def keys(self) -> tuple[str, ...]:
        """Return the names, in order."""
        return self.names

    def values(self) -> tuple[Any, ...]:
        """Return the arrays, in order."""
        return tuple(self)

    def items(self) -> Iterator[tuple[str, Any]]:
        """Return pairs of name and array, in order."""
        return zip(self.names, self, strict=True)

    def __repr__(self) -> str:
        return f"Outputs({dict(self.items())!r})"


def order_inputs(
    expected: tuple[TensorInfo, ...], args: Sequence[object], named: Mapping[str, object]
) -> list[Any]:
    """Return positional and named inputs in the network's order.

    Raises `InputError` if there are too many, or one is missing, given twice, or unknown.
    """
    if len(args) > len(expected):
        raise InputError(
            f"{len(args)} inputs were given, but the network has {len(expected)}: "
            f"{_list(expected)}.",
            remedy="Give the inputs by name.",
        )
    values = list(args)
    if not named and len(values) == len(expected):
        return values
    names = [info.name for info in expected]
    for name in named:
        if name not in names:
            near = get_close_matches(name, names, 1)
            hint = f"Did you mean {near[0]!r}? " if near else ""
            raise InputError(
                f"There is no input {name!r}; the network's inputs are {_list(expected)}.",
                remedy=f"{hint}`tvmflow inspect` lists the inputs.",
            )
    for info in expected[: len(args)]:
        if info.name in named:
            raise InputError(
                f"The input {info.name!r} was given by position and by name.",
                remedy="Give it once.",
            )
    missing = [info for info in expected[len(args) :] if info.name not in named]
    if missing:
        raise InputError(
            f"{len(missing)} of {len(expected)} inputs were not given: {_list(missing)}.",
            remedy="Give every input, by name or in the network's order.",
        )
    return values + [named[info.name] for info in expected[len(args) :]]


def order_outputs(expected: Sequence[TensorInfo], given: object) -> list[np.ndarray | None]:
    """Return the arrays that results are written into, in the network's order.

    ``given`` are arrays by name, of which some may be missing; all of them in order; or, for a
    network with one output, its array.  Tensors of another library are accepted if NumPy can share
    their memory.

    Raises `InputError` if a name is unknown, the number of arrays is wrong, or a value is no
    writable array.
    """
    if isinstance(given, Mapping):
        names = [info.name for info in expected]
        if unknown := [name for name in given if name not in names]:
            near = get_close_matches(str(unknown[0]), names, 1)
            raise InputError(
                f"There is no output {unknown[0]!r}; the network's outputs are {_list(expected)}.",
                remedy=f"Did you mean {near[0]!r}?" if near else "Name one of these.",
            )
        values = [given.get(name) for name in names]
    else:
        values = [*given] if isinstance(given, list | tuple) else [given]
        if len(values) != len(expected):
            raise InputError(
                f"{len(values)} arrays were given for results, but the network has "
                f"{len(expected)} outputs: {_list(expected)}.",
                remedy="Give the arrays by name.",
            )
    return [
        None if value is None else _writable(info.name, value)
        for info, value in zip(expected, values, strict=True)
    ]


def _writable(name: str, value: Any) -> np.ndarray:
    """Return an array that shares the memory of a value for results, which must be writable."""
    array = value
    if is_tensor(value):
        try:
            array = np.asarray(value) if hasattr(value, "__array__") else np.from_dlpack(value)
        except (BufferError, RuntimeError, TypeError, ValueError) as error:
            raise InputError(
                f"The output {name!r} cannot be written into the given tensor: {error}.",
                remedy="Give a tensor in the memory of the host, or a NumPy array.",
            ) from error
    if not isinstance(array, np.ndarray) or not array.flags.writeable:
        kind = "a read-only array" if isinstance(array, np.ndarray) else f"a {type(value).__name__}"
        raise InputError(
            f"The output {name!r} should be written into {kind}.",
            remedy="Give a NumPy array that may be written.",
        )
    return array


def put(name: str, array: np.ndarray, into: np.ndarray | None) -> np.ndarray:
    """Copy a result into the array that was given for it, if any; return the array that has it.

    Raises `InputError` if the array has another shape or dtype.
    """
    if into is None or into is array:
        return array
    check_output(name, into, array.shape, array.dtype.name)
    np.copyto(into, array)
    return into


def check_output(name: str, into: np.ndarray, shape: tuple[int, ...], dtype: str) -> None:
    """Raise `InputError` if an array for results has another shape or dtype than the output."""
    if into.shape != shape or into.dtype.name != dtype:
        raise InputError(
            f"The array for the output {name!r} has shape {list(into.shape)} and dtype "
            f"{into.dtype.name}, but the output has {list(shape)} and {dtype}.",
            remedy=f"np.empty({shape}, {dtype!r}) makes one.",
        )


def check_input(info: TensorInfo, shape: tuple[int, ...], dtype: str) -> None:
    """Raise `InputError` if a value has another shape or dtype than the network takes."""
    if tuple(shape) != info.shape:
        raise InputError(
            f"The input {info.name!r} has shape {list(shape)}, but the network takes "
            f"{list(info.shape)}.",
            remedy=_shape_remedy(info, tuple(shape)),
        )
    if dtype != info.dtype:
        raise InputError(
            f"The input {info.name!r} has dtype {dtype}, but the network takes {info.dtype}.",
            remedy=f"Convert it, for example with array.astype({info.dtype!r}).",
        )


def _shape_remedy(info: TensorInfo, shape: tuple[int, ...]) -> str:
    """Return sentences on how to convert an array to the input's shape, step by step."""
    wanted = info.shape
    if info.logical_shape is not None and len(shape) != len(wanted):
        wanted = info.logical_shape
    steps = []
    without_batch = len(shape) + 1 == len(wanted) and wanted[0] == 1
    # Images from files and cameras have their channels last.
    if len(wanted) == 4 and len(shape) in (3, 4) and shape[-1] == wanted[1] != shape[-3]:
        if without_batch:
            steps.append("The array is HWC: transpose it to CHW with array.transpose(2, 0, 1).")
        elif len(shape) == 4:
            steps.append(
                "The array is NHWC: transpose it to NCHW with array.transpose(0, 3, 1, 2)."
            )
        if steps:
            shape = (*shape[:-3], shape[-1], *shape[-3:-1])
    if without_batch:
        steps.append("The batch dimension is missing: array[None] adds it.")
        shape = (1, *shape)
    differing = {n for n, (a, b) in enumerate(zip(shape, wanted, strict=False)) if a != b}
    if len(shape) != len(wanted):
        steps.append("Reshape it.")
    elif differing and info.logical_shape is None and differing <= set(info.open_dims):
        extents = ",".join(map(str, shape))
        steps.append(f"Resize it, or compile the model with `shapes={info.name}={extents}`.")
    elif differing:
        steps.append("Resize it: the model fixes this shape, others need it exported again.")
    return " ".join(steps)


def as_array(info: TensorInfo, value: object) -> np.ndarray:
    """Return a host value as an array of the native byte order, checked by `check_input`."""
    array = any_array(info.name, value)
    check_input(info, array.shape, array.dtype.name)
    return array


def plain(info: TensorInfo, value: object) -> object:
    """Convert a value for an input to an array or tensor.

    Lists and numbers become arrays, of the input's dtype if it can hold them; raises `InputError`
    if they are no array.  PyTorch's tensors that record gradients are detached: results have none.
    """
    if isinstance(value, np.ndarray):
        return value
    if isinstance(value, list | tuple | bool | int | float):
        array = any_array(info.name, value)
        wanted = dtype_from_name(info.dtype)
        fits = np.can_cast(array.dtype, wanted, "same_kind")
        if array.dtype.kind in "iu" and wanted.kind in "iu" and array.size:
            bounds = np.iinfo(wanted)
            fits = bounds.min <= int(array.min()) and int(array.max()) <= bounds.max
        return array.astype(wanted) if fits else array
    return value.detach() if getattr(value, "requires_grad", False) else value  # type: ignore[attr-defined]


def any_array(name: str, value: object) -> np.ndarray:
    """Return a host value as an array of the native byte order; `InputError` if that fails."""
    try:
        array = np.asarray(value)
    except (TypeError, ValueError, RuntimeError) as error:
        raise InputError(
            f"The input {name!r} is no array: {error}.",
            remedy="Give a NumPy array or a DLPack tensor.",
        ) from error
    return array.astype(array.dtype.newbyteorder("="), copy=False)


def from_dlpack(name: str, value: Any) -> tvm_ffi.Tensor:
    """Return TVM's view of another library's tensor, for the input ``name``.

    The view shares the tensor's memory, or has a copy of a strided tensor.  Raises `InputError` if
    DLPack cannot pass the tensor on.
    """
    import tvm_ffi

    try:
        return tvm_ffi.from_dlpack(value, require_contiguous=True)
    except Exception as error:
        # If the copy fails, too, the first error says more.
        with suppress(Exception):
            # Let its library copy a strided tensor, or copy it on the host.
            compact = getattr(value, "contiguous", None)
            copy = compact() if compact else np.ascontiguousarray(np.from_dlpack(value))
            return tvm_ffi.from_dlpack(copy, require_contiguous=True)
        raise InputError(
            f"The input {name!r} cannot be shared through DLPack: {error}.",
            remedy="Give another tensor, or a NumPy array.",
        ) from error


def is_shareable(array: np.ndarray) -> bool:
    """Return whether TVM's kernels can use an array's memory without a copy."""
    flags = array.flags
    return flags.c_contiguous and flags.writeable and address_of(array) % ALIGN_BYTES == 0


def writable_alias(array: np.ndarray) -> np.ndarray:
    """Return a view of the same memory that claims to be writable.

    TVM's version of DLPack cannot express read-only memory.  Use it only for arguments
    that kernels never write, such as mapped weights.
    """
    if array.flags.writeable or not array.size:
        return array
    memory: Any = (ctypes.c_uint8 * array.nbytes).from_address(address_of(array))
    memory.owner = array  # The view must keep the memory alive.
    return np.frombuffer(memory, array.dtype).reshape(array.shape)


def _list(infos: Iterable[TensorInfo]) -> str:
    return "; ".join(map(str, infos)) or "none"


#: A NumPy array or a tensor of TVM.
Shared: TypeAlias = "np.ndarray | tvm_ffi.Tensor"


def is_tensor(value: object) -> bool:
    """Return whether a value is a tensor of a library other than NumPy that supports DLPack."""
    return not isinstance(value, np.ndarray | np.generic) and hasattr(value, "__dlpack__")


def shared(name: str, value: object) -> Shared:
    """Return a value for the input ``name`` as a compact NumPy array or TVM's view of a tensor.

    Raises `InputError` if it is no array or tensor, or DLPack cannot pass the tensor on.
    """
    if is_tensor(value):
        return from_dlpack(name, value)
    array = any_array(name, value)
    # `ascontiguousarray` would give a scalar one dimension.
    return array if array.flags.c_contiguous else array.copy(order="C")


def type_of(value: Shared) -> TensorType:
    """Return shape and dtype."""
    dtype = value.dtype.name if isinstance(value, np.ndarray) else str(value.dtype)
    return TensorType(tuple(value.shape), dtype)


def is_on_host(value: Shared) -> bool:
    """Return whether a value is in the host's memory."""
    return isinstance(value, np.ndarray) or value.device.type == "cpu"


def on_host(value: Shared) -> np.ndarray:
    """Return a value as an array, which shares its memory if that is the host's."""
    if isinstance(value, np.ndarray):
        return value
    if is_on_host(value) and str(value.dtype) != "bfloat16":
        return np.from_dlpack(value)
    copied: np.ndarray = value.numpy()
    return copied


def tensor_of(array: np.ndarray) -> tvm_ffi.Tensor:
    """Return TVM's view of an array's memory, which must not be written."""
    import tvm_ffi

    array = writable_alias(array)
    if array.dtype.name != "bfloat16":
        return tvm_ffi.from_dlpack(array)
    # NumPy cannot pass on bfloat16, a dtype of another package, through DLPack.
    bits = tvm_ffi.from_dlpack(array.view(np.uint16))
    return bits._create_view(array.shape, "bfloat16")


def address_of(value: Shared) -> int:
    """Return the address of a value's first element; it is arbitrary if the value is empty."""
    if isinstance(value, np.ndarray):
        return int(value.__array_interface__["data"][0])
    return int(value.data_ptr())


def unknown(kind: TensorType) -> np.ndarray:
    """Return NaNs of a shape, which take no memory, for checks that read only other operands."""
    return np.broadcast_to(np.float32(np.nan), kind.shape)
