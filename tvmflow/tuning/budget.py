"""When tuning ends: trials, seconds, or patience."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Budget:
    """What tuning may take.

    Parameters
    ----------
    trials
        Of each task, those of an earlier session included.
    seconds
        Of the whole session, or ``None``.
    patience
        A task is left when so many trials in a row brought nothing, or ``None``.
    """

    trials: int = 32
    seconds: float | None = None
    patience: int | None = None
