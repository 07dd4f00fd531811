"""The loss with its body several times: what skipping boxes gains, by the size of what is skipped.

The kernels are those of the loss, each with a loop around the arithmetic of a box, in which the
predicted box is moved by an eighth of a pixel a turn, so that no compiler computes one for all.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import tvm
import tvm_ffi
from tvm import te, tirx

from tvmflow.codegen import opencl_source  # noqa: F401 (registers its callback with TVM)
from tvmflow.codegen.kernels import with_workspaces
from tvmflow.codegen.tir_pipeline import TIR_PIPELINE
from tvmflow.devices.target import TargetSpec
from tvmflow.ir.expressions import nodes_in
from tvmflow.ops import giou_reference as reference
from tvmflow.ops.giou_terms import EPSILON, giou_of
from tvmflow.ops.validity import Batch
from tvmflow.schedules import Scheduled, schedule_function
from tvmflow.schedules.boxes import masked_mean
from tvmflow.schedules.boxes.builder import sequence
from tvmflow.schedules.family import refusal
from tvmflow.tuning.building import link

SKIPS = masked_mean.SKIPS
#: Forms of validity, with the dtype of their input and whether it is of each box.
FORMS = {"count": ("int32", False), "mask": ("bool", True)}
#: Pixels that a turn moves the predicted box by.
STEP = 0.125
#: Stands for them until there is a loop: a number that kernels do not have otherwise.
_MARK = 12345678.0


def loss_of(pred: np.ndarray, target: np.ndarray, valid: np.ndarray, repeats: int) -> float:
    """The same in NumPy's float64: GIoU of all turns, summed up, in the mean of valid boxes."""
    pairs = pred[valid].astype(np.float64), target[valid].astype(np.float64)
    total = sum(reference.giou(pairs[0] + r * STEP, pairs[1]).sum() for r in range(repeats))
    return float(total / max(valid.sum(), 1))


def schedule(batch: int, boxes: int, form: str, skip: str, target: TargetSpec) -> Scheduled | str:
    """The loss of bf16 predictions and uint8 targets, or the sentence why it cannot skip so."""
    dtype, of_boxes = FORMS[form]
    pred = te.placeholder((batch, boxes, 4), "bfloat16", "pred")
    wanted = te.placeholder((batch, boxes, 4), "uint8", "target")
    valid = te.placeholder((batch, boxes) if of_boxes else (batch,), dtype, form)
    given = Batch(pred, wanted, **{form: valid})

    def term(*axes: tirx.IterVar) -> Any:
        box = [axis.var for axis in axes]
        moved = [c.astype("float32") + tirx.const(_MARK, "float32") for c in given.predicted(box)]
        return giou_of(moved, given.wanted(box), EPSILON)

    results = masked_mean.compute(
        term, lambda *axes: given.valid([axis.var for axis in axes]), given.boxes, "float32"
    )
    function = te.create_prim_func([pred, wanted, valid, *results])
    chosen = schedule_function(function, target)
    knobs = {**chosen.knobs, "skip": skip}
    shape = masked_mean.Shape(**chosen.shape)
    if reason := refusal(masked_mean, masked_mean.Knobs(**knobs), shape, target.device):
        return reason
    return schedule_function(function, target, knobs)


def repeated(scheduled: Scheduled, repeats: int) -> tirx.PrimFunc:
    """The function of a schedule with a loop around its body."""
    function = scheduled.schedule.mod["main"]
    body = tvm_ffi.structural_map(function.body, (tirx.SeqStmt, partial(_looped, repeats)))
    if _marks(body):
        raise RuntimeError(f"a body of {scheduled.knobs} stands in no sequence of statements")
    return tirx.PrimFunc(function.params, body, function.ret_type, function.attrs)


def build(
    folder: Path, scheduled: Scheduled, name: str, repeats: int, target: TargetSpec
) -> dict[str, Any]:
    """Write the library of a schedule with a loop around its body; what is known of it."""
    function = repeated(scheduled, repeats)
    own: list[Any] = []
    if target.is_gpu_kernel:
        function, own = with_workspaces(function)
    function = function.with_attrs(
        {"global_symbol": name, "tirx.noalias": True, "tirx.is_scheduled": True}
    )
    with target.tvm_target:
        module = tvm.tirx.build(
            tvm.IRModule({name: function}), target=target.tvm_target, pipeline=TIR_PIPELINE
        )
    link(module, folder / f"{name}.so", target)
    workspaces = [(tuple(map(int, each.shape)), str(each.dtype)) for each in own]
    return {"file": f"{name}.so", "function": name, "workspaces": workspaces}


def compile_repeated(
    folder: Path, target: TargetSpec, batch: int, boxes: int, repetitions: Sequence[int]
) -> list[dict[str, Any]]:
    """Write the kernels of every form, way of skipping and number of turns that there can be."""
    entries = []
    for form in FORMS:
        for skip in SKIPS:
            scheduled = schedule(batch, boxes, form, skip, target)
            if isinstance(scheduled, str):
                print(f"{form}, skip {skip}: not compiled. {scheduled}")
                continue
            for repeats in repetitions:
                name = f"repeated_{form}_{skip}_{repeats}"
                entry = build(folder, scheduled, name, repeats, target)
                entries.append({"form": form, "skip": skip, "repeats": repeats, **entry})
    return entries


def _looped(repeats: int, block: tirx.SeqStmt) -> tirx.Stmt:
    """Put what depends on the mark into a loop, whose turns take the mark's place."""
    statements, known = list(block.seq), set()
    places = []
    for place, statement in enumerate(statements):
        if any(v in known for v in nodes_in(statement, tirx.Var)) or _marks(statement):
            places.append(place)
            known |= {bind.var for bind in nodes_in(statement, tirx.Bind)}
    if not any(_marks(statements[place]) for place in places):
        return block
    turn = tirx.Var("repetition", "int32")
    moved = turn.astype("float32") * tirx.const(STEP, "float32")
    body = tvm_ffi.structural_map(
        sequence(statements[places[0] : places[-1] + 1]),
        (tirx.FloatImm, lambda number: moved if number.value == _MARK else number),
    )
    zero = tirx.IntImm("int32", 0)
    loop = tirx.For(turn, zero, tirx.IntImm("int32", repeats), tirx.ForKind.SERIAL, body)
    return sequence([*statements[: places[0]], loop, *statements[places[-1] + 1 :]])


def _marks(statement: tirx.Stmt) -> bool:
    return any(number.value == _MARK for number in nodes_in(statement, tirx.FloatImm))
