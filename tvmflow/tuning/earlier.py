"""What is known of a task before a session begins: its own device's trials, and others' knobs.

Costs of different devices, or of one with different drivers, cannot be compared.  Of what others
measured, also in the same journal, only the best knobs are taken, to be tried early.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from ..journal.journal import Journal
from ..journal.records import Device, Trial
from .progress import Knobs
from .search import key_of
from .tasks import Task


def trials_of(
    task: Task, journal: Journal, devices: Sequence[Device]
) -> tuple[list[Trial], list[Trial]]:
    """A journal's trials of a task: those of these devices, and the best of each other one."""
    own: list[Trial] = []
    others: dict[Device, Trial] = {}
    for trial in journal.trials(task.workload):
        if trial.target.kin != task.journal_target.kin or not _fits(task, trial):
            continue
        if any(_is_same(trial.device, device) for device in devices):
            own.append(trial)
        elif trial.cost < getattr(others.get(trial.device), "cost", float("inf")):
            others[trial.device] = trial
    return own, list(others.values())


def _is_same(measured: Device, device: Device) -> bool:
    """Whether a trial's device is one of this session's; what either does not know is no reason."""
    if not measured.name:
        # It was not measured: the build failed, or the process ended.
        return True
    if not device.name:
        # A stock server tells its name only when it is lent.
        return measured.rpc_key == device.rpc_key
    drivers = {measured.driver, device.driver} - {""}
    return measured.name == device.name and len(drivers) < 2


def knobs_of_others(
    task: Task, others: Iterable[Trial], relatives: Iterable[Journal]
) -> list[Knobs]:
    """Knobs that were best elsewhere, those that this device allows.

    Parameters
    ----------
    task
        The task.
    others
        The best trials of other devices.
    relatives
        Journals of other devices, which may have the same loops with other storage only.
    """
    found: dict[tuple[Any, ...], Knobs] = {}
    nearest = [journal.nearest(task.workload, task.journal_target) for journal in relatives]
    for trial in (*others, *nearest):
        if trial is not None and _fits(task, trial):
            knobs = dict(trial.knobs)
            found[key_of(knobs)] = knobs
    return list(found.values())


def _fits(task: Task, trial: Trial) -> bool:
    """Whether a trial's knobs are still this task's, and this device allows them."""
    return trial.knobs.keys() == task.space.keys() and task.allows(trial.knobs)
