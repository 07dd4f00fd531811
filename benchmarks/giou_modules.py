"""Functions of the GIoU loss that `giou.py` measures, compiled here and loaded anywhere."""

from __future__ import annotations

import json
import platform
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import tvm_ffi

#: Forms of validity, with the dtypes of their inputs.
FORMS: dict[str, dict[str, str]] = {
    "count": {"count": "int32"},
    "mask": {"mask": "bool"},
    "offsets": {"target": "{dtype}[P, 4]", "offsets": "int32"},
}
#: Ways of skipping boxes that are not valid.
SKIPS = ("none", "element", "warp", "list")
DTYPES = ("float32", "float16")


def compile_functions(folder: Path, target: str, arch: str) -> None:
    """Compile the loss in every form, and its gradient by the prediction."""
    from cuda_code import keep_machine_code

    from tvmflow.target import resolve

    folder.mkdir(parents=True, exist_ok=True)
    if target == "cuda":
        keep_machine_code(folder, arch)
    entries = []
    for dtype in DTYPES:
        for form in FORMS:
            entries.append(_compile(folder, resolve(target), "GIoULoss", form, dtype))
            entries.append(_compile(folder, resolve(target), "GIoULossGrad", form, dtype))
            for skip in SKIPS:
                entry = _compile(folder, resolve(target), "GIoULoss", form, dtype, skip)
                entries += [entry] if entry else []
    content = {"target": target, "arch": arch, "machine": platform.machine(), "entries": entries}
    (folder / "functions.json").write_text(json.dumps(content, indent=2) + "\n")


def _compile(
    folder: Path, spec: Any, name: str, form: str, dtype: str, skip: str = ""
) -> dict[str, Any] | None:
    """One function; ``None`` where its schedule has no such way of skipping."""
    from tvmflow.ops import OPERATORS
    from tvmflow.ops.program import build
    from tvmflow.ops.signature import read_signature
    from tvmflow.tuning.building import link

    operator = OPERATORS[name]
    given = {key: text.format(dtype=dtype) for key, text in FORMS[form].items()}
    floats = [o.name for o in operator.inputs if "float16" in o.dtypes]
    signature = read_signature(operator, {key: dtype for key in floats} | given)
    attributes = operator.complete({})
    # Gradients of the prediction alone: targets are data.
    results = [0] if name == "GIoULossGrad" else [0, 1]
    program = build(operator, signature, attributes, results, spec)
    if skip:
        knobs = {**program.scheduled.knobs, "skip": skip}
        program = build(operator, signature, attributes, results, spec, knobs)
        if program.scheduled.knobs["skip"] != skip:
            return None
    file = f"{name}-{form}-{dtype}-{skip or 'default'}"
    link(program.module, folder / f"{file}.so", spec)
    print(f"compiled {file}: {program.scheduled.family} {program.scheduled.knobs}")
    workspaces = [(list(kind.shape), kind.dtype) for kind in program.workspaces]
    return {"operator": name, "form": form, "dtype": dtype, "skip": skip, "file": f"{file}.so",
            "function": program.name, "workspaces": workspaces,
            "knobs": program.scheduled.knobs}  # fmt: skip


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
        self.manifest = json.loads((folder / "functions.json").read_text())
        if self.manifest["target"] == "cuda":
            from cuda_code import use_machine_code

            use_machine_code(folder)
        self._entries = {self._key(**e): e for e in self.manifest["entries"]}
        self._folder = folder
        self._loaded: dict[Any, Function] = {}

    @staticmethod
    def _key(operator: str, form: str, dtype: str, skip: str, **_: Any) -> tuple[str, ...]:
        return operator, form, dtype, skip

    def has(self, form: str, dtype: str, skip: str) -> bool:
        """Whether the loss was compiled with a way of skipping."""
        return ("GIoULoss", form, dtype, skip) in self._entries

    def _get(self, *key: str) -> Function:
        if key not in self._loaded:
            self._loaded[key] = Function(self._folder, self._entries[key])
        return self._loaded[key]

    def loss(self, form: str, *inputs: torch.Tensor, skip: str = "") -> tuple[torch.Tensor, ...]:
        """The loss and the number of valid boxes."""
        pred = inputs[0]
        result = torch.empty((), dtype=pred.dtype, device=pred.device)
        valid = torch.empty((), dtype=torch.int32, device=pred.device)
        dtype = str(pred.dtype).removeprefix("torch.")
        self._get("GIoULoss", form, dtype, skip)(*inputs, result, valid)
        return result, valid

    def gradient(
        self, form: str, *inputs: torch.Tensor, valid: torch.Tensor, grad: torch.Tensor
    ) -> torch.Tensor:
        """The gradient by the prediction."""
        result = torch.empty_like(inputs[0])
        dtype = str(inputs[0].dtype).removeprefix("torch.")
        self._get("GIoULossGrad", form, dtype, "")(*inputs, valid, grad, result)
        return result
