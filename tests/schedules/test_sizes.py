"""Sizes of work-groups: their waves are full, and their items few enough."""

from __future__ import annotations

import random
from math import prod

import pytest

from tvmflow.schedules.sizes import filled_group, lanes_filled

#: Sizes and waves of presets: Adreno, Mali, NVIDIA, and a CPU.
GROUPS = ((64, 64), (32, 16), (64, 32), (1, 1))


@pytest.mark.parametrize(
    ("extents", "group"),
    [
        # The last axis first, if that fills the wave.
        ((56, 56), (1, 56)),
        ((8, 8, 8), (1, 8, 8)),
        ((250,), (64,)),
        # Two waves are fuller than one, or items along other axes.
        ((3, 42), (3, 21)),
        ((33, 3, 3), (7, 3, 3)),
        ((197, 24, 1), (8, 8, 1)),
        ((2, 2, 197, 6), (1, 1, 9, 6)),
    ],
)
def test_groups_of_waves_of_64(extents, group):
    assert filled_group(extents, 64, wave=64) == group


@pytest.mark.parametrize(("size", "wave"), GROUPS)
def test_groups_fill_their_waves(size, wave):
    rng = random.Random(0)
    lengths = (1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 14, 20, 28, 42, 49, 56, 80, 112, 197, 256)
    for _ in range(500):
        extents = [rng.choice(lengths) for _ in range(rng.choice((1, 2, 3, 4)))]
        group = filled_group(extents, size, wave=wave)
        assert prod(group) <= max(size, 2 * wave)
        assert all(1 <= along <= extent for along, extent in zip(group, extents, strict=True))
        if prod(extents[-3:]) >= 4 * wave:
            assert lanes_filled(extents, group, wave) >= 0.75, extents


def test_the_widest_group_is_kept():
    assert filled_group((100, 3, 100), 64, widest=4, wave=64)[-1] <= 4
