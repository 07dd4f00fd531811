"""Times over a link, against a simulation of each transfer and call."""

from __future__ import annotations

import pytest
from support.tiny_model import tiny_model

import tvmflow
from tvmflow.errors import InputError
from tvmflow.explain.scaling.link import COUNTS, Link, Prediction
from tvmflow.explain.scaling.measure import Point, Scaling
from tvmflow.explain.scaling.sources import Network
from tvmflow.runtime.timing import Spread

LINK = Link(1e6, 1e-3)


def in_order(jobs):
    """Return when the last of the jobs ends, each a list of (resource, seconds)."""
    free, last = {}, 0.0
    # A resource serves one job at a time, in the order in which they are ready.
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
def test_calls_wait_for_the_hosts_link(devices, sizes):
    found = Prediction(LINK, 3, 0.05, *sizes)
    there, back = (LINK.latency_s + size / LINK.bytes_per_s for size in sizes)
    calls = [[("out", there), (n, 0.05), ("in", back)] for n in range(devices)]
    wanted = 3 * devices / in_order(calls)
    assert found.items_per_s(devices) == pytest.approx(wanted)
    assert found.efficiency(devices) == pytest.approx(wanted / (3 * devices / 0.05))


def test_a_link_without_cost_is_no_loss():
    found = Prediction(Link(1e30, 0.0), 1, 1.0, 1000, 1000)
    assert [found.efficiency(n) for n in COUNTS] == pytest.approx([1.0] * len(COUNTS))


def test_the_largest_batch_on_one_device_is_taken(tmp_path):
    for batch in (1, 4):
        shapes = {"x/in": (batch, 3, 8, 8)}
        tvmflow.compile(tiny_model(), target="llvm", shapes=shapes).save(tmp_path / f"{batch}.so")
    modules = {batch: tmp_path / f"{batch}.so" for batch in (1, 4)}
    points = [
        Point.of_calls(batch, threads, devices, Spread(ms, ms, ms))
        for batch, threads, devices, ms in ((1, 2, 1, 3.0), (4, 1, 1, 9.0), (4, 2, 1, 6.0))
    ]
    points.append(Point.of_calls(4, 2, 2, Spread(7.0, 7.0, 7.0)))
    network = Network("llvm", "", modules, frozenset(["x/in"]))
    found = Prediction.of(network, Scaling("llvm", "", tuple(points)), LINK)
    # Four pictures of 3 x 8 x 8 and a vector of four, in fp32.
    assert (found.batch, found.call_s) == (4, pytest.approx(6e-3))
    assert found.input_bytes == 4 * (4 * 3 * 8 * 8 + 4)
    report = found.described()
    assert report["link"] == {"bytes_per_s": 1e6, "latency_s": 1e-3}
    assert [row["devices"] for row in report["predicted"]] == [1, 2, 4, 8, 16, 32, 64]
    rates = [row["efficiency"] for row in report["predicted"]]
    assert rates == sorted(rates, reverse=True)


@pytest.mark.parametrize(
    ("text", "rate"), [("10Gbit", 1.25e9), ("500MB/s", 5e8), ("1.5 kB", 1500.0), ("8bit", 1.0)]
)
def test_bandwidths(text, rate):
    assert Link.parse(text, 20) == Link(rate, pytest.approx(20e-6))


@pytest.mark.parametrize("text", ["", "10", "fast", "0MB", "-1GB", "10TB"])
def test_what_is_no_bandwidth_is_refused(text):
    with pytest.raises(InputError, match="a bandwidth above 0 was expected"):
        Link.parse(text, 0)


def test_a_link_in_words():
    assert str(LINK) == "8 Mbit/s, 1e+03 µs"
    assert str(Link(1.25e9, 2e-5)) == "10 Gbit/s, 20 µs"
