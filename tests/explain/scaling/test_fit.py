"""The model of throughput, on points with known parameters."""

from __future__ import annotations

import numpy as np
import pytest

from tvmflow.explain.scaling.predict import AMDAHL, LINEAR, USL, fit


def law(n: int, rate: float, contention: float, coherency: float = 0.0) -> float:
    return rate * n / (1 + contention * (n - 1) + coherency * n * (n - 1))


@pytest.mark.parametrize("contention", [0.0, 0.05, 0.4, 1.0])
def test_amdahls_law_is_found_and_continued(contention):
    found = fit({n: law(n, 50.0, contention) for n in (1, 2, 4)})
    assert (found.law, found.points) == (AMDAHL, 3)
    assert found.rate == pytest.approx(50)
    assert found.contention == pytest.approx(contention, abs=1e-9)
    assert found.error == pytest.approx(0, abs=1e-9)
    assert found.at(64) == pytest.approx(law(64, 50.0, contention))


def test_the_universal_law_is_found_with_its_peak():
    found = fit({n: law(n, 120.0, 0.03, 0.002) for n in (1, 2, 4, 8, 16)})
    assert found.law == USL
    assert (found.rate, found.contention, found.coherency) == pytest.approx((120, 0.03, 0.002))
    assert found.limit == pytest.approx(max(law(n, 120.0, 0.03, 0.002) for n in range(1, 100)))


def test_points_need_not_begin_at_one():
    found = fit({n: law(n, 10.0, 0.2) for n in (4, 8)})
    assert (found.rate, found.contention) == pytest.approx((10, 0.2))
    assert found.limit == pytest.approx(50)
    assert found.error is None


def test_one_point_is_continued_as_a_line():
    found = fit({2: 30.0})
    assert (found.law, found.at(8), found.error, found.limit) == (LINEAR, 120.0, None, None)


def test_noise_is_told_as_error_and_gives_no_negative_parameters():
    # More than twice as much with twice as many.
    found = fit({1: 10.0, 2: 22.0, 4: 41.0})
    assert found.contention == found.coherency == 0
    assert 0.02 < found.error < 0.06


def test_what_is_worse_than_serial_is_told_as_error():
    found = fit({1: 100.0, 2: 20.0})
    assert found.contention == pytest.approx(1)
    assert found.error > 0.5
    assert found.limit == pytest.approx(found.rate)
    # Four points show that more disturb each other.
    found = fit({n: law(n, 100.0, 0.0, 0.5) for n in (1, 2, 4, 8)})
    assert (found.contention, found.coherency) == pytest.approx((0, 0.5), abs=1e-9)
    assert found.error < 1e-9


def test_noisy_points_give_nearly_their_parameters():
    rng = np.random.default_rng(3)
    noisy = {n: law(n, 70.0, 0.1) * (1 + rng.normal(0, 0.01)) for n in (1, 2, 3, 4, 6, 8, 12)}
    found = fit(noisy)
    assert found.rate == pytest.approx(70, rel=0.03)
    assert found.at(8) == pytest.approx(law(8, 70.0, 0.1), rel=0.03)
    assert 0.001 < found.error < 0.03


@pytest.mark.parametrize("contention", [0.0, 0.3, 1.0])
def test_points_of_a_simpler_law_get_no_more_parameters_of_rounding(contention):
    # A coherency of 1e-17 would have a peak somewhere beyond a hundred million threads.
    found = fit({n: law(n, 3.7, contention) for n in (1, 2, 3, 5, 8, 13)})
    assert found.coherency == 0
    assert found.contention == pytest.approx(contention, abs=1e-9)
    assert found.limit == (pytest.approx(3.7 / contention) if contention else None)
