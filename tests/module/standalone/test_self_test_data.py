"""The self-test's data: the same numbers as in the C runtime, and the compared elements."""

from __future__ import annotations

import numpy as np
import pytest

from tvmflow.compiler.standalone.self_test import (
    VALUES,
    expected_outputs,
    random_numbers,
    seeded_inputs,
    values_of,
)
from tvmflow.ir.tensors import TensorInfo
from tvmflow.module.standalone.plan import SeededInput
from tvmflow.verify.tolerance import NETWORK, compare, tolerance_for


def splitmix(seed: int, index: int) -> float:
    """Compute the docstring's formula with Python's integers."""
    mask = 2**64 - 1
    z = (seed + (index + 1) * 0x9E3779B97F4A7C15) & mask
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 & mask
    z = (z ^ z >> 27) * 0x94D049BB133111EB & mask
    z ^= z >> 31
    return (z >> 40) / 2**24


def test_numbers_are_those_of_splitmix():
    for seed in (1, 2, 2**64 - 1):
        expected = [splitmix(seed, index) for index in range(100)]
        np.testing.assert_array_equal(random_numbers(seed, 100), expected)
    # Published for the seed 1234567: the first three are 6457827717110365317, ...
    assert int(random_numbers(1234567, 3)[0] * 2**24) == 6457827717110365317 >> 40


@pytest.mark.parametrize(
    ("dtype", "least", "most"),
    [
        ("float32", -1, 1),
        ("float16", -1, 1),
        ("bfloat16", -1, 1),
        ("int64", 0, 3),
        ("uint8", 0, 255),
        ("int8", -128, 127),
        ("bool", 0, 1),
    ],
)
def test_values_have_a_sensible_range(dtype, least, most):
    info = TensorInfo("x", (40, 100), dtype)
    (test,) = seeded_inputs([info])
    values = values_of(test, info)
    assert values.dtype.name == dtype
    assert values.shape == (40, 100)
    wide = values.astype(np.float64)
    assert wide.min() >= least
    assert wide.max() <= most
    # The whole range is covered.
    spread = (most - least) * 0.01
    assert wide.min() <= least + spread
    assert wide.max() >= most - spread


def test_inputs_differ():
    infos = [TensorInfo("a", (50,), "float32"), TensorInfo("b", (50,), "float32")]
    a, b = (values_of(t, i) for t, i in zip(seeded_inputs(infos), infos, strict=True))
    assert not np.isclose(a, b).any()


def test_integers_are_rounded_down():
    test, info = SeededInput(7, -1.0, 1.0), TensorInfo("x", (1000,), "int32")
    assert set(values_of(test, info).tolist()) == {-1, 0}


def test_outputs_are_sampled_and_padding_is_left_out():
    reference = np.random.default_rng(3).normal(size=(1, 6, 40, 40)).astype(np.float32)
    info = TensorInfo("y", (1, 2, 40, 40, 4), "float32", logical_shape=(1, 6, 40, 40))
    (test,) = expected_outputs([info], {"y": reference}, NETWORK)
    assert len(test.values) <= VALUES
    blocked = np.zeros((1, 8, 40, 40), np.float32)
    blocked[:, :6] = reference
    blocked[:, 6:] = np.nan
    host = blocked.reshape(1, 2, 4, 40, 40).transpose(0, 1, 3, 4, 2).ravel()
    np.testing.assert_array_equal(host[:: test.stride], test.values)
    assert 0.2 < np.isnan(test.values).mean() < 0.3
    # All lanes of a texel are covered.
    assert {i * test.stride % 4 for i in range(len(test.values))} == {0, 1, 2, 3}


def test_tolerances_are_those_of_the_table():
    reference = np.array([3.0, -8.0, 0.5], np.float32)
    info = TensorInfo("y", (3,), "float32")
    (test,) = expected_outputs([info], {"y": reference}, NETWORK)
    tolerance = tolerance_for("float32", NETWORK)
    got = reference + np.array([1e-4, -2e-4, 3e-5], np.float32)
    used = np.abs(got - reference) / (test.atol + test.rtol * np.abs(test.values))
    expected = compare("y", got, reference, tolerance).used
    assert used.max() == pytest.approx(expected, rel=1e-5)
