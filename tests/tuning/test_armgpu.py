"""Tables of measurements on an Adreno 640, as records for journals."""

from __future__ import annotations

import gzip
import io
import json
from pathlib import Path

import pytest

from tvmflow.journal.records import Trial
from tvmflow.tuning import importers
from tvmflow.tuning_logs.armgpu import write_records

WORKLOADS = """workload,device,task,arguments,file,really_measured
0,adreno640?,conv2d_no_batching,"[1,14,14,32,16,3,3,[2,2],[1,1]]",a.log,"1x1,s1,p0 on 14x14"
1,mali-g76,conv2d_no_batching,"[1,14,14,32,16,1,1,[1,1],[0,0]]",b.log,
2,adreno640,winograd_2,"[1,14,14,32,16,3,3,[1,1],[1,1,1,1]]",c.log,
3,adreno640,conv2d_no_batching,"[1,15,15,32,16,3,3,[1,1],[1,0]]",d.log,
4,adreno640,conv2d_no_batching,"[1,14,14,32,16,1,1,[1,1],[0,0,0,0]]",e.log,
"""
TRIALS = """workload,config,us,error
0,tile_ic=1x4;tile_oc=4;tile_ow=7x2;tile_oh=2x1,60.00,
0,tile_ic=1x4;tile_oc=4;tile_ow=7x1;tile_oh=2x1,,1
1,tile_ic=1x4;tile_oc=4;tile_ow=7x2;tile_oh=2x1,1.00,
2,inv_cp=1;inv_wp=37x2,70.00,
3,tile_ic=2x4;tile_oc=3;tile_ow=5x1;tile_oh=3x5,50.00,
3,tile_ic=2x4;tile_oc=2;tile_ow=5x1;tile_oh=3x5,51.00,
4,tile_ic=2x4;tile_oc=8;tile_ow=2x7;tile_oh=7x2,61.00,
"""
BEST = """device,network,task,arguments,config,us
adreno640,n,conv2d_no_batching,"[1,14,14,32,16,1,1,[1,1],[0,0,0,0]]",{pointwise},59.00
adreno640,n,conv2d_depthwise,"[1,14,14,32,32,3,3,[1,1],[1,1,1,1]]",{depthwise},9.00
adreno640,n,conv2d_no_batching,"[1,8,8,32,16,1,1,[1,1],[0,0,0,0]]",{buffer},9.00
adreno640,n,conv2d_no_batching,"[1,6,6,32,16,1,1,[1,1],[0,0,0,0]]",{odd},9.00
adreno640,n,conv2d_no_batching,"[1,9,9,32,16,3,3,[1,1],[1,0,1,0]]",{image},9.00
"""
CONFIGS = {
    "pointwise": "tile_rc=1x4;tile_f=8;tile_y=7x2;tile_x=2x28",
    "depthwise": "tile_ic=4;tile_oc=4;tile_cp=8;tile_hp=1x2;tile_wp=7x1",
    "buffer": "tile_rc=1x4;tile_f=4;tile_y=4x1;tile_x=2x8;idtype=1;kdtype=0;odtype=2",
    "odd": "tile_rc=1x4;tile_f=4;tile_y=3x1;tile_x=2x6",
    "image": "tile_ic=4x4;tile_oc=8;tile_ow=7x1;tile_oh=3x3;idtype=1;kdtype=1;odtype=0",
}


@pytest.fixture
def converted(tmp_path: Path) -> tuple[dict[str, Trial], str]:
    """Return the trials of the tables by signature, and the report."""
    for name, text in {"workloads": WORKLOADS, "trials": TRIALS}.items():
        with gzip.open(tmp_path / f"{name}.csv.gz", "wt") as file:
            file.write(text)
    (tmp_path / "best.csv").write_text(BEST.format(**CONFIGS))
    out, report = io.StringIO(), io.StringIO()
    write_records(tmp_path, out, report)
    trials = [importers.trial_of(json.loads(line)) for line in out.getvalue().splitlines()]
    return {trial.workload.signature: trial for trial in trials}, report.getvalue()


POINTWISE = "1x16x14x14 * 32x16x1x1 stride 1x1 padding 0x0x0x0 dilation 1x1"
DEPTHWISE = "1x32x14x14 * 32x1x3x3 stride 1x1 padding 1x1x1x1 dilation 1x1"
IMAGES = "1x16x9x9 * 32x16x3x3 stride 1x1 padding 1x0x1x0 dilation 1x1"


def test_the_fastest_trial_of_each_convolution_is_a_record(converted: tuple):
    trials, report = converted
    assert set(trials) == {POINTWISE, DEPTHWISE, IMAGES}
    # Both tables have this convolution; one log states the arguments of another one.
    trial = trials[POINTWISE]
    assert trial.costs == (59e-6,)
    assert {k: trial.provenance[k] for k in ("file", "line", "log")} == {
        "file": "best.csv", "line": 2, "log": "gpu_exp_data.tar",
    }  # fmt: skip
    assert "TVM-for-armgpu/tvm" in trial.provenance["note"]
    assert (trial.target.device, trial.device.name) == ("adreno", "Adreno 640")
    assert report.splitlines() == [
        "3 of 11 rows are records",
        "     3 slower than another row of the same convolution",
        "     2 a split does not divide its axis, which adds tests to the kernel",
        "     1 failed",
        "     1 winograd_2: one time for several kernels",
        "     1 the input or the weights are in a buffer",
    ]


def test_splits_become_knobs(converted: tuple):
    trials, _ = converted
    tile = {"tile_o": 1, "tile_h": 2, "tile_w": 7, "group_o": 8, "group_h": 7, "group_w": 2}
    knobs = trials[POINTWISE].knobs
    assert {name: knobs[name] for name in tile} == tile
    depthwise = trials[DEPTHWISE].knobs
    assert (depthwise["tile_h"], depthwise["reuse_rows"], depthwise["group_o"]) == (2, False, 8)
    other = {"tile_h": 3, "tile_w": 1, "group_o": 8, "group_h": 3, "group_w": 7}
    knobs = trials[IMAGES].knobs
    assert {name: knobs[name] for name in other} == other
