"""Results that count as equal, and results that do not."""

from __future__ import annotations

import numpy as np
import pytest

from tvmflow.verify.tolerance import (
    NETWORK,
    OPERATOR,
    STORED_AS_HALF,
    Tolerance,
    assert_close,
    compare,
    summed_in_half,
    tolerance_for,
)

HALF = Tolerance(1e-2, 1e-3, "for the test")


def floats(*values: float) -> np.ndarray:
    return np.array(values, np.float32)


def test_every_entry_has_a_reason_and_operators_are_stricter():
    for table in (NETWORK, OPERATOR):
        for dtype, entry in table.items():
            assert len(entry.reason) > 20, dtype
            assert 0 < entry.absolute <= entry.relative
            assert entry.relative > np.finfo(np.float32).eps or dtype == "float64"
    for dtype in OPERATOR:
        assert OPERATOR[dtype].relative <= NETWORK[dtype].relative


def test_errors_are_measured_as_documented():
    result = compare("y", floats(10.5, 1.0, -0.1), floats(10.0, 1.0, 0.0), HALF)
    assert result.max_abs_error == pytest.approx(0.5)
    assert result.max_rel_error == pytest.approx(0.05)
    # 0.1 next to 0 uses 0.1 / (0.001 * 10) = 10 times the tolerance; 0.5 next to 10 uses 4.5.
    assert result.used == pytest.approx(10, rel=1e-3)
    assert not result.passed


def test_the_border_of_the_tolerance():
    reference = np.array([10.0, -4.0, 0.0])
    allowed = HALF.relative * np.abs(reference) + HALF.absolute * 10
    assert compare("y", reference + 0.999 * allowed, reference, HALF).passed
    for index in range(3):
        wrong = reference.copy()
        wrong[index] += 1.001 * allowed[index]
        assert not compare("y", wrong, reference, HALF).passed


@pytest.mark.parametrize(
    ("got", "reference"),
    [
        (floats(1, 2), floats(1, 2, 3)),
        (floats(1, 2), np.array([1.0, 2.0])),
        (floats(1, np.nan), floats(1, 2)),
        (floats(1, 2), floats(1, np.nan)),
        (floats(1, np.inf), floats(1, 2)),
        (floats(1, np.inf), floats(1, -np.inf)),
        (floats(0, 1e-30), floats(0, 0)),
    ],
)
def test_never_equal(got: np.ndarray, reference: np.ndarray):
    result = compare("y", got, reference)
    assert not result.passed
    with pytest.raises(AssertionError, match="max abs error"):
        assert_close(got, reference)


@pytest.mark.parametrize(
    "values",
    [floats(1, np.nan, np.inf, -np.inf), floats(0, 0), floats(), np.array([3, -(2**62)])],
)
def test_always_equal_to_itself(values: np.ndarray):
    result = compare("y", values.copy(), values)
    assert result.passed
    assert (result.max_abs_error, result.max_rel_error, result.used) == (0, 0, 0)


def test_integers_and_booleans_are_exact():
    assert not compare("y", np.array([2**62 + 1]), np.array([2**62])).passed
    assert compare("y", np.array([2**62 + 1]), np.array([2**62])).max_abs_error == 1
    assert not compare("y", np.array([True, False]), np.array([True, True])).passed
    assert tolerance_for("int64").relative == tolerance_for("bool").absolute == 0


def test_fp16_differences_do_not_overflow():
    a, b = np.array([60000], np.float16), np.array([-60000], np.float16)
    assert compare("y", a, b).max_abs_error > 119000


@pytest.mark.parametrize("length", [9, 64, 576, 4608])
def test_sums_in_half_err_as_much_as_is_derived(length, rng):
    factors = rng.standard_normal((2, length, 500)).astype(np.float16)
    products = factors[0] * factors[1]
    total = np.zeros(500, np.float16)
    for row in products:
        total += row
    exact = products.astype(np.float64).sum(0)
    error = np.sqrt(np.mean((total - exact) ** 2)) / np.sqrt(np.mean(exact**2))
    derived = summed_in_half([length])["float32"].absolute - STORED_AS_HALF["float32"].absolute
    assert derived / 2 < error < 1.1 * derived


def test_errors_of_layers_add_up_as_squares():
    def extra(*lengths: int) -> float:
        return summed_in_half(lengths)["float32"].relative - STORED_AS_HALF["float32"].relative

    assert extra() == 0
    assert extra(300, 400) == pytest.approx(np.hypot(extra(300), extra(400)))
    assert summed_in_half([9, 27])["float16"] == STORED_AS_HALF["float16"]
    assert "2 layers" in summed_in_half([9, 27])["float32"].reason
