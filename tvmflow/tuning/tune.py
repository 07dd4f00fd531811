"""``tvmflow.tune``: a tuning session as one call."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..compiler.options import CompileKeywords, takes_options, with_keywords
from .remote import RemoteDevices
from .session import Network, Options, Tuned
from .session import tune as run_session
from .tuner import Budget

if TYPE_CHECKING:
    import onnx
    from typing_extensions import Unpack


@takes_options
def tune(
    model: str | os.PathLike[str] | onnx.ModelProto,
    journal: str | os.PathLike[str],
    *,
    trials: int = Budget.trials,
    seconds: float | None = None,
    patience: int | None = None,
    search: str = Options.search,
    seed: int = 0,
    device_index: int = 0,
    compare: bool = True,
    build_on: str | None = None,
    relatives: Sequence[str | os.PathLike[str]] = (),
    **options: Unpack[CompileKeywords],
) -> Tuned:
    """Find better knobs for a network's primary functions by measuring them.

    They are measured on this machine, or on the phone or board of `tvmflow.connect` that is given
    as ``device``.

    Parameters
    ----------
    model
        An ONNX model: a path, or a model in memory.
    journal
        The file for all trials, created if it does not exist.  Tuning continues after its last
        trial; ``tvmflow.compile(model, journals=[journal])`` uses it.
    trials, seconds, patience
        Trials of each task; seconds after which no trial is started, except the heuristics';
        number of trials without an improvement after which a task is left.
    search
        ``evolutionary``, ``random``, ``grid`` or ``neighbourhood``.
    seed
        Seed of proposals, which are repeatable as far as costs are.
    device_index
        Index of the target's device that measures.
    compare
        Measure the whole network before and after, at the end.
    build_on
        Address of a Dask scheduler, such as ``tcp://10.0.0.2:8786``, whose workers build
        candidates; without it, this machine does (docs/tuning.md).
    relatives
        Journals of other devices of the same kind, whose best knobs are tried first.
    options
        How the network is compiled, as for `tvmflow.compile`: the keywords below.

    Returns
    -------
    Tuned
        Its ``progress`` has the results of each task, with times in seconds.

    Raises
    ------
    TvmflowError
        If the model, the target, the journal or the device fails.

    Examples
    --------
    >>> tvmflow.tune("mobilenet_v2.onnx", "cpu.journal", seconds=900)
    <Tuned: 21 tasks, 402 trials in 905 s; network 14.20 ms before, 9.81 ms after>
    """
    phone = options.get("device", "")
    there: RemoteDevices | None = None
    if not isinstance(phone, str):
        from ..compiler.remote import device_file_of

        there = RemoteDevices(phone, device_index)
        options = {**options, "device": str(device_file_of(phone, device_index))}
    network = Network(model, with_keywords(None, options, "tune"))
    how = Options(
        budget=Budget(trials, seconds, patience),
        search=search,
        seed=seed,
        build_on=build_on,
        device_index=device_index,
        compare=compare,
    )
    return run_session(network, journal, how, relatives=relatives, farm=there)
