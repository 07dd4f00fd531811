"""Times of launches over several runs."""

from __future__ import annotations

import pytest
from onnx import helper
from support import tiny_network
from support.counted_network import small_network
from support.operators import build

import tvmflow
from tvmflow.errors import DeviceError
from tvmflow.module.kernel_time import kernel_times
from tvmflow.module.samples import random_inputs


def run(*launches):
    """Return a run of kernels with start and end times."""
    return [{"kernel": n, "start_us": start, "us": end - start} for n, start, end in launches]


def test_each_launch_has_its_median_over_the_runs():
    times = kernel_times(
        [
            run(("a", 0.0, 10.0), ("b", 12.0, 15.0), ("a", 15.0, 19.0)),
            run(("a", 100.0, 130.0), ("b", 131.0, 136.0), ("a", 139.0, 145.0)),
            # Queues may report a launch that starts before the previous one has ended.
            run(("a", 200.0, 220.0), ("b", 219.0, 223.0), ("a", 224.0, 229.0)),
        ],
        "device",
    )
    assert [time.kernel for time in times] == ["a", "b", "a"]
    assert [time.median_us for time in times] == [20.0, 4.0, 5.0]
    assert [time.gap_us for time in times] == [0.0, 1.0, 1.0]
    assert [(time.p10_us, time.p90_us) for time in times] == [(10, 30), (3, 5), (4, 6)]
    assert {(time.clock, time.global_size) for time in times} == {("device", ())}


@pytest.mark.parametrize(("count", "p10", "p90"), [(1, 0, 0), (9, 0, 8), (10, 1, 8), (20, 2, 17)])
def test_a_tenth_of_the_times_is_outside_on_both_sides(count, p10, p90):
    (time,) = kernel_times([run(("a", 0.0, float(n))) for n in reversed(range(count))], "host")
    assert (time.p10_us, time.p90_us) == (p10, p90)


def test_runs_of_other_launches_are_refused():
    one, other = run(("a", 0, 1), ("b", 1, 2)), run(("b", 0, 1), ("a", 1, 2))
    for runs in ([one, other], [one, one[:1]], [[], one]):
        with pytest.raises(DeviceError, match="were expected to launch the same kernels"):
            kernel_times(runs, "device")
    assert kernel_times([[], []], "device") == []


@pytest.mark.opencl
def test_launches_of_another_thread_are_not_the_networks(monkeypatch):
    """Events are those of the whole device; equal numbers in each run do not make them equal."""
    tanh = build([helper.make_node("Tanh", ["x"], ["y"])], {"x": (3, 5)}, ["y"], {})
    with tvmflow.compile(small_network()) as module, tvmflow.compile(tanh) as other:
        values, others = random_inputs(module, 0), random_inputs(other, 0)
        expected = [time.kernel for time in module.profile(values, runs=4)]
        run, calls = module._running.run, []

        def disturbed(*arguments, **options):
            calls.append(None)
            if len(calls) % 2:
                other(others)
            result = run(*arguments, **options)
            if not len(calls) % 2:
                other(others)
            return result

        monkeypatch.setattr(module._running, "run", disturbed)
        with pytest.raises(DeviceError, match="expected to launch the same kernels") as caught:
            module.profile(values, runs=4)
        assert "no other thread" in caught.value.remedy
        monkeypatch.undo()
        assert [time.kernel for time in module.profile(values, runs=4)] == expected


def test_a_cuda_graph_cannot_be_measured_kernel_by_kernel(tmp_path):
    path = tmp_path / "graph.so"
    about = tiny_network.metadata(options={"cuda_graph": True})
    tiny_network.write(tiny_network.build(), path, metadata=about)
    with tvmflow.load(path) as module, pytest.raises(DeviceError, match="one CUDA graph"):
        module.profile(tiny_network.values())
