"""Levels of caches, from folders as Linux has them."""

from __future__ import annotations

import pytest

from tvmflow.explain.profiling import caches
from tvmflow.explain.profiling.caches import Cache, cpu_caches

K, M = 1 << 10, 1 << 20


@pytest.fixture
def described(monkeypatch, tmp_path):
    """A function that describes caches: level, type, size, processors that share it."""
    monkeypatch.setattr(caches, "_CACHES", tmp_path)

    def describe(*levels):
        for number, facts in enumerate(levels):
            folder = tmp_path / f"index{number}"
            folder.mkdir()
            names = ("level", "type", "size", "shared_cpu_list")
            for name, fact in zip(names, facts, strict=True):
                (folder / name).write_text(f"{fact}\n")

    return describe


def test_levels_and_what_a_thread_has_of_them(described):
    described(
        (3, "Unified", "32M", "0-3,8-11"),
        (1, "Data", "48K", "0"),
        (1, "Instruction", "32K", "0"),
        (2, "Unified", "1024K", "0,8"),
    )
    assert cpu_caches(8) == [
        Cache("L1", 48 * K, 8 * 48 * K),
        Cache("L2", 512 * K, 4 * M),
        Cache("L3", 4 * M, 32 * M),
    ]
    # One thread has all that is shared.
    assert cpu_caches(1) == [
        Cache("L1", 48 * K, 48 * K), Cache("L2", M, M), Cache("L3", 32 * M, 32 * M)
    ]  # fmt: skip
    # Two complexes of eight have two such caches.
    assert cpu_caches(16)[-1] == Cache("L3", 4 * M, 64 * M)


def test_a_level_that_hardly_holds_more_is_left_out(described):
    described((1, "Data", "32K", "0"), (2, "Unified", "1M", "0"), (3, "Unified", "11M", "0-7"))
    assert [cache.name for cache in cpu_caches(8)] == ["L1", "L2"]
    assert [cache.name for cache in cpu_caches(2)] == ["L1", "L2", "L3"]


def test_levels_that_are_not_known_are_left_out(described, tmp_path):
    assert cpu_caches(2) == []
    described(
        (1, "Data", "", "0"), (2, "Unified", "many", "0"), (3, "Unified", "8M", "x"),
        (4, "Unified", "64M", "0-1"),
    )  # fmt: skip
    (tmp_path / "index5").mkdir()
    assert cpu_caches(2) == [Cache("L4", 32 * M, 64 * M)]
