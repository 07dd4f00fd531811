"""Vision networks as their libraries define them: right, refused, and how long compiling takes.

Each architecture of torchvision, timm, Transformers and Ultralytics is built with random weights
(nothing is downloaded), exported by PyTorch, also quantized by ONNX Runtime, and every file is
compiled and verified against ONNX Runtime; `zoo_speed.py` takes the times of calls:

    python -m pip install '.[zoo]'
    python benchmarks/zoo.py [--only resnet] [--exporters dynamo script] [--forms llvm opencl]

Each file has a process of its own, which may crash or hang.  results/zoo.json is written after
each; what is there already is measured again only with --again.  docs/write_zoo.py makes
the tables.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from common import RESULTS, arguments, collect

#: Options of `tvmflow.compile`.
FORMS: dict[str, dict[str, str]] = {
    "llvm": {"target": "llvm"},
    "opencl": {"target": "opencl"},
    "textures": {"target": "opencl", "device": "adreno", "storage": "texture"},
    "fp16": {"target": "opencl", "dtype": "fp16"},
}
EXPORTERS = ("dynamo", "script")
#: A file that takes longer than this is given up, in seconds.
LIMIT_S = 900

TORCHVISION = {
    "alexnet": 224, "vgg11_bn": 224, "resnet18": 96, "resnet50": 96, "resnext50_32x4d": 64,
    "wide_resnet50_2": 64, "densenet121": 64, "squeezenet1_1": 96, "mobilenet_v2": 96,
    "mobilenet_v3_small": 96, "mobilenet_v3_large": 96, "mnasnet1_0": 96,
    "shufflenet_v2_x1_0": 96, "efficientnet_b0": 96, "efficientnet_v2_s": 96,
    "regnet_x_400mf": 96, "regnet_y_400mf": 96, "googlenet": 96, "inception_v3": 128,
    "convnext_tiny": 96, "swin_t": 96, "swin_v2_t": 128, "vit_b_16": 224, "maxvit_t": 224,
    "fcn_resnet50": 64, "deeplabv3_mobilenet_v3_large": 96, "lraspp_mobilenet_v3_large": 96,
    "r3d_18": 32, "r2plus1d_18": 32, "raft_small": 128, "ssdlite320_mobilenet_v3_large": 320,
}  # fmt: skip
TIMM = {
    "convmixer_768_32": 64, "mixer_s32_224": 224, "resmlp_12_224": 224, "gmlp_s16_224": 224,
    "deit_tiny_patch16_224": 224, "vit_tiny_patch16_224": 224, "eva02_tiny_patch14_224": 224,
    "beit_base_patch16_224": 224, "cait_xxs24_224": 224, "xcit_nano_12_p16_224": 224,
    "pvt_v2_b0": 96, "twins_pcpvt_small": 224, "levit_128s": 224, "visformer_tiny": 224,
    "coat_lite_tiny": 224, "crossvit_9_240": 240, "poolformer_s12": 96, "edgenext_xx_small": 96,
    "efficientformer_l1": 224, "efficientvit_b0": 96, "fastvit_t8": 96, "mobilevit_xxs": 96,
    "mobilevitv2_050": 96, "mobilenetv4_conv_small": 96, "mobileone_s0": 96, "repvgg_a0": 96,
    "repvit_m0_9": 96, "ghostnet_100": 96, "tinynet_e": 96, "lcnet_050": 96, "rexnet_100": 96,
    "hardcorenas_a": 96, "dla34": 96, "hrnet_w18_small": 96, "dpn68": 64, "selecsls42b": 96,
    "ese_vovnet19b_dw": 96, "cspresnet50": 64, "cspdarknet53": 64, "res2net50_26w_4s": 64,
    "skresnet18": 64, "resnest14d": 64, "nfnet_l0": 64, "eca_nfnet_l0": 64, "hgnetv2_b0": 96,
    "starnet_s1": 96, "inception_next_atto": 96, "tiny_vit_5m_224": 224,
    "swinv2_cr_tiny_ns_224": 224, "efficientnet_lite0": 224, "efficientformerv2_s0": 224,
    "mobilenetv4_conv_small@224": 224, "cspdarknet53@256": 256,
}  # fmt: skip
TRANSFORMERS = {"segformer_b0": 512}
ULTRALYTICS = {
    "yolov5n": 96, "yolov8n": 96, "yolov8n-seg": 96, "yolov8n-pose": 96, "yolov8n-cls": 96,
    "yolov9t": 96, "yolov10n": 96, "yolo11n": 96, "yolov8n+nms": 96, "rtdetr-resnet50": 96,
}  # fmt: skip
#: Detectors of the example networks, which need no PyTorch.
EXAMPLES = {"facebox_net": 64, "face_detector": 320}
#: Least share of a result that changes from some pictures to others: one that does not change may
#: be of the last layer alone.
DEPENDENT = 1e-2
#: A larger number is of layers that let it grow, beyond those of 16 bits.
LARGEST = 1e3
#: Sensitivity beyond which errors of half precision grow layer by layer, as with half cut off by
#: ReLU: with larger biases less is.
SENSITIVE = 3e-2


@dataclass(frozen=True)
class Architecture:
    """A network of a library."""

    name: str
    library: str
    size: int

    def build(self) -> tuple[Any, tuple[Any, ...]]:
        """Return the module with random weights, in inference, and an example of its inputs."""
        import torch

        torch.manual_seed(0)
        net, shape = _BUILDERS[self.library](self.name, self.size)
        count = 2 if self.name.startswith("raft") else 1
        inputs = tuple(torch.rand(shape) for _ in range(count))
        _randomize(net)
        net.eval()
        with torch.no_grad():
            results, others = (_flat(net(*x)) for x in (inputs, map(torch.rand_like, inputs)))
        largest = max(np.abs(result).max(initial=0) for result in results)
        # Detectors are always calibrated: boxes depend on pictures even if scores hardly do.
        detects = self.name.startswith("ssd")
        if detects or dependence(results, others) < DEPENDENT or largest > LARGEST:
            pictures = [torch.rand((8, *shape[1:])) for _ in range(count)]
            _calibrate(net, pictures)
            if not detects and _sensitivity(net, inputs) > SENSITIVE:
                _calibrate(net, pictures, bias=1.0)
        if self.library == "ultralytics":
            net = _as_exported(net, suppression=self.name.endswith("+nms"))
        return net, inputs


def _torchvision(name: str, size: int) -> tuple[Any, tuple[int, ...]]:
    import torchvision

    kinds = {"weights": None}
    if name.startswith(("ssd", "fcn", "deeplab", "lraspp")):
        kinds["weights_backbone"] = None
    if name in ("googlenet", "inception_v3"):
        kinds |= {"aux_logits": False, "init_weights": True}
    net = torchvision.models.get_model(name, **kinds)
    if name.startswith("ssd"):
        _decide([layers[-1] for layers in net.head.classification_head.module_list])
    frames = (4,) if name.startswith("r") and "_18" in name else ()
    return net, (1, 3, *frames, size, size)


def _timm(name: str, size: int) -> tuple[Any, tuple[int, ...]]:
    import timm

    # A second size of a network follows its name.
    return timm.create_model(name.partition("@")[0], pretrained=False), (1, 3, size, size)


def _transformers(name: str, size: int) -> tuple[Any, tuple[int, ...]]:
    from transformers import SegformerConfig, SegformerForSemanticSegmentation

    # The default configuration is that of SegFormer B0.
    return SegformerForSemanticSegmentation(SegformerConfig()), (1, 3, size, size)


def _ultralytics(name: str, size: int) -> tuple[Any, tuple[int, ...]]:
    from ultralytics import RTDETR, YOLO

    kind = RTDETR if name.startswith("rtdetr") else YOLO
    return kind(f"{name.removesuffix('+nms')}.yaml").model, (1, 3, size, size)


def _as_exported(model: Any, *, suppression: bool) -> Any:
    """Set what Ultralytics' own exporter does: one tensor, and anchors as constants."""
    model.fuse(verbose=False)
    for part in model.modules():
        if hasattr(part, "export"):
            part.export, part.format = True, "onnx"
    if not suppression:
        if hasattr(model.model[-1], "linear"):
            # In 8 bits a thousand classes are else of one score.
            _decide([model.model[-1].linear])
        return model
    import torchvision  # noqa: F401 (what its import does cannot be traced)
    from ultralytics.engine.exporter import NMSModel

    _decide([layers[-1] for layers in model.model[-1].cv3])
    options = {"format": "onnx", "dynamic": False, "batch": 1, "opset": 17, "agnostic_nms": False}
    return NMSModel(model, SimpleNamespace(**options, max_det=100, conf=0.25, iou=0.7)).eval()


def _decide(layers: list[Any]) -> None:
    """Let scores of classes differ: detections are else chosen among scores that are equal."""
    import torch

    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for layer in layers:
            layer.weight.normal_(0, 0.15, generator=generator)
            layer.bias.normal_(-1, 1, generator=generator)


_BUILDERS: dict[str, Callable[[str, int], tuple[Any, tuple[int, ...]]]] = {
    "torchvision": _torchvision, "timm": _timm, "transformers": _transformers,
    "ultralytics": _ultralytics,
}  # fmt: skip


def _randomize(net: Any) -> None:
    """Give norms statistics as trained ones have: otherwise they do nothing, or layers vanish.

    So do parameters that begin as one small number: with heads of 0 a result is 0 whatever stands
    before, and with scales of 1e-6 a residual's layers are beyond its last digit.
    """
    import torch

    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for part in net.modules():
            if getattr(part, "running_var", None) is not None:
                part.running_mean.normal_(0, 0.1, generator=generator)
                part.running_var.uniform_(0.5, 1.5, generator=generator)
                if part.weight is not None:
                    part.weight.uniform_(0.5, 1.5, generator=generator)
                    part.bias.normal_(0, 0.1, generator=generator)
        for parameter in net.parameters():
            first = float(parameter.flatten()[0])
            is_bias = parameter.dim() < 2 and first == 0
            if not is_bias and abs(first) <= 0.1 and bool((parameter == first).all()):
                parameter.normal_(0, 0.1, generator=generator)


def _calibrate(net: Any, inputs: list[Any], bias: float = 0.0) -> None:
    """Give norms the statistics of what they are given, as training does, and a larger bias."""
    import torch

    norms = [part for part in net.modules() if hasattr(part, "running_var")]
    for norm in norms:
        norm.train()
        norm.momentum = 1.0
        norm.bias.data.add_(bias)
    with torch.no_grad():
        net(*inputs)
        for norm in norms:
            # Channels that are nearly constant here need not be with other pictures.
            norm.running_var.clamp_(min=1e-2 * float(norm.running_var.mean()))
    net.eval()


def _sensitivity(net: Any, inputs: tuple[Any, ...]) -> float:
    """Return the share of a result that changes with half-precision errors in the pictures."""
    import torch

    near = [x * (1 + 2**-11 * (2 * torch.rand_like(x) - 1)) for x in inputs]
    with torch.no_grad():
        return dependence(_flat(net(*inputs)), _flat(net(*near)))


def _flat(results: Any) -> list[np.ndarray]:
    """Return the tensors among the results of a network."""
    if hasattr(results, "detach"):
        return [results.detach().numpy()]
    parts = results.values() if isinstance(results, dict) else results or ()
    return [array for part in parts for array in _flat(part)]


def dependence(results: list[np.ndarray], others: list[np.ndarray]) -> float:
    """Return the largest change of a result between pictures, by its largest number.

    As much as it has, where it has other numbers of detections.
    """
    changes = [
        float(np.abs(a - b).max() / np.abs(a).max()) if a.shape == b.shape else 1.0
        for a, b in zip(results, others, strict=True)
        if a.dtype.kind == "f" and a.any()
    ]
    return max(changes, default=0.0)


ARCHITECTURES = [
    Architecture(name, library, size)
    for library, names in (
        ("torchvision", TORCHVISION), ("timm", TIMM), ("transformers", TRANSFORMERS),
        ("ultralytics", ULTRALYTICS), ("tvmflow", EXAMPLES),
    )
    for name, size in names.items()
]  # fmt: skip


def export(architecture: Architecture, exporter: str, path: Path) -> None:
    """Write an architecture as ONNX, by ``torch.export`` or TorchScript's tracing."""
    if architecture.library == "tvmflow":
        from tvmflow import models

        models.build(architecture.name, path, size=architecture.size)
        return
    import torch

    net, inputs = architecture.build()
    # Else attention is one operator of PyTorch's, which TorchScript's exporter does not know.
    torch.backends.mha.set_fastpath_enabled(False)
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        if exporter == "dynamo":
            torch.onnx.export(net, inputs, dynamo=True, verbose=False).save(path)
        else:
            torch.onnx.export(net, inputs, path, dynamo=False, opset_version=17)


def export_quantized(architecture: Architecture, path: Path) -> Path:
    """Export an architecture by the first exporter that can, and quantize the file."""
    first, second = EXPORTERS
    try:
        export(architecture, first, path)
    except Exception:  # noqa: BLE001 (PyTorch's, of many kinds)
        export(architecture, second, path)
    return quantize(path)


def quantize(path: Path) -> Path:
    """Write a network in 8 bits (QDQ), calibrated with random pictures, by ONNX Runtime."""
    from onnxruntime import InferenceSession
    from onnxruntime.quantization import CalibrationDataReader, QuantFormat, quantize_static
    from onnxruntime.quantization.shape_inference import quant_pre_process

    class Pictures(CalibrationDataReader):
        def __init__(self) -> None:
            self._left = iter([feeds(path, seed) for seed in range(1, 4)])

        def get_next(self) -> dict[str, np.ndarray] | None:
            return next(self._left, None)

    prepared, quantized = path.with_suffix(".pre.onnx"), path.with_suffix(".int8.onnx")
    quant_pre_process(path, prepared, skip_symbolic_shape=True)
    quantize_static(prepared, quantized, Pictures(), quant_format=QuantFormat.QDQ, per_channel=True)
    InferenceSession(quantized, providers=["CPUExecutionProvider"])  # it refuses some of these
    return quantized


def feeds(path: Path, seed: int) -> dict[str, np.ndarray]:
    """Return random pictures for the inputs of a file."""
    import onnx

    rng = np.random.default_rng(seed)
    inputs = onnx.load(path, load_external_data=False).graph.input
    shapes = {i.name: [d.dim_value for d in i.type.tensor_type.shape.dim] for i in inputs}
    return {name: rng.random(shape, dtype=np.float32) for name, shape in shapes.items()}


def measure(path: Path, forms: list[str]) -> dict[str, Any]:
    """Compile a file in each form, and compare with ONNX Runtime."""
    import onnx
    import onnxruntime

    import tvmflow
    from tvmflow.errors import TvmflowError

    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    given = feeds(path, 0)
    if dependence(session.run(None, given), session.run(None, feeds(path, 1))) < DEPENDENT:
        return {"failed": "its results do not depend on its inputs"}
    result: dict[str, Any] = {"nodes": len(onnx.load(path, load_external_data=False).graph.node)}
    for form in forms:
        started = time.process_time()
        try:
            with tvmflow.compile(path, **FORMS[form]) as module:
                seconds = time.process_time() - started
                verdict = tvmflow.verify(path, module, given)
        except TvmflowError as error:
            result[form] = {"verdict": "refused", "reason": str(error)[:400]}
            continue
        worst = max(verdict.outputs, key=lambda output: output.used)
        result[form] = {
            "verdict": judged(verdict),
            "used": float(f"{worst.used:.3g}"),
            "tolerance": float(f"{worst.tolerance.absolute:.2g}"),
            "cpu_s": round(seconds, 1),
        }
    return result


def judged(report: Any) -> str:
    """Return the verdict of a report: undecided if ONNX Runtime's results differ as much."""
    if report.passed:
        return "right"
    failed = {output.name for output in report.outputs if not output.passed}
    return "undecided" if failed == set(report.undecided) else "wrong"


def work(name: str, exporter: str, kind: str, forms: list[str]) -> dict[str, Any]:
    """Export, compile and compare one file, in a process of its own."""
    architecture = next(each for each in ARCHITECTURES if each.name == name)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, f"{name}.onnx")
        try:
            if kind == "float":
                export(architecture, exporter, path)
            else:
                path = export_quantized(architecture, path)
        except Exception as error:  # noqa: BLE001 (PyTorch's, or the quantizer's: no network then)
            plain = re.sub(r"\x1b\[\d*m", "", str(error))
            lines = [line for line in plain.splitlines() if line.strip()]
            return {"not exported": f"{type(error).__name__}: {(lines or [''])[0][:200]}"}
        return measure(path, forms)


def line(name: str, result: dict[str, Any]) -> str:
    """Return what is printed of a file: its verdicts."""
    problem = result.get("not exported") or result.get("failed")
    if problem:
        return f"{name}: {problem[:100]}"
    told = [f"{form} {result[form]['verdict']}" for form in FORMS if form in result]
    return f"{name}, {result['nodes']} nodes: {', '.join(told)}"


def main() -> int:
    """Measure what is not there yet, file by file."""
    parser = arguments(__doc__, only=[""], exporters=EXPORTERS, kinds=("float", "int8"),
                       forms=tuple(FORMS), output=RESULTS / "zoo.json")  # fmt: skip
    parser.add_argument("--again", action="store_true", help="also what is there already")
    parser.add_argument("--work", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.work:
        print(json.dumps(work(*options.work, options.forms)))
        return 0
    jobs = []
    for architecture, exporter, kind in product(
        chosen(options.only), options.exporters, options.kinds
    ):
        # Quantized once: the quantizer makes much the same of both exports.
        if kind == "float" or exporter == options.exporters[0]:
            command = [sys.executable, __file__, "--work", architecture.name, exporter, kind]
            command += ["--forms", *options.forms]
            jobs.append((f"{architecture.name}, {exporter}, {kind}", partial(in_process, command)))
    done = collect(options.output, jobs, line, again=options.again)
    cells = [result[form] for result in done.values() for form in FORMS if form in result]
    return int(any(cell.get("verdict") == "wrong" for cell in cells))


def chosen(parts: list[str]) -> list[Architecture]:
    """Return the architectures whose names have one of these parts."""
    return [each for each in ARCHITECTURES if any(part in each.name for part in parts)]


def in_process(command: list[str], env: dict[str, str] | None = None) -> dict[str, Any]:
    """Run a command that prints JSON; a crash or a hang is its result."""
    try:
        found = subprocess.run(
            command, env=env, capture_output=True, text=True, timeout=LIMIT_S, check=False
        )
    except subprocess.TimeoutExpired:
        return {"failed": f"it took more than {LIMIT_S} s"}
    if found.returncode:
        return {"failed": f"exit status {found.returncode}: {found.stderr.strip()[-300:]}"}
    return json.loads(found.stdout.strip().splitlines()[-1])


if __name__ == "__main__":
    sys.exit(main())
