"""Times over links, against a simulation of each transfer and call."""

from __future__ import annotations

import itertools
from dataclasses import replace
from xml.etree import ElementTree

import pytest
from profiles import synthetic_profile

from tvmflow.errors import FarmError, InputError
from tvmflow.explain.scaling import communication as module
from tvmflow.explain.scaling.communication import Link, Work
from tvmflow.explain.scaling.work import layers_of

LINK = Link(1e6, 1e-3)
WORK = Work(0.05, 6000, 400, 90_000, (3.0, 1.0, 4.0, 1.0, 5.0, 9.0, 2.0), (9, 800, 70, 6, 2000, 30))


def in_order(jobs):
    """End of jobs, each a list of (resource, seconds); a resource serves one after the other."""
    free, last = {}, 0.0
    # What is ready first is served first.
    waiting = [(0.0, number, list(job)) for number, job in enumerate(jobs)]
    while waiting:
        waiting.sort()
        ready, number, steps = waiting.pop(0)
        resource, seconds = steps[0]
        end = max(ready, free.get(resource, 0.0)) + seconds
        free[resource] = end
        last = max(last, end)
        if steps[1:]:
            waiting.append((end, number, steps[1:]))
    return last


@pytest.mark.parametrize("devices", [1, 2, 5, 64])
@pytest.mark.parametrize("sizes", [(6000, 400), (400, 6000)])
def test_data_parallel_calls_wait_for_the_hosts_link(devices, sizes):
    work = Work(0.05, *sizes, 0, (1.0,), ())
    there, back = (LINK.latency_s + size / LINK.bytes_per_s for size in sizes)
    calls = [[("out", there), (n, 0.05), ("in", back)] for n in range(devices)]
    assert module.data_parallel_s(work, LINK, devices) == pytest.approx(in_order(calls))


@pytest.mark.parametrize("devices", [1, 2, 3, 8])
def test_a_ring_sums_everything_in_its_time(devices):
    """Each device sends one part a step to the next one, which adds it, then keeps it."""
    parts = [{chunk: {n} for chunk in range(devices)} for n in range(devices)]
    clock = 0.0
    for phase, step in itertools.product((0, 1), range(devices - 1)):
        sent = [(n, (n + phase - step) % devices) for n in range(devices)]
        arrived = [(n, chunk, set(parts[n][chunk])) for n, chunk in sent]
        for n, chunk, members in arrived:
            parts[(n + 1) % devices][chunk] |= members
        clock += LINK.latency_s + 90_000 / devices / LINK.bytes_per_s
    assert all(members == {*range(devices)} for own in parts for members in own.values())
    assert module.all_reduce_s(90_000, LINK, devices) == pytest.approx(clock)


@pytest.mark.parametrize("microbatches", [1, 2, 9])
@pytest.mark.parametrize("stages", [1, 2, 4, 7])
def test_a_pipeline_takes_its_slowest_part_each_time(stages, microbatches):
    times, transfers = module.split(WORK, LINK, stages)
    assert (len(times), len(transfers)) == (stages, stages - 1)
    assert sum(times) == pytest.approx(WORK.call_s)
    steps = [("stage 0", times[0])]
    for number, (transfer, seconds) in enumerate(zip(transfers, times[1:], strict=True), 1):
        steps += [(f"link {number}", transfer), (f"stage {number}", seconds)]
    ended = in_order([steps] * microbatches)
    assert module.pipeline_s(times, transfers, microbatches) == pytest.approx(ended)


def test_layers_are_split_as_well_as_they_can_be():
    layers = [layer * WORK.call_s / sum(WORK.layers) for layer in WORK.layers]
    for stages in range(1, 8):
        every = []
        for cuts in itertools.combinations(range(1, 7), stages - 1):
            bounds = (0, *cuts, 7)
            own = [sum(layers[a:b]) for a, b in itertools.pairwise(bounds)]
            own += [1e-3 + WORK.between_bytes[cut - 1] / 1e6 for cut in cuts]
            every.append(max(own))
        times, transfers = module.split(WORK, LINK, stages)
        assert max(times + transfers) == pytest.approx(min(every))
    assert module.split(WORK, LINK, 8) is None


def test_equal_stages_without_a_link_are_gpipes_bubble():
    work = Work(1.0, 0, 0, 0, (1.0,) * 8, (0,) * 7)
    found = module.predict_efficiency(work, Link(1e30, 0.0), 6, (1, 4, 8, 16))
    piped = [e.efficiency for e in found if e.scheme == module.PIPELINE]
    assert piped[:3] == pytest.approx([1.0, 6 / 9, 6 / 13])
    assert piped[3] is None
    assert all(e.efficiency == pytest.approx(1) for e in found if e.scheme != module.PIPELINE)


@pytest.mark.parametrize(
    ("text", "rate"), [("10Gbit", 1.25e9), ("500MB/s", 5e8), ("1.5 kB", 1500.0), ("8bit", 1.0)]
)
def test_bandwidths(text, rate):
    assert Link.parse(text, 20) == Link(rate, pytest.approx(20e-6))


@pytest.mark.parametrize("text", ["", "10", "fast", "0MB", "-1GB", "10TB"])
def test_what_is_no_bandwidth_is_refused(text):
    with pytest.raises(InputError, match="a bandwidth above 0 was expected"):
        Link.parse(text, 0)


def test_layers_are_calls_and_what_later_ones_read():
    found = synthetic_profile(kernels=3)
    metadata = {
        "memory": {
            "tensors": [
                {"bytes": 100, "first": 0, "last": 2},
                {"bytes": 7, "first": 0, "last": 1},
                {"bytes": 30, "first": 1, "last": 2},
                {"bytes": 9, "first": 2, "last": 2},
            ]
        }
    }
    layers, between = layers_of(found, metadata)
    assert layers == pytest.approx([kernel.median_us for kernel in found.kernels])
    assert between == (107, 130)
    assert layers_of(replace(found, memory=()), metadata) == ((1.0,), ())


def test_a_plot_has_a_curve_for_each_scheme():
    found = module.predict_efficiency(WORK, LINK, 4)
    drawn = ElementTree.fromstring(module.plot("a < b", found))
    curves = [node.get("points").split() for node in drawn.iter() if node.tag.endswith("polyline")]
    # Seven layers make no more stages.
    assert [len(curve) for curve in curves] == [7, 7, 3]
    for curve in curves[:2]:
        heights = [float(point.split(",")[1]) for point in curve]
        assert heights == sorted(heights)


def test_a_link_is_the_line_through_two_transfers():
    times = [(size, LINK.seconds(size)) for size in (4 << 10, 4 << 20)]
    found = Link.of_transfers(*times)
    assert (found.bytes_per_s, found.latency_s) == pytest.approx((1e6, 1e-3))
    assert str(found) == "8 Mbit/s, 1e+03 µs"
    with pytest.raises(FarmError, match="more bytes were expected to take longer"):
        Link.of_transfers(*((size, 1.0) for size, _ in times))
