"""Calls that are mostly the host's, in profiles that were made up."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from support.profiles import synthetic_profile

from tvmflow.explain.profiling.measure import host_finding
from tvmflow.explain.profiling.reading import from_json
from tvmflow.explain.profiling.record import FINDING_KINDS
from tvmflow.runtime.timing import Spread


def tiny_kernels(call_us, launches=300, us=2.0, target="opencl"):
    """A network of many kernels that take next to nothing, one launched every 3 µs."""
    made = synthetic_profile(launches)
    kernels = tuple(
        replace(kernel, median_us=us, start_us=3.0 * number)
        for number, kernel in enumerate(made.kernels)
    )
    whole = Spread(call_us / 1e3, 0.9 * call_us / 1e3, 1.2 * call_us / 1e3)
    module = replace(made.module, target=target)
    return replace(made, module=module, kernels=kernels, whole=whole, findings=())


def test_many_tiny_kernels_are_the_hosts_time():
    profile = tiny_kernels(call_us=2400.0)
    found = host_finding(profile)
    assert found is not None
    assert found.kind == "host"
    assert found.kind in FINDING_KINDS
    assert found.share == pytest.approx(0.75)
    assert found.cost == {"µs": pytest.approx(1800.0)}
    assert "300 launches compute for 600.0 µs of a call of 2,400.0 µs" in found.sentence
    assert "75%" in found.sentence
    assert "6.0 µs a launch" in found.sentence
    assert profile.worth_us(found) == pytest.approx(1800.0)
    with_it = replace(profile, findings=(found,))
    assert from_json(json.loads(json.dumps(with_it.to_json()))) == with_it


@pytest.mark.parametrize(("call_us", "is_found"), [(1199.0, False), (1201.0, True), (500.0, False)])
def test_from_half_of_a_call_on(call_us, is_found):
    assert (host_finding(tiny_kernels(call_us)) is not None) == is_found


def test_a_network_without_launches_has_no_finding():
    assert host_finding(replace(tiny_kernels(2400.0), kernels=())) is None


@pytest.mark.parametrize(("target", "is_named"), [("cuda", True), ("opencl", False)])
def test_a_remedy_is_one_that_the_target_has(target, is_named):
    remedy = host_finding(tiny_kernels(2400.0, target=target)).remedy
    assert ("`cuda_graph`" in remedy) == is_named
    assert "batch" in remedy
