"""``tvmflow compile --calibrate``: what is typed, and what is said."""

from __future__ import annotations

import numpy as np
import pytest
from support.operators import random

from tvmflow.cli.options import read_calibration, with_flags
from tvmflow.errors import InputError


def test_a_file_of_inputs(tmp_path):
    x = random((2, 3))
    np.savez(tmp_path / "in.npz", x=x)
    found = read_calibration(str(tmp_path / "in.npz"))
    assert list(found) == ["x"]
    np.testing.assert_array_equal(found["x"], x)


def test_words_stay():
    assert read_calibration("random") == "random"
    assert read_calibration(None) is None


@pytest.mark.parametrize(
    ("name", "why"), [("none.npz", "no such file"), ("one.npy", "one array without a name")]
)
def test_files_that_have_no_names(tmp_path, name, why):
    np.save(tmp_path / "one.npy", random((2,)))
    with pytest.raises(InputError, match=why) as raised:
        read_calibration(str(tmp_path / name))
    assert "--calibrate random" in with_flags(raised.value.remedy)
