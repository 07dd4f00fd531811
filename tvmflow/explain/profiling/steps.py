"""When in a run the steps of a memory plan begin."""

from __future__ import annotations

from collections import Counter

from .record import Profile


def step_starts(profile: Profile) -> list[float] | None:
    """The begin of each of `Profile.memory`'s steps in µs: of the first launch of its call.

    ``None`` where launches are not those of the plan.
    """
    kernels = profile.kernels
    launches = Counter(kernel.function for kernel in kernels)
    calls = Counter(step.function for step in profile.memory)
    starts: list[float] = []
    position = 0
    for function in (step.function for step in profile.memory):
        # A function launches as many kernels in each of its calls, or none.
        count = launches[function] // calls[function]
        if position + count > len(kernels) or (count and kernels[position].function != function):
            return None
        if position < len(kernels):
            starts.append(kernels[position].start_us)
        else:
            starts.append(kernels[-1].start_us + kernels[-1].median_us if kernels else 0.0)
        position += count
    return starts
