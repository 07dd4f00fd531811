"""ocloc: counts in its listings, and its process, which may crash, hang or refuse."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tvmflow.devices.gpus import find_gpu
from tvmflow.errors import DeviceError
from tvmflow.explain.isa import intel
from tvmflow.explain.isa.record import Failure, KernelCode, KernelSource

TIGER_LAKE, BATTLEMAGE = find_gpu("intel-tgl"), find_gpu("intel-bmg")

ABOUT = """\
kernels:
  - name:            f_kernel
    execution_env:
      grf_count:       128
      simd_size:       16
      spill_size:      96
      eu_thread_count: 7
"""

#: Listing of Tiger Lake, except one load of Arc's; both label jump targets.
LISTING = """\
L0:
(W)     mov (8|M0)               r54.0<1>:ud   r0.0<1;1,0>:ud
        shl (8|M0)               r105.0<1>:d   r1.0<8;8,1>:uw    3:w
L648:
(W&f0.1.any8h) mad (1|M0)        r12.6<1>:d    r12.4<0;0>:d      r12.5<0;0>:d      112:w   {@2}
        mov (8|M0)               r31.0<1>:f    r97.0<8;8,1>:d                   {Compacted,@3}
        send.smpl (8|M0)         r22      r31     r32     0x40            0x02438000           \
{@4,$0} // wr:1+1, rd:4; simd8 sample with lod forced to 0 using sampler index 0
        send.dc1 (8|M0)          r9       r8      null    0x0             0x02106CFE           \
{$1} // wr:1+0, rd:4; untyped surface read with xyzw
        send.dc1 (8|M0)          r9       r8      null    0x0             0x02106C02           \
{$2} // wr:1+0, rd:4; untyped surface read with xyzw
        send.ugm (8|M0)          r9       r8      null    0x0             0x02106C02           \
{$2} // wr:1+0, rd:4; load.ugm.d32x4.a32.ca.ca.bss[a0.0]
        sync.nop                             null                             {Compacted,$1.src}
        mad (8|M0)               r3.0<1>:f     r3.0<8;1>:f       r22.0<8;1>:f   r9.0<1>:f {$0.dst}
        mad (8|M0)               r3.0<1>:hf    r3.0<8;1>:hf      r22.0<8;1>:hf     r9.0<1>:hf
        while (8|M0)                         L648
(~f0.1) goto (8|M0)                          L896                  L896
L896:
(W)     send.dc0 (1|M0)          null     r5      r6:1    0x0             0x020A02FF           \
{$3} // wr:1h+1, rd:0; hword scratch block write x1
        send.ugm (8|M0)          r9       r8      null    0x0             0x02106C02           \
{$3} // wr:1+0, rd:1; load.ugm.d32x16t.a32.ss[a0.2][A-0xEC00]
        send.dc1 (8|M0)          null     r11     r19:5   0x0             0x020350FC           \
{A@3,$5} // wr:1+5, rd:0; typed surface write with xyzw; u,v
(W)     send.ts (1|M0)           null     r112    null    0x0             0x02000010           \
{EOT,@1} // wr:1+0, rd:0; end of thread
        illegal
        illegal
"""


def source(name: str) -> KernelSource:
    return KernelSource(name, "f", f"__kernel void {name}() {{}}", (12, 1, 1), 4)


def test_slots_are_counted_by_what_they_do() -> None:
    code = intel.parse(ABOUT, LISTING, source("f_kernel"), TIGER_LAKE)
    # 128 registers of 32 bytes for 16 work-items, and 96 spilled bytes.
    assert (code.registers, code.waves, code.wave, code.spills) == (64, 7, 16, 3)
    assert (code.loops, code.hot.issue, code.hot.idle) == (1, 10, 1)
    # The first multiply-add computes an address.
    assert (code.hot.multiply_adds, code.hot.fetches, code.hot.conversions) == (2, 1, 1)
    assert (code.hot.loads, code.hot.local, code.hot.stores, code.hot.waits) == (2, 1, 0, 2)
    assert (code.whole.spills, code.whole.stores, code.whole.issue) == (2, 1, 17)
    assert code.lanes_filled == 12 / 16
    # Registers of newer GPUs are twice as wide.
    wide = intel.parse(ABOUT, LISTING, source("f_kernel"), BATTLEMAGE)
    assert (wide.registers, wide.spills) == (128, 1)


#: Imitation of ocloc; the kernel's name selects its behaviour.
OCLOC = f"""#!/bin/sh
if [ "$1" = --version ]; then [ -z "$BROKEN" ] || exit 127; echo 26.27.039122; exit; fi
while [ $# -gt 0 ]; do
  case "$1" in -file) file=$2 ;; -out_dir) out=$2 ;; -dump) dump=$2 ;; esac
  shift
done
if [ -n "$out" ]; then
  case $(cat "$file") in
    *crash*) kill -11 $$ ;;
    *hang*) exec sleep 60 ;;
    *refused*) echo "error: use of undeclared identifier 'y'"; exit 245 ;;
  esac
  cp "$file" "$out/kernel.bin"
else
  name=$(sed 's/.*void \\([a-z_]*\\)(.*/\\1/' "$file")
  mkdir -p "$dump"
  cat > "$dump/.ze_info" <<'END'
{ABOUT}END
  cat > "$dump/.text.$name.asm" <<'END'
{LISTING}END
fi
"""


@pytest.fixture
def ocloc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Put a program in ocloc's place on the path; nothing has been fetched."""
    (tmp_path / "ocloc").write_text(OCLOC)
    (tmp_path / "ocloc").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def compiled(*names: str, limit_s: float = 20) -> list[KernelCode | Failure]:
    tree = intel.OCLOC.find(TIGER_LAKE, "sid")
    version, found = intel.compile_kernels(
        [source(name) for name in names], TIGER_LAKE, tree, limit_s=limit_s
    )
    assert version == "ocloc 26.27.039122"
    assert [each.kernel for each in found] == list(names)
    return found


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("crash", "the compiler's process ended with signal SIGSEGV"),
        ("hang", "it took the compiler more than 2 s"),
        ("refused", "status 245: error: use of undeclared identifier 'y'"),
    ],
)
def test_a_kernel_that_fails_costs_only_itself(ocloc: None, name: str, reason: str) -> None:
    first, failed, last = compiled("a", name, "b", limit_s=2)
    assert isinstance(first, KernelCode)
    assert isinstance(last, KernelCode)
    assert first.hot.multiply_adds == last.hot.multiply_adds == 2
    assert failed == Failure(name, reason)


def test_a_program_that_does_not_run_is_an_error(
    ocloc: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(intel, "environment", lambda: {**os.environ, "BROKEN": "1"})
    with pytest.raises(DeviceError, match=r"ocloc did not tell its version \(status 127"):
        compiled("a")


def test_without_ocloc_the_remedy_is_setup(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(DeviceError, match="ocloc was expected on the system or in") as error:
        intel.OCLOC.find(TIGER_LAKE, "sid")
    assert error.value.remedy == "tvmflow isa --setup --gpu intel-tgl"
