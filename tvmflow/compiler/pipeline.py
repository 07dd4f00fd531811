"""`compile`, the function that users call.

Dumps of the program, timings and the progress display are instruments around the stages.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..devices.host import Host
from ..module.link import check_linker
from ..module.module import Module
from ..runtime.stage_times import StageTimes
from .options import CompileKeywords, CompileOptions, takes_options, with_keywords
from .torch_module import AnyModel, Examples, as_onnx

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from .driver import Progress


@takes_options
def compile(
    model: AnyModel,
    example_inputs: Examples | None = None,
    *,
    options: CompileOptions | None = None,
    file_name: str = "module.so",
    dump_ir: str | os.PathLike[str] | None = None,
    dump_ir_filter: str = "",
    work_folder: str | os.PathLike[str] | None = None,
    progress: Progress | None = None,
    **fields: Unpack[CompileKeywords],
) -> Module:
    """Compile an ONNX model, or a PyTorch module, to a module that can be run here and saved.

    With a phone or board of `tvmflow.connect` as ``device``, options that are not given follow that
    device, and the module, a standalone library, runs there.

    Parameters
    ----------
    model
        Path of an ONNX file, a model in memory, or a ``torch.nn.Module`` (extra ``torch``).
    example_inputs
        For a PyTorch module: the tensors that it is traced with, in order or by the names of the
        parameters of ``forward``, which the inputs keep; all shapes are those of the examples.
    options
        Options of the compilation as one object; those given as keywords replace its fields.
    file_name
        Final name of the module's file; a standalone library contains its own name.
    dump_ir
        Folder that gets the program after each stage and each pass, as text.
    dump_ir_filter
        Regular expression; only passes whose names match it are dumped.
    work_folder
        Folder for the module until it is saved, default the system's folder for temporary
        files.  If it is on the file system of the final file, saving only makes a link.
    progress
        Called before each stage with its name, its index and the number of stages.

    Raises
    ------
    ModelError, TargetError, CompileError
        With a sentence on the reason and one on the remedy.
    UnknownOptionError
        If a keyword is no option; it is a `CompileError` and a `TypeError`.

    Examples
    --------
    >>> module = tvmflow.compile("face.onnx", target="opencl", shapes={"image": (1, 1, 64, 64)})
    >>> boxes = module(image=picture)["boxes"]
    >>> module.save("face.so")
    >>> module = tvmflow.compile(torchvision.models.resnet18(), (torch.rand(1, 3, 224, 224),))
    """
    times = StageTimes()
    # "prepare" counts the work outside the stages: the target, loading the compiler, PyTorch's
    # export.
    with times.stage("prepare"):
        phone = fields.get("device", "")
        if isinstance(phone, str):
            options = with_keywords(options, fields)
        else:
            from .remote import options_for

            given: dict[str, Any] = {**fields}
            del given["device"]
            options = options_for(phone, options, **given)
        target = options.resolve()
        check_linker(Host.parse(options.host))
        from . import relax_pipeline  # noqa: F401 (registers it with TVM)
        from .driver import compile_model

        dump = None
        if dump_ir is not None:
            from .dump import Dump

            dump = Dump(Path(dump_ir), dump_ir_filter)
        with as_onnx(model, example_inputs) as source:
            module = compile_model(
                source, options, target=target, file_name=file_name, work_folder=work_folder,
                times=times, progress=progress, dump=dump,
            )  # fmt: skip
    if isinstance(phone, str):
        return module
    there = phone.load(module.path)
    there.call_at_end(module.close)
    return there
