"""ONNX Runtime's session: a model that is compiled for each shape of its inputs at first use.

A run looks its shapes up among *runners*.  A new shape gets one: a module that was compiled for it,
compiled smaller batches in parts, a larger shape that the user allows as a bucket, or, where it may
not wait, ONNX Runtime.
"""

from __future__ import annotations

import logging
import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from ..errors import InputError, TvmflowError, UnsupportedModelError
from ..frontend.shapes import declared_dims, is_fixed, static_inputs
from ..frontend.source import DTYPES, Source, open_model
from ..ir.limits import LARGE_WEIGHT_BYTES
from ..module.module import Module
from ..module.padding import Padding, crop
from ..module.shapes import run_any
from ..module.values import Outputs, any_array
from ..runtime.json_types import JsonMapping
from .buckets import Buckets, output_shapes
from .errors import InvalidArgument, InvalidProtobuf, conversion
from .interface import ModelMetadata, NodeArg, inputs_of, metadata_of, outputs_of
from .modules import Modules, Shapes
from .options import RunOptions, SessionOptions
from .providers import Given, choose

if TYPE_CHECKING:
    import onnx

    from .binding import IOBinding

logger = logging.getLogger(__name__)

#: Function that runs one shape: feeds by name to outputs by name.
Results: TypeAlias = "Outputs | dict[str, np.ndarray]"
Runner = Callable[[Mapping[str, Any]], Results]
Key = tuple[Any, ...]

WAIT, MEANWHILE = "wait", "onnxruntime"
#: Number of shapes after which a warning says that there are many.
CHURN = 8
#: A limit for weights in memory that no model reaches.
_EVERYTHING = 1 << 62


class InferenceSession:
    """A model, run as with ``onnxruntime.InferenceSession``.

    Calls from several threads are safe.  A process that was forked can go on with a session for
    ``llvm``; that of a GPU raises `DeviceError` there, as a module does.

    Parameters
    ----------
    path_or_bytes
        Path of an ONNX file, or its content.  The file is read once, unless it has external data.
    sess_options
        ONNX Runtime's options, which change nothing here.
    providers
        Names of targets, ``tvmflow-llvm``, ``tvmflow-opencl`` or ``tvmflow-cuda``, each alone or
        with a dict of options of `tvmflow.compile`.  The first one whose device is there is used.
        ``CPUExecutionProvider`` and ``CUDAExecutionProvider`` stand for ``tvmflow-llvm`` and
        ``tvmflow-cuda``; other providers of ONNX Runtime are skipped with a warning.
    provider_options
        Options of the providers, in their order.
    precompile
        Shapes to compile now: those of all open inputs by name, or that of the only one.
    buckets
        Shapes by input name to which smaller inputs are padded; outputs are cropped.  This changes
        numbers (docs/migrating.md).
    pad
        What inputs are padded with, by name: a number, default 0, or ``edge``.
    while_compiling
        ``wait``, or ``onnxruntime``: ONNX Runtime answers while a new shape is compiled in the
        background.
    keep
        Number of shapes whose modules stay in memory; the least recently used ones are closed.

    Raises
    ------
    TargetError, UnknownOptionError
        If a provider or an option is unknown, or no provider's device is there.
    NoSuchFile, InvalidProtobuf, InvalidGraph, NotImplemented
        If the model cannot be read or compiled, with the sentence of `tvmflow.compile`.
    """

    #: Most elements of an input whose value is compiled in, if the model needs it as a constant.
    MOST_CONSTANT = 16

    def __init__(
        self,
        path_or_bytes: str | os.PathLike[str] | bytes | onnx.ModelProto,
        sess_options: SessionOptions | None = None,
        providers: Sequence[Given] | None = None,
        provider_options: Sequence[Mapping[str, Any]] | None = None,
        *,
        precompile: Sequence[Sequence[int] | Mapping[str, Sequence[int]]] = (),
        buckets: Mapping[str, Sequence[Sequence[int]]] | None = None,
        pad: Mapping[str, Padding] | None = None,
        while_compiling: str = WAIT,
        keep: int = 32,
        **_: object,
    ) -> None:
        if while_compiling not in (WAIT, MEANWHILE):
            raise InvalidArgument(
                f"`while_compiling` is {while_compiling!r}, expected {WAIT!r} or {MEANWHILE!r}.",
                remedy="Choose one of them.",
            )
        self._options = sess_options or SessionOptions()
        self._keep = max(1, keep)
        with conversion():
            self._source = _read(path_or_bytes)
            self._provider = choose(providers, provider_options)
            self._buckets = Buckets.of(self._source, buckets or {}, pad or {})
            self._inputs, self._outputs = inputs_of(self._source), outputs_of(self._source)
            self._names = [each.name for each in self._inputs]
            self._output_names = [each.name for each in self._outputs]
            self._declared = declared_dims(self._source.inputs)
            self._meanwhile = _reference(path_or_bytes) if while_compiling == MEANWHILE else None
            self._start(precompile)

    def _start(self, precompile: Sequence[Any]) -> None:
        """Forget all modules, and compile the shapes that are known."""
        #: Inputs whose values are compiled in.
        self._constants: list[str] = []
        #: Modules by the values of these inputs.
        self._modules: dict[Key, Modules] = {}
        self._runners: OrderedDict[Key, Runner] = OrderedDict()
        #: Keys that were compiled, for the warning about many shapes.
        self._seen: list[Key] = []
        if all(map(_is_static, self._declared.values())):
            precompile = [{}, *precompile]
        for shapes in precompile:
            self._precompile(shapes)

    # -- ONNX Runtime's methods --------------------------------------------------------------------

    def run(
        self,
        output_names: Sequence[str] | None,
        input_feed: Mapping[str, Any],
        run_options: RunOptions | None = None,
    ) -> list[np.ndarray]:
        """Run the network; return the named outputs, or all, as arrays.

        Raises `InvalidArgument` for a wrong name, rank, shape or type, and as `tvmflow.compile`
        and modules do.
        """
        try:
            key: Key = tuple([input_feed[name].shape for name in self._names])
            if self._constants:
                key += tuple([input_feed[name].tobytes() for name in self._constants])
            runner = self._runners[key]
            self._runners.move_to_end(key)
        except (KeyError, AttributeError, TypeError):
            runner, input_feed = self._prepare(input_feed)
        if len(input_feed) != len(self._names):
            self._check_names(input_feed)
        try:
            results = runner(input_feed)
        except InputError:
            with conversion():
                for name in self._names:
                    self._array(name, input_feed[name])
                raise
        if output_names is None:
            return [*results.values()]
        try:
            return [results[name] for name in output_names]
        except KeyError:
            raise self._no_output(output_names) from None

    def get_inputs(self) -> list[NodeArg]:
        """Return the inputs that a caller provides."""
        return list(self._inputs)

    def get_outputs(self) -> list[NodeArg]:
        """Return the outputs."""
        return list(self._outputs)

    def get_overridable_initializers(self) -> list[NodeArg]:
        """Return no inputs: those with an initializer are weights here."""
        return []

    def get_modelmeta(self) -> ModelMetadata:
        """Return origin and purpose, as the file states them."""
        return metadata_of(self._source.model)

    def get_providers(self) -> list[str]:
        """Return the provider in use; the CPU's name from ONNX Runtime follows it."""
        return [self._provider.name, "CPUExecutionProvider"]

    def get_provider_options(self) -> dict[str, dict[str, Any]]:
        """Return the options by provider."""
        return {self._provider.name: dict(self._provider.given)}

    def get_session_options(self) -> SessionOptions:
        """Return the session's options."""
        return self._options

    def set_providers(
        self,
        providers: Sequence[Given] | None = None,
        provider_options: Sequence[Mapping[str, Any]] | None = None,
    ) -> None:
        """Use other providers from the next run on; raises as the constructor does."""
        with conversion():
            self._provider = choose(providers, provider_options)
            self._start(())

    def io_binding(self) -> IOBinding:
        """Return a new binding of inputs and outputs for `run_with_iobinding`."""
        from .binding import IOBinding

        return IOBinding(self)

    def run_with_iobinding(
        self, iobinding: IOBinding, run_options: RunOptions | None = None
    ) -> None:
        """Run with bound inputs, and keep the results in the binding or its arrays."""
        iobinding.run()

    # -- Runners -----------------------------------------------------------------------------------

    def _prepare(self, feed: Mapping[str, Any]) -> tuple[Runner, dict[str, Any]]:
        """Return the runner of a feed that has none yet, or no arrays, and the feed as arrays."""
        with conversion():
            self._check_names(feed)
            arrays = {name: self._array(name, feed[name]) for name in self._names}
            shapes = {name: array.shape for name, array in arrays.items()}
            runner = self._runners.get(key := self._key(arrays))
            if runner is None and self._meanwhile is not None:
                runner = self._made(shapes, arrays, compiling=False)
                if runner is None:
                    self._runners[key] = self._by_reference
                    self._compile_in_background(key, shapes, arrays)
                    return self._by_reference, arrays
            if runner is None:
                runner = self._made(shapes, arrays)
                assert runner is not None
            # It may have turned out that the key needs values.
            self._keep_runner(self._key(arrays), runner)
            return runner, arrays

    def _key(self, arrays: Mapping[str, np.ndarray]) -> Key:
        return (
            *(arrays[name].shape for name in self._names),
            *(arrays[name].tobytes() for name in self._constants),
        )

    def _keep_runner(self, key: Key, runner: Runner) -> None:
        self._runners[key] = runner
        while len(self._runners) > self._keep:
            self._runners.popitem(last=False)

    def _made(
        self, shapes: Shapes, arrays: Mapping[str, np.ndarray], *, compiling: bool = True
    ) -> Runner | None:
        """Return the runner of new shapes; ``None`` if it would have to be compiled but may not."""
        padded = self._buckets.choose(shapes)
        if padded is not None:
            runner = self._made(padded, arrays, compiling=compiling)
            return runner and self._padded(runner, shapes, padded)
        modules = self._modules_for(arrays)
        module = modules.find(shapes)
        if module is None and (parts := modules.parts(shapes)) is not None:
            return _in_parts(*parts)
        if module is None:
            if not compiling:
                return None
            self._warn_of_churn(self._key(arrays))
            try:
                module = modules.get(shapes)
            except UnsupportedModelError:
                if not self._compile_values(arrays):
                    raise
                return self._made(shapes, arrays)
        names = [info.name for info in module.inputs]
        if len(names) == len(self._names):
            return module.run
        return lambda feed: module.run({name: feed[name] for name in names})

    def _padded(self, runner: Runner, shapes: Shapes, padded: Shapes) -> Runner:
        """Return a runner that pads inputs to larger shapes and crops the outputs."""
        outputs = output_shapes(self._source, shapes)

        def run(feed: Mapping[str, Any]) -> Results:
            given = {name: self._buckets.pad(name, feed[name], padded[name]) for name in padded}
            results = runner(given)
            return {name: crop(name, array, outputs.get(name)) for name, array in results.items()}

        return run

    def _by_reference(self, feed: Mapping[str, Any]) -> Results:
        assert self._meanwhile is not None
        return dict(zip(self._output_names, self._meanwhile.run(None, dict(feed)), strict=True))

    def _compile_in_background(
        self, key: Key, shapes: Shapes, arrays: Mapping[str, np.ndarray]
    ) -> None:
        """Compile shapes in a thread, and use the module from then on."""

        def work() -> None:
            try:
                runner = self._made(shapes, arrays)
            except TvmflowError as error:
                logger.warning("ONNX Runtime goes on to answer, because a shape of %s cannot be "
                               "compiled: %s", self._source.label, error)  # fmt: skip
            else:
                assert runner is not None
                self._runners.pop(key, None)
                self._keep_runner(self._key(arrays), runner)

        threading.Thread(target=work, name="tvmflow-compile").start()

    def _modules_for(self, arrays: Mapping[str, np.ndarray]) -> Modules:
        """Return the modules for the values that are compiled in."""
        values = tuple(arrays[name].tobytes() for name in self._constants)
        if values not in self._modules:
            constants = {name: arrays[name].tolist() for name in self._constants}
            options = replace(self._provider.options, inputs=constants)
            self._modules[values] = Modules(self._source, options)
        return self._modules[values]

    def _compile_values(self, arrays: Mapping[str, np.ndarray]) -> bool:
        """Compile the values of small inputs in from now on; return whether there are any.

        Such an input chooses a branch or a size: the sampling rate of a voice detector.
        """
        if self._constants:
            return False
        later = self._names[1:]  # The first input is the picture, text or sound.
        self._constants = [n for n in later if 0 < arrays[n].size <= self.MOST_CONSTANT]
        self._runners.clear()
        return bool(self._constants)

    def _precompile(self, given: Sequence[int] | Mapping[str, Sequence[int]]) -> None:
        """Make the runner of shapes that were named before a run."""
        if isinstance(given, Mapping):
            shapes = given
        else:
            is_open = [n for n, dims in self._declared.items() if not _is_static(dims)]
            if len(is_open) != 1:
                raise InvalidArgument(
                    f"The shape {tuple(given)} was to be compiled of a model with "
                    f"{len(is_open)} inputs of open shape.",
                    remedy="Give shapes by name: `precompile=[{'x': (1, 3, 224, 224)}]`.",
                )
            shapes = {is_open[0]: given}
        infos = static_inputs(self._source.inputs, shapes)
        arrays = {info.name: np.zeros(info.shape, info.dtype) for info in infos}
        self._prepare(arrays)

    # -- Checks ------------------------------------------------------------------------------------

    def _check_names(self, feed: Mapping[str, Any]) -> None:
        """Raise `InvalidArgument` if a feed lacks an input, or names one that does not exist."""
        there = ", ".join(map(repr, self._names)) or "no inputs"
        for name in feed:
            if name not in self._names:
                near = get_close_matches(str(name), self._names, 1)
                raise InvalidArgument(
                    f"The feed names the input {name!r}, but the model has {there}.",
                    remedy=f"Did you mean {near[0]!r}?" if near else "Use one of these.",
                )
        missing = [name for name in self._names if name not in feed]
        if missing:
            raise InvalidArgument(
                f"The feed lacks {', '.join(map(repr, missing))} of the model's inputs {there}.",
                remedy="Give every input.",
            )

    def _array(self, name: str, value: Any) -> np.ndarray:
        """Return a value as an array; raise `InvalidArgument` if it does not fit its input."""
        number = self._names.index(name)
        kind = self._source.inputs[number].type.tensor_type
        dtype = DTYPES.get(kind.elem_type, "")
        array = any_array(name, value)
        if dtype and not hasattr(value, "dtype") and array.dtype.kind in "biuf":
            # Lists have no type of their own.
            array = array.astype(dtype, copy=False)
        if array.dtype.name != dtype:
            raise InvalidArgument(
                f"The input {name!r} was given as {array.dtype.name}, but the model takes "
                f"{self._inputs[number].type}.",
                remedy=f"Convert it: array.astype({dtype!r}).",
            )
        dims = self._declared[name]
        fits = dims is None or (
            len(dims) == array.ndim
            and all(
                not is_fixed(dim) or dim == extent
                for dim, extent in zip(dims, array.shape, strict=True)
            )
        )
        # An input that the model itself declares to be empty is a constant.
        if not fits or (not array.size and 0 not in (dims or ())):
            raise InvalidArgument(
                f"The input {name!r} was given with shape {list(array.shape)}, but the model takes "
                f"{self._inputs[number].shape}, with elements.",
                remedy="Reshape or resize it.",
            )
        return array

    def _no_output(self, names: Sequence[str]) -> InvalidArgument:
        """Return the error for a name that is no output."""
        wrong = next(name for name in names if name not in self._output_names)
        near = get_close_matches(str(wrong), self._output_names, 1)
        return InvalidArgument(
            f"The output {wrong!r} was asked for, but the model has "
            f"{', '.join(map(repr, self._output_names))}.",
            remedy=f"Did you mean {near[0]!r}?" if near else "Use one of these.",
        )

    def _warn_of_churn(self, key: Key) -> None:
        """Warn once if many shapes were compiled."""
        self._seen.append(key)
        if len(self._seen) != CHURN:
            return
        axes = []
        for number, name in enumerate(self._names):
            for axis, extents in enumerate(zip(*(k[number] for k in self._seen), strict=False)):
                if len(different := set(extents)) > 1:
                    axes.append(
                        f"axis {axis} of {name!r} ({len(different)} values from "
                        f"{min(different)} to {max(different)})"
                    )
        logger.warning(
            "%d shapes of %s were compiled; what differs is %s. Resize inputs to a few shapes, or "
            "allow padding with `buckets`.",
            CHURN, self._source.label, "; ".join(axes) or "the value of an input",
        )  # fmt: skip


def _in_parts(modules: Sequence[Module], proof: JsonMapping) -> Runner:
    """Return a runner that splits a batch into those of the modules."""

    def run(feed: Mapping[str, Any]) -> Results:
        values = [feed[info.name] for info in modules[0].inputs]
        return run_any(modules, values, proof, lambda number, part: modules[number].run(part))

    return run


def _read(model: str | os.PathLike[str] | bytes | onnx.ModelProto) -> Source:
    """Parse a model; without external data nothing of it is read later."""
    with conversion(InvalidProtobuf):
        source = open_model(model, large_weight_bytes=_EVERYTHING)
    return replace(source, large_weight_bytes=LARGE_WEIGHT_BYTES)


def _reference(model: str | os.PathLike[str] | bytes | onnx.ModelProto) -> Any:
    """Return ONNX Runtime's session of a model."""
    import onnxruntime

    if hasattr(model, "SerializeToString"):
        model = model.SerializeToString()
    return onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])


def _is_static(dims: Sequence[int | str | None] | None) -> bool:
    """Return whether the model fixes an input's shape."""
    return dims is not None and all(map(is_fixed, dims))
