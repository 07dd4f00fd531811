"""``torch.compile(net, backend="tvmflow")``: graphs of PyTorch's compiler, run by tvmflow.

>>> net = torch.compile(net.eval(), backend="tvmflow", options={"target": "opencl"})
>>> with torch.no_grad():
...     scores = net(image)

TorchDynamo passes on the graph of tensor operations of a function.  For each shape that comes it is
exported to ONNX, its parameters as weights, and run in an `InferenceSession`, which keeps compiled
modules on the disk.  A graph for training, or one that tvmflow cannot compile, runs in PyTorch as
it is; a warning in the log says why.

Source: docs.pytorch.org, "Custom Backends".
"""

from __future__ import annotations

import logging
import tempfile
import threading
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from .compiler.torch_module import write_onnx
from .errors import TvmflowError, UnsupportedModelError
from .onnxruntime.providers import TARGETS, choose
from .onnxruntime.session import InferenceSession

logger = logging.getLogger(__name__)

#: Shapes of the tensors of a call, and its numbers, without the weights.
Key = tuple[Any, ...]
_PROVIDERS = {target: name for name, target in TARGETS.items()}


def compile_graph(
    graph: torch.fx.GraphModule,
    example_inputs: Sequence[Any],
    *,
    options: Mapping[str, Any] | None = None,
    **_: object,
) -> Callable[..., Any]:
    """Return a function that runs a graph: the entry point of ``torch.compile``.

    ``options`` are those of `tvmflow.compile`; the default target is ``llvm``.  Raises
    `TargetError` and `UnknownOptionError` for options that are unknown.
    """
    given = dict(options or {})
    target = given.pop("target", "llvm")
    # Options are checked now, not where a failure would make PyTorch run the graph.
    provider = (_PROVIDERS.get(target, target), given)
    choose([provider], None)
    tensors = [each for each in example_inputs if isinstance(each, torch.Tensor)]
    if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors):
        return _in_pytorch(graph, "gradients are recorded; `torch.no_grad()` turns that off")
    if devices := {tensor.device.type for tensor in tensors} - {"cpu"}:
        return _in_pytorch(graph, f"its tensors are on the device {devices.pop()}, not the CPU")
    return _Network(graph, example_inputs, provider)


class _Network:
    """A graph, compiled for each shape of its inputs at first use."""

    def __init__(
        self, graph: torch.fx.GraphModule, examples: Sequence[Any], provider: tuple[str, Any]
    ) -> None:
        self._graph, self._provider = graph, provider
        #: Positions of parameters and buffers.
        self._fixed = [number for number, each in enumerate(examples) if _is_weight(each)]
        self._free = sorted({*range(len(examples))} - {*self._fixed})
        #: The weights that were compiled, with the version of their content.
        self._weights: list[tuple[int, torch.Tensor, int]] = []
        self._runners: dict[Key, Callable[[Sequence[torch.Tensor]], Any]] = {}
        self._lock = threading.RLock()
        #: Why PyTorch runs the graph, if it does.
        self._reason = ""

    def __call__(self, *args: Any) -> Any:
        if self._reason:
            return self._graph(*args)
        for number, weight, version in self._weights:
            if args[number] is not weight or _version(weight) != version:
                self._forget()
                break
        key = tuple(a.shape if isinstance(a := args[n], torch.Tensor) else a for n in self._free)
        runner = self._runners.get(key)
        if runner is None:
            try:
                with self._lock:
                    runner = self._runners.get(key) or self._compiled(args)
                    self._runners[key] = runner
            except TvmflowError as error:
                self._reason = str(error)
                return _in_pytorch(self._graph, self._reason)(*args)
        return runner([args[n] for n in self._free if isinstance(args[n], torch.Tensor)])

    def _forget(self) -> None:
        """Drop modules whose weights were changed."""
        with self._lock:
            logger.info("Weights of a graph have changed: it is compiled again.")
            self._runners.clear()
            self._weights.clear()

    def _compiled(self, args: Sequence[Any]) -> Callable[[Sequence[torch.Tensor]], Any]:
        """Return a function of the inputs that are tensors, for their shapes."""
        weights = {number: args[number] for number in self._fixed}
        #: For each result, whether it is a tensor, and its value if it is not.
        results: list[tuple[bool, Any]] = []

        def note(found: Sequence[Any]) -> None:
            results[:] = [
                (True, None) if isinstance(r, torch.Tensor) else (False, r if r is None else int(r))
                for r in found
            ]

        wrapped = _Exported(self._graph, weights, args, note)
        tensors = tuple(args[n] for n in self._free if isinstance(args[n], torch.Tensor))
        program = _exported(wrapped, tuple(tensor.detach() for tensor in tensors))
        with tempfile.TemporaryDirectory(prefix="tvmflow-") as folder:
            path = Path(folder, "graph.onnx")
            write_onnx(program, (), {}, path)
            session = InferenceSession(path, providers=[self._provider])
        self._weights = [(n, weight, _version(weight)) for n, weight in weights.items()]
        names = [each.name for each in session.get_inputs()]

        def run(values: Sequence[torch.Tensor]) -> Any:
            arrays = [value.detach().resolve_conj().numpy() for value in values]
            found = iter(session.run(None, dict(zip(names, arrays, strict=True))))
            return tuple(
                torch.from_numpy(next(found)) if is_tensor else other
                for is_tensor, other in results
            )

        return run


class _Exported(torch.nn.Module):
    """A graph as a function of its free tensors; weights are buffers, and numbers constants."""

    def __init__(
        self,
        graph: torch.fx.GraphModule,
        weights: Mapping[int, Any],
        args: Sequence[Any],
        note: Callable[[Sequence[Any]], None],
    ) -> None:
        """Wrap a graph; ``note`` gets all of its results when it is traced."""
        super().__init__()
        self._graph, self._note = graph, note
        self._places = [
            isinstance(a, torch.Tensor) and n not in weights for n, a in enumerate(args)
        ]
        self._given = [None if n in weights or p else args[n] for n, p in enumerate(self._places)]
        for number, weight in weights.items():
            self.register_buffer(f"weight_{number}", weight.detach())

    def forward(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Return the results that are tensors."""
        rest = iter(tensors)
        args = [
            next(rest) if is_free else getattr(self, f"weight_{n}", self._given[n])
            for n, is_free in enumerate(self._places)
        ]
        found = self._graph(*args)
        self._note(found)
        return tuple(r for r in found if isinstance(r, torch.Tensor))


def _exported(
    module: torch.nn.Module, tensors: tuple[torch.Tensor, ...]
) -> torch.export.ExportedProgram:
    """Return a program without side effects; raise `UnsupportedModelError` if it has some."""
    try:
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            program = torch.export.export(module, tensors)
            # Only after this the signature lists what is changed in place.
            signature = program.run_decompositions({}).graph_signature
    except Exception as error:
        raise UnsupportedModelError(f"PyTorch could not export the graph: {error}") from error
    changed = [*signature.buffers_to_mutate.values(), *signature.user_inputs_to_mutate.values()]
    if changed:
        raise UnsupportedModelError(f"The graph changes {len(changed)} of its inputs or buffers.")
    for node in program.graph.nodes:
        if torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ()):
            raise UnsupportedModelError(f"The graph draws random numbers ({node.target}).")
    return program


def _in_pytorch(graph: torch.fx.GraphModule, reason: str) -> Callable[..., Any]:
    """Return the graph as PyTorch runs it, and say why in the log."""
    logger.warning("PyTorch runs a graph of torch.compile itself: %s", reason)
    run: Callable[..., Any] = graph.forward
    return run


def _is_weight(value: Any) -> bool:
    """Return whether an argument of a graph is a parameter or a buffer of a module."""
    marked = getattr(value, "_dynamo_static_input_type", None) is not None
    return isinstance(value, torch.nn.Parameter) or (isinstance(value, torch.Tensor) and marked)


def _version(tensor: torch.Tensor) -> int:
    """Return the number of changes of a tensor in place; 0 for one that does not count them."""
    return 0 if tensor.is_inference() else tensor._version
