"""Compile and run networks, in a separate process that may crash or hang."""

from __future__ import annotations

import os
import random
import traceback
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cached_property
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import onnx
from configurations import BACKENDS, Configuration
from contexts import Network, merged
from flow import in_flow
from support import cuda_host

RIGHT, WRONG, REFUSED, INTERNAL, CRASH, HANG, UNJUDGED = KINDS = (
    "right", "wrong", "refused", "internal", "crash", "hang", "unjudged",
)  # fmt: skip


@dataclass(frozen=True)
class Outcome:
    """Result of compiling and running a network.

    Parameters
    ----------
    kind
        ``ran`` with results, ``refused`` or ``internal`` with a message.
    results
        Arrays by name of the output.
    knobs
        Random knobs by primary function.
    """

    kind: str
    message: str = ""
    results: Mapping[str, np.ndarray] | None = None
    knobs: Mapping[str, Mapping[str, Any]] | None = None


#: Parts of messages that show an accident within the compiler, not one of its decisions.
ACCIDENTS = (
    "could not be scheduled",
    "could not be generated",
    "could not be turned into loops",
    "TVM does not take it",
    "Check failed",
)


def compile_and_run(
    networks: Sequence[Network], configuration: Configuration, *, alone: bool = False
) -> list[Outcome]:
    """Compile networks as one and run it; one by one if that fails."""
    if len(networks) > 1 or not alone:
        outcomes = [_refusal(network, configuration) for network in networks]
        left = [n for n, outcome in zip(networks, outcomes, strict=True) if outcome is None]
        if left:
            found = _attempt(left, configuration)
            if found.kind != "ran" and len(left) > 1:
                each = [_attempt([network], configuration) for network in left]
            else:
                each = [found] * len(left)
            iterator = iter(each)
            outcomes = [outcome or next(iterator) for outcome in outcomes]
        return [outcome for outcome in outcomes if outcome]
    return [_attempt(networks, configuration)]


def model_of(networks: Sequence[Network], configuration: Configuration) -> onnx.ModelProto:
    """Return networks joined to the one model that is compiled."""
    flow = configuration.options.get("flow")
    return merged([in_flow(n, flow) for n in networks] if flow else networks)


def _refusal(network: Network, configuration: Configuration) -> Outcome | None:
    """Return the front end's refusal of a network, which is quick to find out."""
    from tvmflow.errors import TvmflowError
    from tvmflow.frontend.load import load_model

    try:
        load_model(model_of([network], configuration))
    except TvmflowError as error:
        return _failed(error)
    except Exception as error:  # noqa: BLE001 (that it is another one is what is to be found)
        return _failed(error)
    return None


def _failed(error: Exception) -> Outcome:
    from tvmflow.errors import CompileError, ModelError, TargetError

    message = str(error).strip() or type(error).__name__
    # An error of a driver about a compiled module is not a refusal, unless fp16 was requested and
    # the driver has no fp16 arithmetic.
    decided = isinstance(error, (CompileError, ModelError, TargetError))
    decided = decided or "its kernels need cl_khr_fp16" in message
    if decided and not any(text in message for text in ACCIDENTS):
        return Outcome("refused", message)
    where = "".join(traceback.format_exception(error)[-3:])
    return Outcome("internal", f"{type(error).__name__}: {message}\n{where}")


def _attempt(networks: Sequence[Network], configuration: Configuration) -> Outcome:
    feeds = {name: array for n in networks for name, array in n.feeds.items()}
    model = model_of(networks, configuration)
    knobs: dict[str, dict[str, Any]] = {}
    from tvmflow.errors import CompileError

    try:
        try:
            with quick.knobs(configuration.options.get("knobs"), knobs):
                module = _compiled(model, networks, configuration)
        except CompileError:
            if not knobs:
                raise
            # Knobs given by a user may lead to no code; they are dropped then.
            module = _compiled(model, networks, configuration, knobs)
        with module, _run_by(module, configuration) as module:
            from tvmflow.module.blocked_layout import all_to_blocked, all_to_logical

            results = run(module, all_to_blocked(module.inputs, feeds))
            found = all_to_logical(module.outputs, dict(results.items()))
            return Outcome("ran", results={k: np.array(v) for k, v in found.items()}, knobs=knobs)
    except Exception as error:  # noqa: BLE001 (which it is decides what it means)
        outcome = _failed(error)
        return Outcome(outcome.kind, outcome.message, knobs=knobs)


def _compiled(
    model: Any,
    networks: Sequence[Network],
    configuration: Configuration,
    knobs: Mapping[str, Mapping[str, Any]] | None = None,
) -> Any:
    import tvmflow

    return tvmflow.compile(model, knobs=knobs, **arguments(networks, configuration))


def _run_by(module: Any, configuration: Configuration) -> Any:
    """Return a context with the module, run by the configuration's backend if it has one."""
    import tvmflow

    backend = BACKENDS.get(configuration.options.get("format"))
    return nullcontext(module) if backend is None else tvmflow.load(module.path, backend=backend)


def arguments(networks: Sequence[Network], configuration: Configuration) -> dict[str, Any]:
    """Return the arguments of `tvmflow.compile`."""
    options = configuration.options
    more: dict[str, Any] = {}
    if "accumulate" in options:
        more["accumulate"] = options["accumulate"]
    if "format" in options:
        more["format"] = "standalone"
    if options.get("format") in BACKENDS:
        more["fallback"] = "cpu"
    if "algorithms" in options:
        names = [name for n in networks for name in suitable_convolutions(n)]
        more["algorithms"] = dict.fromkeys(names, options["algorithms"])
    if "keep_layout" in options:
        kept = [
            name
            for n in networks
            for name, array in n.feeds.items()
            if array.ndim == 4 and array.dtype == np.float32
        ]
        more["keep_layout"] = dict.fromkeys(kept, options["keep_layout"])
    return {**configuration.arguments, **more}


def suitable_convolutions(network: Network) -> list[str]:
    """Return the nodes that Winograd's algorithm can compute: 3×3, without strides and groups."""
    found = []
    for node in network.nodes:
        if node.op_type != "Conv" or node.input[1] not in network.constants:
            continue
        if network.constants[node.input[1]].dtype != np.float32:
            continue
        shape = network.constants[node.input[1]].shape
        attributes = {a.name: a for a in node.attribute}
        ones = all(
            set(attributes[name].ints) <= {1}
            for name in ("strides", "dilations")
            if name in attributes
        )
        groups = attributes["group"].i if "group" in attributes else 1
        if len(shape) == 4 and shape[2:] == (3, 3) and ones and groups == 1:
            found.append(node.name)
    return found


class Quick:
    """Settings that make many small networks cheap: code generators that hardly optimise."""

    #: Levels for LLVM kernels, and for host code that only launches kernels.
    OPTIMISATION, OPTIMISATION_OF_HOST = 1, 0

    def install(self) -> None:
        """Change the settings of this process."""
        from tvm.s_tir import Schedule
        from tvm.target import Target

        from tvmflow.devices.target import TargetSpec
        from tvmflow.runtime.plugin import configure

        configure(build_options="-cl-opt-disable")
        # TVM checks the types of all arguments of its own methods: a tenth of the time.
        for name, method in list(vars(Schedule).items()):
            if hasattr(method, "__wrapped__"):
                setattr(Schedule, name, method.__wrapped__)
        whole = TargetSpec.tvm_target.func  # type: ignore[attr-defined]

        def changed(description: Mapping[str, Any], level: int) -> dict[str, Any]:
            result = dict(description)
            if result["kind"] == "llvm":
                result["opt-level"] = level
            if result.get("host"):
                result["host"] = changed(result["host"], self.OPTIMISATION_OF_HOST)
            return result

        def tvm_target(spec: TargetSpec) -> Target:
            return Target(changed(whole(spec).export(), self.OPTIMISATION))

        attribute = cached_property(tvm_target)
        attribute.__set_name__(TargetSpec, "tvm_target")
        TargetSpec.tvm_target = attribute  # type: ignore[assignment]

    def knobs(self, seed: int | None, drawn: dict[str, dict[str, Any]]) -> RandomKnobs:
        """Return a context in which primary functions get random knobs."""
        return RandomKnobs(seed, drawn)


class RandomKnobs:
    """Give every primary function random knobs from its family's space, while entered.

    Parameters
    ----------
    seed
        ``None`` changes nothing.
    drawn
        Receives the knobs by function.
    """

    def __init__(self, seed: int | None, drawn: dict[str, dict[str, Any]]):
        self._random = None if seed is None else random.Random(seed)
        self._drawn = drawn

    def __enter__(self) -> None:
        from tvmflow.compiler import scheduling

        self._original = scheduling.schedule_function
        if self._random is not None:
            scheduling.schedule_function = self._schedule  # type: ignore[assignment]

    def __exit__(self, *_: object) -> None:
        from tvmflow.compiler import scheduling

        scheduling.schedule_function = self._original

    def _schedule(
        self, function: Any, target: Any, given: Any, name: str, *more: Any, **options: Any
    ) -> Any:
        from tvmflow.schedules import FAMILIES
        from tvmflow.schedules.common import Workload
        from tvmflow.schedules.family import refusal

        chosen = self._original(function, target, given, name, *more, **options)
        family = next(f for f in FAMILIES if chosen.family == f.NAME)
        shape = family.match(Workload.of(function, target))
        space = family.space(shape, target.device) if shape is not None else {}
        if not space:
            return chosen
        for _ in range(20):
            values = {knob: self._random.choice(options) for knob, options in space.items()}
            knobs = family.Knobs(**values)
            if refusal(family, knobs, shape, target.device) is None:
                self._drawn[name] = values
                return self._original(function, target, values, name, *more, **options)
        return chosen


quick = Quick()


def plainly(module: Any, feeds: Mapping[str, Any]) -> Any:
    """Run a module as users do; return its results."""
    return module(feeds)


#: Function that runs modules; for CUDA on the host it runs several orders of threads.
run = plainly


def serve(connection: Connection, log: str, optimised: bool, cuda_on_host: bool) -> None:
    """Answer requests with outcomes until the connection is closed."""
    global run
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    import logging

    import tvmflow  # noqa: F401 (before what is timed)

    logging.getLogger("tvmflow").setLevel(logging.ERROR)
    if not optimised:
        quick.install()
    if cuda_on_host:
        from tvmflow.devices import target

        # Code is generated for a known GPU, not for the properties that the host reports.
        assumed = target.first_gpu()
        target.first_gpu = lambda: assumed
        cuda_host.install()
        run = cuda_host.run
    connection.send("ready")
    while True:
        try:
            networks, configuration, alone = connection.recv()
        except EOFError:
            return
        connection.send(compile_and_run(networks, configuration, alone=alone))
