"""Bounds of kernels for invented times and counts."""

from __future__ import annotations

import dataclasses

import pytest
from support.profiles import synthetic_profile

from tvmflow.explain.profiling.ceilings import above, rated
from tvmflow.explain.profiling.record import CacheCeiling, Ceilings

#: A device that computes 10 operations in the time of a byte.
CEILINGS = Ceilings(10.0, 100.0, 5.0, texture_gbps=40.0, int8_gops=400.0)


def kernel(us, flops, read, written=0, **changes):
    (plain,) = synthetic_profile(kernels=1).kernels
    plain = dataclasses.replace(
        plain, median_us=us, flops=flops, bytes_read=read, bytes_written=written, **changes
    )
    return rated(plain, CEILINGS)


def test_rates_are_counts_over_time():
    found = kernel(100.0, flops=5_000_000, read=300_000, written=100_000)
    assert (found.gflops, found.gbps, found.intensity) == (50.0, 4.0, 12.5)
    assert found.roofline_share == 0.5


@pytest.mark.parametrize(
    ("us", "flops", "read", "bound"),
    [
        (100.0, 9_000_000, 100_000, "arithmetic"),
        (100.0, 100_000, 900_000, "bandwidth"),
        (100.0, 1_000_000, 100_000, "latency"),
        (9.9, 900_000, 10_000, "launch"),
        (10.1, 900_000, 10_000, "arithmetic"),
    ],
)
def test_bounds(us, flops, read, bound):
    assert kernel(us, flops, read).bound == bound


def test_what_a_cache_holds_is_faster_than_memory():
    found = kernel(100.0, flops=0, read=5_000_000)
    assert found.gbps == 50.0
    assert (found.roofline_share, found.bound) == (1.0, "bandwidth")


def test_a_kernel_has_the_roof_of_the_cache_that_holds_it():
    caches = (CacheCeiling("L1", 50_000, 100.0), CacheCeiling("L2", 2_000_000, 40.0))
    known = dataclasses.replace(CEILINGS, caches=caches)

    def rated_with(bytes_moved, **changes):
        # 20 bytes per nanosecond: twice the memory's rate.
        plain = kernel(bytes_moved / 20e3, flops=0, read=bytes_moved // 2, written=bytes_moved // 2)
        return rated(dataclasses.replace(plain, **changes), dataclasses.replace(known, launch_us=0))

    small, middle, large = map(rated_with, (50_000, 2_000_000, 2_000_002))
    assert [k.memory for k in (small, middle, large)] == ["L1", "L2", "copy"]
    shares = [k.roofline_share for k in (small, middle, large)]
    assert shares == pytest.approx([0.2, 0.5, 1.0])
    # Far below the roof of its cache, it is not bound by bandwidth.
    assert [k.bound for k in (small, middle, large)] == ["latency", "bandwidth", "bandwidth"]
    texels = rated_with(50_000, memory="texture")
    assert (texels.memory, texels.roofline_share) == ("texture", pytest.approx(0.5))
    # Other ceilings may have other caches.
    assert rated(small, CEILINGS).memory == "copy"


def test_a_kernel_has_the_ceilings_of_what_it_does():
    whole = kernel(100.0, flops=20_000_000, read=1, arithmetic="int8")
    assert whole.roofline_share == 0.5
    # A device without half precision computes in fp32.
    half = kernel(100.0, flops=5_000_000, read=1, arithmetic="fp16")
    assert half.roofline_share == 0.5
    texels = kernel(100.0, flops=0, read=2_000_000, memory="texture")
    assert texels.roofline_share == 0.5


def test_without_counts_there_is_a_time():
    unknown = {"flops": None, "read": None, "written": None, "roofline_share": None, "bound": None}
    found = kernel(100.0, **unknown)
    assert (found.roofline_share, found.bound) == (None, None)
    assert kernel(1.0, **unknown).bound == "launch"


def test_a_kernel_may_take_no_time_by_a_coarse_clock():
    found = kernel(0.0, flops=1000, read=100, roofline_share=None, bound=None)
    assert (found.gflops, found.gbps, found.roofline_share) == (None, None, None)
    assert (found.intensity, found.bound) == (10.0, "launch")


def test_without_ceilings_there_are_rates():
    (plain,) = synthetic_profile(kernels=1).kernels
    blank = dataclasses.replace(plain, roofline_share=None, bound=None)
    found = rated(blank, None)
    assert found.gflops == pytest.approx(plain.flops / plain.median_us / 1e3)
    assert (found.roofline_share, found.bound) == (None, None)


def test_what_is_above_its_ceiling():
    """A copy may exceed its ceiling, because of caches; arithmetic may not."""
    fast = kernel(100.0, flops=11_100_000, read=100)
    near = kernel(100.0, flops=10_900_000, read=100)
    cached = kernel(100.0, flops=100, read=9_000_000)
    uncounted = kernel(100.0, flops=None, read=None)
    quantized = kernel(100.0, flops=39_000_000, read=100, arithmetic="int8")
    assert above([fast, near, cached, uncounted, quantized], CEILINGS) == [fast]
