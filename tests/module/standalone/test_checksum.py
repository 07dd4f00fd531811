"""The checksum of weights: XXH64 in C equals that of the Python package."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest
import xxhash
from support import runtime_build
from support.fake_opencl import compile_c


class State(ctypes.Structure):
    """`tf_checksum`."""

    _fields_ = (("lanes", ctypes.c_uint64 * 4), ("bytes", ctypes.c_uint64))


@pytest.fixture(scope="module")
def checksum(tmp_path_factory):
    source = runtime_build.NATIVE / "checksum.c"
    library = compile_c(tmp_path_factory.mktemp("checksum") / "lib.so", "-shared", source)
    found = ctypes.CDLL(str(library))
    found.tf_checksum_begin.restype = State
    found.tf_checksum_end.restype = ctypes.c_uint64

    def compute(data: bytes, stripes: int) -> int:
        """Compute it in two calls, the first with this many stripes of 32 bytes."""
        state = found.tf_checksum_begin()
        data_at = (ctypes.c_char * len(data)).from_buffer_copy(data) if data else b""
        begin = ctypes.addressof(data_at) if data else None
        whole = len(data) // 32 * 32
        for start, end in ((0, min(stripes * 32, whole)), (min(stripes * 32, whole), whole)):
            at = ctypes.c_void_p((begin or 0) + start)
            found.tf_checksum_stripes(ctypes.byref(state), at, ctypes.c_size_t(end - start))
        at = ctypes.c_void_p((begin or 0) + whole)
        return found.tf_checksum_end(ctypes.byref(state), at, ctypes.c_size_t(len(data) - whole))

    return compute


@pytest.mark.parametrize("length", [0, 1, 3, 4, 5, 7, 8, 12, 15, 31, 32, 33, 63, 64, 100, 1000])
def test_it_is_xxh64(checksum, length):
    data = np.random.default_rng(length).bytes(length)
    for stripes in (0, 1, 2, 20):
        assert checksum(data, stripes) == xxhash.xxh64_intdigest(data)
