"""Runtime, plan and weights in one library: what is in it, where, and for which host."""

from __future__ import annotations

import ctypes
from pathlib import Path

import numpy as np
import pytest

from tvmflow.deploy.link import HOSTS, Host
from tvmflow.standalone import link, toolchain
from tvmflow.standalone.host_abi import check_host_abi

#: Stands for the runtime: gives what the linker put between the symbols.
SOURCE = """
#include <stddef.h>
#define HIDDEN extern __attribute__((visibility("hidden"))) const unsigned char
HIDDEN tvmflow_plan_begin[], tvmflow_plan_end[], tvmflow_weights_begin[], tvmflow_weights_end[];
__attribute__((visibility("default"))) const void* tvmflow_data(int weights, size_t* bytes) {
  *bytes = weights ? tvmflow_weights_end - tvmflow_weights_begin
                   : tvmflow_plan_end - tvmflow_plan_begin;
  return weights ? tvmflow_weights_begin : tvmflow_plan_begin;
}
"""


@pytest.fixture
def runtime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a small runtime, which is compiled instead of the real one."""
    folder = tmp_path / "runtime"
    folder.mkdir()
    (folder / "data.c").write_text(SOURCE)
    monkeypatch.setattr(toolchain, "native_folder", lambda name: folder)
    monkeypatch.setenv("TVMFLOW_CACHE_DIR", str(tmp_path / "cache"))
    return folder


@pytest.fixture
def weights(tmp_path: Path, rng: np.random.Generator) -> Path:
    path = tmp_path / "net.bin"
    path.write_bytes(b"TVMFWGTS" + rng.bytes(100_001))
    return path


def content(library: Path, of_weights: bool) -> tuple[bytes, int]:
    """Return bytes as the runtime sees them, and their address."""
    size = ctypes.c_size_t()
    function = ctypes.CDLL(str(library)).tvmflow_data
    function.restype = ctypes.c_void_p
    address = function(int(of_weights), ctypes.byref(size))
    return ctypes.string_at(address, size.value), address


@pytest.mark.cross
def test_the_library_holds_plan_and_weights(runtime: Path, weights: Path, tmp_path: Path):
    plan, output = b"a plan" * 99, tmp_path / "libnet.so"
    link.link_library(plan, weights, Host.native(), output, embed=True)
    found, address = content(output, of_weights=False)
    assert found == plan
    assert address % 64 == 0
    found, address = content(output, of_weights=True)
    assert found == weights.read_bytes()
    assert address % 128 == 0
    assert not output.with_name("libnet.so.weights").exists()


@pytest.mark.cross
@pytest.mark.parametrize("host", HOSTS)
def test_the_same_input_gives_the_same_bytes(
    host: str, runtime: Path, weights: Path, tmp_path: Path
):
    written = []
    for folder in ("one", "two"):
        output = tmp_path / folder / "libnet.so"
        output.parent.mkdir()
        link.link_library(b"plan", weights, Host.parse(host), output, embed=True)
        written.append(output.read_bytes())
    assert written[0] == written[1]
    # What a file lacks that was cut short are weights, not code.
    assert written[0].index(weights.read_bytes()) + weights.stat().st_size > len(written[0]) - 4096


@pytest.mark.cross
@pytest.mark.parametrize("host", HOSTS)
def test_the_runtime_fits_each_host(host: str, tmp_path: Path):
    """All of its C files, with nothing but what the host has; for Android without the NDK."""
    output = tmp_path / "libnet.so"
    link.link_library(b"plan", None, Host.parse(host), output, embed=True)
    report = check_host_abi(output)
    assert [verdict for verdict in report.verdicts if not verdict.kept] == []
    assert report.host == Host.parse(host)
    assert (report.android_refuses == ()) == (host == "android-arm64")
    assert {"tvmflow_create", "tvmflow_self_test"} <= set(report.facts.exported)
    assert output.stat().st_size < 150_000


#: One exported function calls the other, as those of the real runtime do.
CALLS = """
extern __attribute__((visibility("hidden"))) const unsigned char tvmflow_plan_begin[];
#define EXPORTED __attribute__((visibility("default"), noinline))
EXPORTED int tvmflow_first(void) { return tvmflow_plan_begin[0]; }
EXPORTED int tvmflow_call(void) { return tvmflow_first(); }
"""


@pytest.mark.cross
def test_a_library_calls_its_own_functions_and_not_those_of_another(runtime: Path, tmp_path: Path):
    (runtime / "data.c").write_text(CALLS)
    loaded = []
    for name in ("A", "B"):
        output = tmp_path / f"lib{name}.so"
        link.link_library(name.encode(), None, Host.native(), output, embed=True)
        # As the library that a program is linked to: its functions are everybody's.
        loaded.append(ctypes.CDLL(str(output), ctypes.RTLD_GLOBAL))
    assert [chr(library.tvmflow_call()) for library in loaded] == ["A", "B"]
