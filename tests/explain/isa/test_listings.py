"""Listings of each compiler, as they are printed: what is counted in them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tvmflow.devices.gpus import GPUS, Gpu
from tvmflow.explain.isa import ir3, rdna, valhall
from tvmflow.explain.isa.findings import findings
from tvmflow.explain.isa.listing import Instruction, classes, kernel_code
from tvmflow.explain.isa.record import KernelSource, Report

KERNEL = KernelSource("f_kernel", "f", "", (12, 1, 1), 4)

IR3 = """\
Native code for unnamed CL shader:
mad.f32 r9.x, r0.x, r0.x, r0.x
end
; CL prog 1/1: 9 instr, 0 nops
Native code for unnamed CL shader:
; num_ubos:           0
@in(r0.x)	in0 (wrmask=0x7)
shps #l7
l7:
(jp)add.u r49.x, r48.y, c2.z
(rpt2)nop
l9:
(sy)(rpt3)mad.f32 r1.x, (r)r2.x, r3.x, (r)r1.x
(nop2) cov.f16f32 r1.x, r2.x
alias.tex.b32.0 r40.x, r1.x
sam.base0 (f32)(xyzw)r2.x, r40.x, a1.x
ldp.u32 r5.x, p[r0.x], 1
(ss)br p0.x, #l9
stib.b.typed.3d.f32.4.imm.base0 r27.w, r20.x, 32
end
nop
nop
; CL prog 17/1: 32 instr, 7 nops, 25 non-nops, 3 mov, 0 cov, 72 dwords
; CL prog 17/1: 0 last-baryf, 0 last-helper, 0 half, 48 full, 8 constlen
; CL prog 17/1: 4 max_waves, 1 double_threadsize

KERNEL f_kernel
"""

RDNA = """\
Compute Shader:
Shader main disassembly:
 BB0:
\ts_mov_b32 s0, lit(0x0)               ; be8003ff 00000000
 BB1:
\timage_load v[0:3], v[4:6], s[8:15]   ; f0
\ts_waitcnt vmcnt(0)                   ; bf
\tv_fmac_f32_e32 v1, v2, v3            ; 56
\tv_pk_fma_f16 v1, v2, v3, v1          ; cc
\ts_nop 1                              ; bf
\tscratch_load_dword v1, off           ; dc
\ts_cbranch_scc1 BB1                   ; bf
 BB2:
\timage_store v[0:3], v[4:6], s[8:15]  ; f0
\ts_endpgm                             ; bf

*** SHADER STATS ***
SGPRS: 108
VGPRS: 96
Spilled SGPRs: 1
Spilled VGPRs: 6
Max Waves: 10
********************
Shader Stats: SGPRS: 108 (CS, W64)
"""

VALHALL = """\
block0 {
   r0 = MOV.i32 r1
}

   MOV.i32 r1, r0
   STORE.i32.slot0 @r59, thread_local_pointer.w0, offset:0
   LOAD.i128.unsigned.slot1 @r4:r5:r6:r7, [r2:r3], offset:0
   FMA.f32.wait1 r0, r1, r2, r0
   FMA.v2f16 r0, r1, r2, r0
   U16_TO_U32 r1, r55^.h0
   BRANCHZ.eq.reconverge 0x0, offset:-5
   STORE.i128.slot0.end @r0, [r2:r3], offset:0

MESA_SHADER_KERNEL shader: 8 instrs, 3.000000 cycles, 0.031250 fma, 0.5 cvt, 0.25 sfu, \
0.25 alu, 0.000000 v, 0.000000 t, 3.000000 ls, 128 code size, 1 threads, 1 loops, \
2:3 spills:fills, 10 spill cost, 60 registers used, 5 uniforms used
KERNEL f_kernel
"""


def gpu(name: str) -> Gpu:
    return GPUS[name]


def test_ir3_counts_slots_of_the_last_variant_and_of_its_loop() -> None:
    code = ir3.parse(IR3, KERNEL, gpu("adreno-740"))
    assert code is not None
    assert (code.registers, code.waves, code.wave, code.loops) == (48, 4, 128, 1)
    # Four multiply-adds, a conversion with two idle slots, a fetch, a load, a jump.
    assert (code.hot.issue, code.hot.multiply_adds, code.hot.fetches) == (10, 4, 1)
    assert (code.hot.conversions, code.hot.idle, code.hot.waits, code.spills) == (1, 2, 2, 1)
    # And a jump, an addition, three idle slots, a store and the end; nothing after the end.
    assert (code.whole.issue, code.whole.idle, code.whole.stores) == (17, 5, 1)
    assert not code.is_straight
    assert code.lanes_filled == 12 / 128
    assert code.launched_waves == 4


def test_rdna_counts_slots_and_takes_what_the_compiler_says() -> None:
    code = rdna.parse(RDNA, KERNEL, gpu("amd-navi21"))
    assert code is not None
    assert (code.registers, code.waves, code.wave, code.spills) == (96, 10, 64, 7)
    assert (code.hot.issue, code.hot.multiply_adds, code.hot.fetches) == (7, 2, 1)
    assert (code.hot.idle, code.hot.waits, code.hot.spills) == (1, 1, 1)
    assert code.whole.stores == 1


def test_valhall_counts_slots_and_has_cycles_of_units() -> None:
    code = valhall.parse(VALHALL, KERNEL, gpu("mali-g610"))
    assert code is not None
    assert (code.registers, code.waves, code.wave, code.spills) == (60, 32, 16, 5)
    assert code.cycles == {"fma": 0.03125, "cvt": 0.5, "sfu": 0.25, "v": 0, "t": 0, "ls": 3}
    assert (code.loops, code.hot.issue, code.hot.multiply_adds) == (1, 5, 2)
    assert (code.hot.loads, code.hot.conversions, code.hot.waits) == (1, 1, 1)
    assert (code.whole.spills, code.whole.stores) == (1, 1)


@pytest.mark.parametrize(
    ("parse", "name"),
    [(ir3.parse, "adreno-660"), (rdna.parse, "amd-navi21"), (valhall.parse, "mali-g57")],
)
def test_output_without_code_is_no_kernel(parse, name: str) -> None:
    assert parse("@@ file /tmp/0000.cl\nsomething else\n@@ end\n", KERNEL, gpu(name)) is None


def test_the_innermost_loop_with_most_multiply_adds_is_hot() -> None:
    kinds = classes(multiply_adds="mad")
    code = [
        Instruction("", 0, label="outer"),
        Instruction("", 0, label="first"),
        Instruction("mad"),
        Instruction("jump", jumps_to="first"),
        Instruction("", 0, label="second"),
        *[Instruction("mad")] * 3,
        Instruction("jump", jumps_to="second"),
        Instruction("jump", jumps_to="outer"),
        # Forward: no loop.
        Instruction("jump", jumps_to="end"),
        Instruction("", 0, label="end"),
    ]
    found = kernel_code(KERNEL, code, kinds, registers=1, waves=1, wave=64, listing="")
    assert found.loops == 3
    assert (found.hot.multiply_adds, found.hot.issue) == (3, 4)
    assert found.whole.multiply_adds == 4


def test_findings_name_spills_lanes_waves_and_parallelism() -> None:
    code = ir3.parse(IR3, KERNEL, gpu("adreno-740"))
    assert code is not None
    said = {finding.kind: finding.sentence for finding in findings(code, gpu("adreno-740"))}
    assert said["registers"].startswith("1 values do not fit the 48 registers")
    assert "Work-groups of 12 fill 9%" in said["occupancy"]
    assert said["parallel"] == "A launch is 4 waves for 6 shader cores."
    assert "40% of the issue slots" in said["arithmetic"]


def test_kernels_share_the_arithmetic_of_a_run() -> None:
    def report(*flops: int | None) -> Report:
        kernels = tuple(
            replace(kernel_code(KERNEL, [], {}, registers=1, waves=1, wave=64, listing=""),
                    kernel=str(number), flops=each)
            for number, each in enumerate(flops)
        )  # fmt: skip
        return Report("", "", "", "", "", kernels, (), ())

    assert [report(30, 10, 0).share(name) for name in "012"] == [0.75, 0.25, 0]
    assert report(30, None).share("0") == 1
    # Kernels of unknown cost are assumed to cost as much as the others.
    assert report(30, None).share("1") == 0.5
    assert report(None, None).share("0") == report(0, 0).share("0") == 0.5


def test_code_that_is_good_has_no_findings() -> None:
    kernel = KernelSource("f_kernel", "f", "", (64, 1, 1), 100)
    code = [Instruction("mad")] * 10
    kinds = classes(multiply_adds="mad")
    good = kernel_code(kernel, code, kinds, registers=16, waves=16, wave=64, listing="")
    assert findings(good, gpu("adreno-740")) == []
