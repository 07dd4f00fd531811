"""Functions of the GIoU loss that `giou.py` measures, compiled here and loaded anywhere."""

from __future__ import annotations

import json
import platform
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import tvm_ffi

if TYPE_CHECKING:
    from tvmflow.devices.target import TargetSpec
    from tvmflow.ops.program import Program

#: Forms of validity by the case, with the dtypes of their inputs.
FORMS: dict[str, dict[str, dict[str, str]]] = {
    "loss": {
        "count": {"count": "int32"},
        "mask": {"mask": "bool"},
        "offsets": {"target": "float32[P, 4]", "offsets": "int32"},
    },
    "faces": {
        "count": {"pred": "bfloat16", "target": "uint8", "count": "int32"},
        "offsets": {"pred": "bfloat16", "target": "uint8[P, 4]", "offsets": "int32"},
    },
}
#: Ways of skipping boxes that are not valid.
SKIPS = ("none", "element", "warp", "list")


def compile_functions(
    folder: Path, target: str, arch: str, case: str = "loss", **sizes: Any
) -> None:
    """Compile the loss in every form of a case with every way of skipping, and its gradient.

    ``faces`` also has kernels with their body several times over, of the sizes ``batch``, ``boxes``
    and ``repetitions``, a sequence.
    """
    from cuda_code import keep_machine_code

    from tvmflow.devices.target import resolve

    folder.mkdir(parents=True, exist_ok=True)
    if target == "cuda":
        keep_machine_code(folder, arch)
    spec = resolve(target)
    entries = []
    for form, types in FORMS[case].items():
        loss = _build("GIoULoss", types, spec)
        entries.append(_keep(folder, "GIoULoss", form, "", loss, spec))
        of_loss = {"grad_loss": types.get("pred", "float32")}
        gradient = _build("GIoULossGrad", {**types, **of_loss}, spec)
        entries.append(_keep(folder, "GIoULossGrad", form, "", gradient, spec))
        for skip in SKIPS:
            knobs = {**loss.scheduled.knobs, "skip": skip}
            if _allowed(loss, knobs, spec):
                program = _build("GIoULoss", types, spec, knobs)
                entries.append(_keep(folder, "GIoULoss", form, skip, program, spec))
    content = {"case": case, "target": target, "arch": arch, "machine": platform.machine(),
               "entries": entries}  # fmt: skip
    if case == "faces":
        from giou_repeated import compile_repeated

        content |= {**sizes, "repeated": compile_repeated(folder, spec, **sizes)}
    (folder / "functions.json").write_text(json.dumps(content, indent=2) + "\n")


def _build(name: str, types: Mapping[str, str], spec: TargetSpec, knobs: Any = None) -> Program:
    """One function; of the gradients, that of the prediction."""
    from tvmflow.ir.operators import OPERATORS
    from tvmflow.ops.program import build
    from tvmflow.ops.signature import read_signature

    operator = OPERATORS[name]
    signature = read_signature(operator, types)
    results = [0] if name == "GIoULossGrad" else [0, 1]
    return build(operator, signature, operator.complete({}), results, spec, knobs)


def _allowed(program: Program, knobs: Mapping[str, Any], spec: TargetSpec) -> bool:
    """Whether the loss's schedule can skip that way."""
    from tvmflow.schedules.boxes import masked_mean
    from tvmflow.schedules.family import refusal

    shape = masked_mean.Shape(**program.scheduled.shape)
    return refusal(masked_mean, masked_mean.Knobs(**knobs), shape, spec.device) is None


def _keep(
    folder: Path, name: str, form: str, skip: str, program: Program, spec: TargetSpec
) -> dict[str, Any]:
    """Write a function's library; what is known of it."""
    from tvmflow.tuning.building import link

    scheduled = program.scheduled
    file = "-".join(filter(None, (name, form, skip))) + ".so"
    link(program.module, folder / file, spec)
    print(f"compiled {file}: {scheduled.family} {scheduled.knobs}")
    return {"operator": name, "form": form, "skip": skip, "file": file, "function": program.name,
            "workspaces": [(kind.shape, kind.dtype) for kind in program.workspaces],
            "knobs": scheduled.knobs}  # fmt: skip


class Function:
    """A compiled function on PyTorch's tensors, without anything of TVM's compiler."""

    def __init__(self, folder: Path, entry: Mapping[str, Any]):
        self._library = tvm_ffi.load_module(folder / entry["file"])
        self._function = self._library[entry["function"]]
        self._workspaces = entry["workspaces"]

    def __call__(self, *tensors: torch.Tensor) -> None:
        """Inputs that are given, then outputs."""
        own = [
            torch.empty(shape, dtype=getattr(torch, dtype), device=tensors[0].device)
            for shape, dtype in self._workspaces
        ]
        self._function(*tensors, *own)


class Functions:
    """All functions of a folder, loaded when they are first called."""

    def __init__(self, folder: Path):
        import tvm  # noqa: F401 (the runtime, which libraries find in the process)

        self.manifest = json.loads((folder / "functions.json").read_text())
        if self.manifest["target"] == "cuda":
            from cuda_code import use_machine_code

            use_machine_code(folder)
        self._entries = {(e["operator"], e["form"], e["skip"]): e for e in self.manifest["entries"]}
        self._folder = folder
        self._loaded: dict[Any, Function] = {}

    def repeated(self) -> dict[tuple[str, str, int], Function]:
        """Kernels of `giou_repeated`, by form, way of skipping and repetitions."""
        entries = self.manifest["repeated"]
        return {(e["form"], e["skip"], e["repeats"]): Function(self._folder, e) for e in entries}

    def has(self, form: str, skip: str) -> bool:
        """Whether the loss was compiled with a way of skipping."""
        return ("GIoULoss", form, skip) in self._entries

    def _get(self, *key: str) -> Function:
        if key not in self._loaded:
            self._loaded[key] = Function(self._folder, self._entries[key])
        return self._loaded[key]

    def loss(self, form: str, *inputs: torch.Tensor, skip: str = "") -> tuple[torch.Tensor, ...]:
        """The loss and the number of valid boxes."""
        pred = inputs[0]
        result = torch.empty((), dtype=pred.dtype, device=pred.device)
        valid = torch.empty((), dtype=torch.int32, device=pred.device)
        self._get("GIoULoss", form, skip)(*inputs, result, valid)
        return result, valid

    def gradient(
        self, form: str, *inputs: torch.Tensor, valid: torch.Tensor, grad: torch.Tensor
    ) -> torch.Tensor:
        """The gradient by the prediction."""
        result = torch.empty_like(inputs[0])
        self._get("GIoULossGrad", form, "")(*inputs, valid, grad, result)
        return result
