"""Device times of kernels, and TVM's timer made of them."""

from __future__ import annotations

import onnx
import pytest
from onnx import helper
from support.operators import build


def kernels(launches):
    return [launch["kernel"] for launch in launches]


def test_profiles_on_every_driver(driver, script):
    result = script("profiled.py", env=driver.env)
    assert kernels(result["outer"]) == ["scale2", "scale3", "scale1"]
    assert kernels(result["inner"]) == ["scale3"]
    assert result["empty"] == []
    assert result["inner"][0]["global"] == [64]
    assert result["inner"][0]["local"] == [16]
    assert all(launch["us"] >= 0 for launch in result["outer"])
    starts = [launch["start_us"] for launch in result["outer"]]
    assert starts[0] == 0
    assert starts == sorted(starts)
    assert "without" in result["unbalanced"]
    assert all(us > 0 for us in result["evaluator_us"])
    assert set(result["during"]) == {"scale2"}


def test_times_come_from_the_events(fake, script):
    result = script("profiled.py", env=fake)
    # Every launch of the fake device takes 2.5 microseconds.
    assert [launch["us"] for launch in result["outer"]] == [2.5, 2.5, 2.5]
    assert result["evaluator_us"] == pytest.approx([2.5, 2.5])
    # One call to warm up, two repeats of five.
    assert len(result["during"]) == 11


@pytest.mark.parametrize(
    ("refused", "why"),
    [
        ("queues that measure", "has no command queues that measure kernels"),
        ("times", "does not tell when kernel "),
    ],
)
def test_a_device_that_measures_no_kernels(fake, script, tmp_path, refused, why):
    """It runs them all the same, and timers take the host's clock."""
    env = {**fake, "FAKE_REFUSE": refused}
    assert script("attempt.py", "launch", 8, 8, env=env) is None
    assert script("attempt.py", "time_launches", env=env) is None
    assert why in script("attempt.py", "measure", env=env)["message"]
    model = tmp_path / "model.onnx"
    nodes = [helper.make_node("Relu", ["x"], ["y"])]
    onnx.save(build(nodes, {"x": (2, 8)}, ["y"], {}), model)
    result = script("attempt.py", "profile_network", model, env=env)
    assert result["type"] == "DeviceError"
    assert result["message"].startswith("Measuring kernels failed: Device 'Fake")
    assert why in result["message"]
    assert result["remedy"] == "Measure whole calls: `tvmflow bench` without --kernels."
