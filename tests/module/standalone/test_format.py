"""Plans as written by Python and read by C."""

from __future__ import annotations

import hashlib
import zlib

import numpy as np
import pytest
from support.commands import output, run
from support.runtime_build import BINDINGS, COMPILER, NATIVE

from tvmflow.module.standalone.format import (
    DTYPES,
    HEADER,
    MAX_DIMENSIONS,
    RECORDS,
    WEIGHTS_HEADER,
    Section,
    Strings,
    encode_plan,
    records,
)
from tvmflow.module.standalone.weights_file import weights_header

STRUCTURES = {
    "tf_header": HEADER,
    "tf_weights_header": WEIGHTS_HEADER,
    "tf_allocation": RECORDS[Section.ALLOCATIONS],
    "tf_weight": RECORDS[Section.WEIGHTS],
    "tf_program": RECORDS[Section.PROGRAMS],
    "tf_launch": RECORDS[Section.LAUNCHES],
    "tf_argument": RECORDS[Section.ARGUMENTS],
    "tf_interface": RECORDS[Section.INPUTS],
    "tf_region": RECORDS[Section.REGIONS],
    "tf_test_input": RECORDS[Section.TEST_INPUTS],
    "tf_test_output": RECORDS[Section.TEST_OUTPUTS],
    "tf_shape": RECORDS[Section.SHAPES],
    "tf_derived": RECORDS[Section.DERIVED],
    "tf_transformed": RECORDS[Section.TRANSFORMED],
    "tf_test_tensor": RECORDS[Section.TEST_TENSORS],
    "tf_alternative": RECORDS[Section.ALTERNATIVES],
}


@pytest.fixture(scope="module")
def in_c(tmp_path_factory):
    """Return sizes, offsets and constants from a C compiler."""
    lines = [
        f'printf("{name} %zu\\n", sizeof({name}));'
        + "".join(f'printf("{name}.{f} %zu\\n", offsetof({name}, {f}));' for f in dtype.names)
        for name, dtype in STRUCTURES.items()
    ]
    lines += [f'printf("TF_{s.name} %d\\n", (int)TF_{s.name});' for s in Section]
    lines += [f'printf("{d} %d\\n", (int)TVMFLOW_{d.upper()});' for d in DTYPES]
    folder = tmp_path_factory.mktemp("layout")
    source = folder / "layout.c"
    source.write_text(
        '#include <stdio.h>\n#include "plan.h"\nint main(void) {\n' + "\n".join(lines) + "\n}\n"
    )
    run(*COMPILER, "-std=c11", f"-I{NATIVE}", source, "-o", folder / "layout")
    lines = output(folder / "layout").splitlines()
    return {name: int(value) for name, value in map(str.split, lines)}


def test_records_have_the_layout_that_c_gives_them(in_c):
    for name, dtype in STRUCTURES.items():
        assert in_c[name] == dtype.itemsize, name
        for field in dtype.names:
            assert in_c[f"{name}.{field}"] == dtype.fields[field][1], (name, field)


def test_sections_and_dtypes_have_the_same_numbers(in_c):
    assert {f"TF_{s.name}": int(s) for s in Section} == {
        name: value for name, value in in_c.items() if name in {f"TF_{s.name}" for s in Section}
    }
    assert {name: in_c[name] for name in DTYPES} == DTYPES
    header = (BINDINGS / "tvmflow.h").read_text(encoding="utf-8")
    assert f"#define TVMFLOW_MAX_DIMENSIONS {MAX_DIMENSIONS}\n" in header


def test_a_plan_is_found_again_in_its_bytes():
    strings = Strings()
    launches = records(
        Section.LAUNCHES,
        [
            {"kernel": strings("k"), "global": (64, 2, 1), "local": (8, 1, 1), "dimensions": 2},
            {"kernel": strings("k"), "program": 1},
        ],
    )
    source = b"__kernel void k() {}" * 50
    plan = encode_plan(
        {Section.LAUNCHES: launches, Section.STRINGS: strings.content}, source, b"w" * 32, 77
    )
    header = np.frombuffer(plan, HEADER, 1)[0]
    assert (header["bytes"], header["source_bytes"], header["weight_bytes"]) == (
        len(plan),
        1000,
        77,
    )
    assert bytes(header["checksum"]) == hashlib.sha256(plan[HEADER.itemsize :]).digest()
    assert all(header["section"]["offset"] % 8 == 0)

    def content(section, itemsize=1):
        offset, count = header["section"][section]
        return plan[offset : offset + count * itemsize]

    assert zlib.decompress(content(Section.SOURCES), -zlib.MAX_WBITS) == source
    assert content(Section.STRINGS) == b"\0k\0"
    found = content(Section.LAUNCHES, launches.dtype.itemsize)
    np.testing.assert_array_equal(np.frombuffer(found, launches.dtype), launches)


def test_weights_begin_aligned_behind_their_header():
    header = weights_header(b"i" * 32, 1000, 7)
    assert len(header) == 128
    found = np.frombuffer(header, WEIGHTS_HEADER)[0]
    assert (found["bytes"], found["checksum"]) == (1128, 7)
