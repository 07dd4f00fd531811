"""Padding and the number of windows, against a count one by one."""

from __future__ import annotations

from itertools import product

import pytest

from tvmflow.frontend.ops.convolution import read_windows, transposed_windows
from tvmflow.frontend.ops.pooling import pool_extents


@pytest.mark.parametrize(
    ("mode", "begin", "end"), [("SAME_UPPER", (0, 2), (1, 3)), ("SAME_LOWER", (1, 3), (0, 2))]
)
def test_an_odd_element_of_padding_goes_to_one_side(mode, begin, end):
    """5 windows of 2 lack one of 5 elements; 4 windows of 6 in steps of 2 lack 5 of 7."""
    windows = read_windows({"auto_pad": mode, "strides": [1, 2]}, (2, 6), (5, 7))
    assert (windows.begin, windows.end) == (begin, end)
    assert windows.pads == begin + end


def test_windows_that_are_not_padded():
    assert read_windows({"auto_pad": "VALID"}, (3,), (5,)).pads == (0, 0)
    assert read_windows({"pads": [1, 2, 3, 4]}, (3, 3), (5, 5)).begin == (1, 2)


def counted(size, kernel, stride, dilation, begin, end, ceil):
    """Count windows that start before the end of the input and, with ``ceil``, may hang over."""
    span = (kernel - 1) * dilation + 1
    count = 0
    for start in range(0, size + begin + end, stride):
        fits = start + span <= size + begin + end
        # The window after the last that fits may start in the input, or in the padding before it.
        hangs_over = ceil and start < size + begin and start - stride + span < size + begin + end
        count += fits or hangs_over
    return count


@pytest.mark.parametrize("ceil", [0, 1])
def test_windows_of_pools(ceil):
    cases = product((7, 8, 9, 10), (2, 3), (1, 2, 3), (1, 2), (0, 1), (0, 1))
    for size, kernel, stride, dilation, begin, end in cases:
        found = pool_extents(
            {"strides": [stride], "dilations": [dilation], "pads": [begin, end], "ceil_mode": ceil},
            (kernel,),
            (size,),
        )
        assert found == (counted(size, kernel, stride, dilation, begin, end, ceil),)


def test_a_transposed_convolution_is_as_large_as_what_would_give_its_input():
    for size, kernel, stride, dilation, pad in product((8, 9), (2, 3), (1, 2), (1, 2), (0, 1)):
        options = {"strides": [stride], "dilations": [dilation], "pads": [pad, pad]}
        small = pool_extents(options, (kernel,), (size,))
        rest = (size + 2 * pad - (kernel - 1) * dilation - 1) % stride
        options["output_padding"] = [rest]
        assert transposed_windows(options, (kernel,), small).extents == (size,)
