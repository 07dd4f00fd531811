"""Kernels of the GIoU loss that `giou.py` measures: compiled here, loaded anywhere.

Beside the loss and its gradient there are losses with a loop around the arithmetic of a box. A turn
moves the predicted box by an eighth of a pixel, so that no compiler computes one turn for all.
"""

from __future__ import annotations

import json
import platform
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import tvm
import tvm_ffi
from cuda_code import keep_machine_code
from tvm import te, tirx

from tvmflow.codegen import opencl_source  # noqa: F401 (registers its callback with TVM)
from tvmflow.codegen.tir_pipeline import TIR_PIPELINE
from tvmflow.devices.target import TargetSpec, resolve
from tvmflow.ir.expressions import nodes_in
from tvmflow.ir.operators import OPERATORS
from tvmflow.ir.workspaces import with_workspaces
from tvmflow.ops import program
from tvmflow.ops.giou_terms import EPSILON, giou_of
from tvmflow.ops.signature import read_signature
from tvmflow.ops.validity import Batch
from tvmflow.schedules import Scheduled, schedule_function
from tvmflow.schedules.boxes import masked_mean
from tvmflow.schedules.boxes.builder import sequence
from tvmflow.schedules.family import refusal
from tvmflow.tuning.building import link

SKIPS = masked_mean.SKIPS
#: Dtypes of predictions and targets in each case.
DTYPES = {"loss": ("float32", "float32"), "faces": ("bfloat16", "uint8")}
#: Forms of validity that have loops, with the dtype of their input.
FORMS = {"count": "int32", "mask": "bool"}
#: Pixels that a turn moves the predicted box by.
STEP = 0.125
#: Stands for the moved distance until there is a loop: a number that kernels do not have otherwise.
_MARK = 12345678.0


def compile_functions(
    folder: Path, target: str, arch: str, case: str, batch: int, boxes: int, repetitions: list[int]
) -> None:
    """Write a case's losses and gradients, and those with a loop around the body."""
    folder.mkdir(parents=True, exist_ok=True)
    if target == "cuda":
        keep_machine_code(folder, arch)
    spec = resolve(target)
    pred, wanted = DTYPES[case]
    entries = []
    for form, packed in (("count", ""), ("offsets", "[P, 4]")):
        types = {"pred": pred, "target": f"{wanted}{packed}", form: "int32"}
        loss = _build("GIoULoss", types, [0, 1], spec)
        entries.append(_keep(folder, "GIoULoss", form, "", loss, spec))
        gradient = _build("GIoULossGrad", {**types, "grad_loss": pred}, [0], spec)
        entries.append(_keep(folder, "GIoULossGrad", form, "", gradient, spec))
        if form == "count":
            knobs = {**loss.scheduled.knobs, "skip": "none"}
            whole = _build("GIoULoss", types, [0, 1], spec, knobs)
            entries.append(_keep(folder, "GIoULoss", form, "none", whole, spec))
    content = {
        "case": case, "target": target, "arch": arch, "machine": platform.machine(),
        "batch": batch, "boxes": boxes, "repetitions": repetitions, "step": STEP,
        "entries": entries,
        "repeated": compile_repeated(folder, case, batch, boxes, repetitions, spec),
    }  # fmt: skip
    (folder / "functions.json").write_text(json.dumps(content, indent=2) + "\n")


def _build(
    name: str, types: dict[str, str], results: Sequence[int], spec: TargetSpec, knobs: Any = None
) -> program.Program:
    """Compile some results of an operator."""
    operator = OPERATORS[name]
    signature = read_signature(operator, types)
    return program.build(operator, signature, operator.complete({}), results, spec, knobs)


def _keep(
    folder: Path, name: str, form: str, skip: str, built: program.Program, spec: TargetSpec
) -> dict[str, Any]:
    """Write a function's library, and return its entry of the manifest."""
    file = "-".join(filter(None, (name, form, skip))) + ".so"
    link(built.module, folder / file, spec)
    print(f"compiled {file}: {built.scheduled.family} {built.scheduled.knobs}")
    workspaces = [(kind.shape, kind.dtype) for kind in built.workspaces]
    return {"operator": name, "form": form, "skip": skip, "file": file, "function": built.name,
            "workspaces": workspaces}  # fmt: skip


def compile_repeated(
    folder: Path, case: str, batch: int, boxes: int, repetitions: Sequence[int], target: TargetSpec
) -> list[dict[str, Any]]:
    """Write a kernel for each form, allowed way of skipping, and number of turns."""
    entries = []
    for form in FORMS:
        for skip in SKIPS:
            scheduled = schedule(batch, boxes, form, skip, target, case)
            if isinstance(scheduled, str):
                print(f"{form}, skip {skip}: not compiled. {scheduled}")
                continue
            for repeats in repetitions:
                name = f"repeated_{form}_{skip}_{repeats}"
                entry = build_repeated(folder, scheduled, name, repeats, target)
                entries.append({"form": form, "skip": skip, "repeats": repeats, **entry})
    return entries


def schedule(
    batch: int, boxes: int, form: str, skip: str, target: TargetSpec, case: str = "faces"
) -> Scheduled | str:
    """Schedule the loss of a case, or return the sentence why it cannot skip in this way."""
    dtype, wanted_dtype = DTYPES[case]
    pred = te.placeholder((batch, boxes, 4), dtype, "pred")
    wanted = te.placeholder((batch, boxes, 4), wanted_dtype, "target")
    valid = te.placeholder((batch, boxes) if form == "mask" else (batch,), FORMS[form], form)
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
    """Return the function of a schedule with a loop around its body."""
    function = scheduled.schedule.mod["main"]
    body = tvm_ffi.structural_map(function.body, (tirx.SeqStmt, partial(_looped, repeats)))
    if _marks(body):
        raise RuntimeError(f"a body of {scheduled.knobs} stands in no sequence of statements")
    return tirx.PrimFunc(function.params, body, function.ret_type, function.attrs)


def build_repeated(
    folder: Path, scheduled: Scheduled, name: str, repeats: int, target: TargetSpec
) -> dict[str, Any]:
    """Write the library of a schedule with a loop around its body."""
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
