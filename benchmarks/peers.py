"""Whole networks on this machine's CPU: this project next to other engines, in one run.

Engines take turns, each with as many threads as there are cores; one that is not installed,
or that cannot read the network, is left out with the reason.  Every engine's result is
compared with ONNX Runtime's.  Writes tables and JSON; the last table has geometric means of the
ratios to ONNX Runtime, over the networks that an engine reads.

    python -m pip install '.[peers]'
    python benchmarks/peers.py [--networks mobilenet_v2 squeezenet resnet50]

On a CPU ncnn's Vulkan runs by Mesa's lavapipe (Debian's mesa-vulkan-drivers).
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from statistics import geometric_mean
from typing import Any

import numpy as np
import onnx
import onnx_networks
from common import arguments, in_turn, opencl_device, report, summary, write_json
from same_kernels import NETWORKS as SIZES

import tvmflow
from tvmflow import models

#: This project's own, and five of those that come with ``onnx``.
NETWORKS = (*SIZES, "alexnet", "densenet121", "inception_v1", "inception_v2", "shufflenet")
THREADS = len(os.sched_getaffinity(0))

#: Runs one inference and returns the output.
Runner = Callable[[], np.ndarray]


class UnavailableError(Exception):
    """An engine that cannot take part, with the reason."""


def ours(target: str) -> Callable[[Path, np.ndarray], Runner]:
    """Return what starts tvmflow with one of its targets, without tuning."""

    def start(path: Path, feed: np.ndarray) -> Runner:
        module = tvmflow.compile(path, target=target)
        return lambda: module(feed)[0]

    return start


def onnxruntime(path: Path, feed: np.ndarray) -> Runner:
    """Return a runner of ONNX Runtime's CPU provider."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = THREADS
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    name = session.get_inputs()[0].name
    return lambda: session.run(None, {name: feed})[0]


def openvino(path: Path, feed: np.ndarray) -> Runner:
    """Return a runner of OpenVINO's CPU plug-in, in fp32 as the others."""
    import openvino

    hints = {
        "INFERENCE_NUM_THREADS": THREADS,
        "INFERENCE_PRECISION_HINT": "f32",
        "PERFORMANCE_HINT": "LATENCY",
    }
    compiled = openvino.Core().compile_model(str(path), "CPU", hints)
    request = compiled.create_infer_request()
    return lambda: np.array(request.infer([feed])[0])


def mnn(path: Path, feed: np.ndarray) -> Runner:
    """Return a runner of MNN on the CPU, which has a format of its own."""
    import MNN

    converted = path.with_suffix(".mnn")
    if not converted.exists():
        command = [str(Path(sys.executable).with_name("mnnconvert")), "-f", "ONNX"]
        command += ["--modelFile", str(path), "--MNNModel", str(converted), "--bizCode", "x"]
        subprocess.run(command, check=True, capture_output=True)
    interpreter = MNN.Interpreter(str(converted))
    options = {"backend": "CPU", "numThread": THREADS, "precision": "high"}
    session = interpreter.createSession(options)
    tensor, output = interpreter.getSessionInput(session), interpreter.getSessionOutput(session)
    kind, shape = MNN.Tensor_DimensionType_Caffe, output.getShape()
    given = MNN.Tensor(feed.shape, MNN.Halide_Type_Float, feed, kind)
    host = MNN.Tensor(shape, MNN.Halide_Type_Float, np.zeros(shape, np.float32), kind)

    def run() -> np.ndarray:
        tensor.copyFrom(given)
        interpreter.runSession(session)
        output.copyToHostTensor(host)
        return np.array(host.getData(), np.float32).reshape(shape)

    return run


def ncnn(vulkan: bool) -> Callable[[Path, np.ndarray], Runner]:
    """Return what starts ncnn on the CPU or by Vulkan, from its format, which pnnx writes."""

    def start(path: Path, feed: np.ndarray) -> Runner:
        import importlib.util

        import ncnn

        if vulkan and ncnn.get_gpu_count() == 0:
            raise UnavailableError("ncnn finds no Vulkan device")
        found = importlib.util.find_spec("pnnx")
        if found is None or found.origin is None:
            raise UnavailableError("pnnx, which converts to its format, is not installed")
        # The program of the package: its Python part would import PyTorch.
        program = Path(found.origin).parent / "pnnx"
        stem = path.with_suffix("")
        parameters = stem.with_name(f"{stem.name}.ncnn.param")
        if not parameters.exists():
            program.chmod(0o755)
            shape = ",".join(str(d) for d in feed.shape)
            command = [str(program), str(path), f"inputshape=[{shape}]", "fp16=0"]
            subprocess.run(command, check=True, capture_output=True, cwd=path.parent)
        net = ncnn.Net()
        net.opt.num_threads = THREADS
        net.opt.use_vulkan_compute = vulkan
        net.opt.use_fp16_storage = net.opt.use_fp16_arithmetic = net.opt.use_fp16_packed = False
        net.opt.use_bf16_storage = False
        if net.load_param(str(parameters)) != 0:
            # It would end the process at the first call.
            raise UnavailableError("ncnn does not read what pnnx has made of this network")
        net.load_model(str(parameters.with_suffix(".bin")))

        def run() -> np.ndarray:
            extractor = net.create_extractor()
            extractor.input("in0", ncnn.Mat(feed[0]))
            return np.array(extractor.extract("out0")[1]).reshape(1, -1)

        return run

    return start


ENGINES: dict[str, Callable[[Path, np.ndarray], Runner]] = {
    "tvmflow opencl": ours("opencl"),
    "tvmflow llvm": ours("llvm"),
    "ONNX Runtime": onnxruntime,
    "OpenVINO": openvino,
    "ncnn": ncnn(vulkan=False),
    "ncnn Vulkan": ncnn(vulkan=True),
    "MNN": mnn,
}


def measure(name: str, folder: Path, rounds: int) -> dict[str, Any]:
    """Return the latencies of one network through every engine that takes it."""
    path = folder / f"{name}.onnx"
    model = models.make(name, **SIZES[name]) if name in SIZES else onnx_networks.make(name)
    onnx.save(model, path)
    (picture,) = model.graph.input
    shape = [each.dim_value for each in picture.type.tensor_type.shape.dim]
    feed = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    reference = onnxruntime(path, feed)()
    runners: dict[str, Runner] = {}
    errors: dict[str, float] = {}
    missing: dict[str, str] = {}
    for engine, start in ENGINES.items():
        try:
            run = start(path, feed)
            result = run().reshape(reference.shape)
        except (ImportError, UnavailableError) as error:
            missing[engine] = str(error)
            continue
        except Exception as error:  # noqa: BLE001 (another engine's failure is a result)
            missing[engine] = f"{type(error).__name__}: {str(error).splitlines()[-1][:200]}"
            continue
        errors[engine] = float(np.abs(result - reference).max() / np.abs(reference).max())
        if errors[engine] > 1e-2:
            missing[engine] = f"its result is wrong by {errors[engine]:.1e}"
            continue
        runners[engine] = run
    times = in_turn(runners, rounds=rounds)
    # Once more with each engine by itself, as an application calls it.
    alone = {
        engine: in_turn({engine: run}, rounds=rounds)[engine] for engine, run in runners.items()
    }
    return {
        "network": name,
        "shape": shape,
        "in_turn": {engine: summary(values) for engine, values in times.items()},
        "alone": {engine: summary(values) for engine, values in alone.items()},
        "max_relative_error": errors,
        "left_out": missing,
    }


def geometric_means(results: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return each engine's medians as a ratio to ONNX Runtime's, and over how many networks."""
    means: dict[str, dict[str, Any]] = {}
    for engine in dict.fromkeys(engine for result in results for engine in result["alone"]):
        taken = [result for result in results if engine in result["alone"]]
        means[engine] = {"networks": len(taken)} | {
            way: geometric_mean(
                result[way][engine]["median_ms"] / result[way]["ONNX Runtime"]["median_ms"]
                for result in taken
            )
            for way in ("in_turn", "alone")
        }
    return means


def main() -> None:
    """Measure every network, and write table and JSON."""
    options = arguments(__doc__, networks=[*NETWORKS], rounds=30).parse_args()
    device = opencl_device()
    results = []
    with tempfile.TemporaryDirectory() as folder:
        for name in options.networks:
            result = measure(name, Path(folder), options.rounds)
            results.append(result)
            rows = []
            for engine, error in result["max_relative_error"].items():
                if engine in result["left_out"]:
                    continue
                cells = []
                for way in ("in_turn", "alone"):
                    ms = result[way][engine]["median_ms"]
                    base = result[way]["ONNX Runtime"]["median_ms"]
                    cells += [ms, f"{ms / base:.2f}"]
                rows.append((engine, *cells, f"{error:.0e}"))
            title = f"{name} {'x'.join(map(str, result['shape']))} fp32, {THREADS} threads"
            columns = ("", "ms in turn", "of ONNX Runtime", "ms alone", "of ONNX Runtime", "error")
            report(title, columns, rows)
            for engine, reason in result["left_out"].items():
                print(f"left out: {engine}: {reason}")
    means = geometric_means(results)
    report(
        f"Geometric means over networks, {THREADS} threads",
        ("", "networks", "in turn, of ONNX Runtime", "alone, of ONNX Runtime"),
        [
            (engine, mean["networks"], f"{mean['in_turn']:.2f}", f"{mean['alone']:.2f}")
            for engine, mean in means.items()
        ],
    )
    kept = {"device": device, "geometric_means": means, "networks": results}
    print(f"written: {write_json('peers', kept)}")


if __name__ == "__main__":
    main()
