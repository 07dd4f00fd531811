"""Networks on a phone: agent's size, latency, tuning, bytes sent, time to begin, probed rates.

The phone is played by this machine: Debian's adb speaks to the tests' adb daemon, which starts the
agent with this machine's OpenCL device.  Run it from the root of the repository, on a machine that
does nothing else:

    python benchmarks/phone.py
    python benchmarks/phone.py --only latency tuning
"""

from __future__ import annotations

import os
import re
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import common

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from support.adb_daemon import AdbDaemon, Phone

import tvmflow
from tvmflow import models
from tvmflow.agent import adb, executable
from tvmflow.devices.host import HOSTS, Host
from tvmflow.module.standalone.encode import BUILD_OPTIONS
from tvmflow.probe import cases
from tvmflow.probe.bench import Bench, Program
from tvmflow.probe.kernels import source

ROOT = common.RESULTS.parents[1]
#: Runs the command line with this machine's agent in place of an Android phone's.
COMMAND = """
from tvmflow.agent import adb, executable
from tvmflow.cli import main
from tvmflow.devices.host import Host
agent = executable.agent_executable
adb.agent_executable = lambda host: agent(Host.native())
main()
"""


@contextmanager
def attached() -> Iterator[tuple[AdbDaemon, Path]]:
    """Attach a phone to an adb server of its own; yield its daemon and a folder for files."""
    native = executable.agent_executable(Host.native())
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        # A home of its own, too: adb keeps its key there.
        environment = {"HOME": str(folder), "ANDROID_ADB_SERVER_PORT": str(port)}
        stack.enter_context(mock.patch.dict(os.environ, environment))
        stack.enter_context(mock.patch.object(adb, "agent_executable", return_value=native))
        daemon = AdbDaemon(Phone(folder / "phone"))
        stack.callback(daemon.pull_cable)
        for command in ["start-server"], ["connect", f"127.0.0.1:{daemon.port}"]:
            subprocess.run(["adb", *command], capture_output=True, check=True)
        stack.callback(subprocess.run, ["adb", "kill-server"], check=True)
        yield daemon, folder


def sizes() -> dict[str, int]:
    """Return the bytes of the agent for each host."""
    agents = {name: executable.agent_executable(Host.parse(name)) for name in HOSTS}
    return {name: agent.stat().st_size for name, agent in agents.items()}


def latency(rounds: int) -> dict[str, Any]:
    """Measure a library in a C application, in this process, and through agents, in turn."""
    with attached() as (_, folder), ExitStack() as stack:
        library, runs = folder / "libmobilenet.so", 150
        options = {"target": "opencl", "format": "standalone", "file_name": library.name}
        with tvmflow.compile(models.make("mobilenet_v2"), **options) as module:
            module.save(library)
        opened = {"python": stack.enter_context(tvmflow.load(library))}
        for place in "local", "adb":
            device = stack.enter_context(tvmflow.connect(place))
            opened[place] = stack.enter_context(device.load(library))
        loop = compiled(folder, "library_loop", "bindings", library)
        environment = {**os.environ, "LD_LIBRARY_PATH": str(folder)}

        def in_application() -> float:
            command = [loop, str(3 * 224 * 224), "1000", str(runs)]
            return float(subprocess.check_output(command, env=environment, text=True))

        times = common.in_turn(
            {
                "application": in_application,
                **{
                    name: lambda module=module: tvmflow.bench(module, runs=runs).median_ms
                    for name, module in opened.items()
                },
            },
            rounds=rounds,
            warmup=1,
            timed=lambda measure: measure(),
        )
    found = {name: round(statistics.median(each), 4) for name, each in times.items()}
    ratios = {
        name: [a / b for a, b in zip(each, times["application"], strict=True)]
        for name, each in times.items()
    }
    return {
        "median_ms": found,
        "of_application": {n: round(statistics.median(each), 4) for n, each in ratios.items()},
        "rounds": rounds,
    }


def compiled(folder: Path, name: str, headers: str, *libraries: object) -> Path:
    """Compile a benchmark in C, with headers of a folder of ``native``."""
    source, include = ROOT / "benchmarks" / f"{name}.c", f"-I{ROOT / 'native' / headers}"
    command = ["gcc", "-O2", include, source, *map(str, libraries), "-o", folder / name]
    subprocess.run(command, check=True)
    return folder / name


#: Tunes on a place, or here, and prints the number of trials and the seconds.  It is a process of
#: its own, which does not share Python's lock with the daemon that plays the phone.
TUNE = """
import json, sys, tempfile, time
from contextlib import nullcontext
from pathlib import Path
import tvmflow
from tvmflow import models
from tvmflow.agent import adb, executable
from tvmflow.devices.host import Host

native = executable.agent_executable(Host.native())
adb.agent_executable = lambda host: native
place, trials, seed = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
network = models.make("mobilenet_v1", width=0.25, size=64)
with tempfile.TemporaryDirectory() as folder:
    journal = Path(folder) / "phone.journal"
    with tvmflow.connect(place) if place else nullcontext() as phone:
        device = {"device": phone} if place else {}
        began = time.perf_counter()
        tvmflow.tune(
            network, journal, trials=trials, seed=seed, target="opencl", compare=False, **device
        )
        seconds = time.perf_counter() - began
    with tvmflow.Journal.open(journal) as opened:
        print(json.dumps({"rate": len(list(opened.trials())) / seconds}))
"""


def tuning(trials: int, rounds: int) -> dict[str, Any]:
    """Tune a network on this machine, by TVM's runtime, and through adb, in turn."""
    rates: dict[str, list[float]] = {"here": [], "adb": []}
    for number in range(rounds):
        for name, found in rates.items():
            # A new phone each time: like this machine's tuning, it has no built programs.
            with attached():
                place = "" if name == "here" else name
                found.append(common.in_process(TUNE, place, str(trials), str(number))["rate"])
    medians = {name: round(statistics.median(each), 3) for name, each in rates.items()}
    return {
        "trials_per_s": medians,
        "of_here": round(medians["adb"] / medians["here"], 3),
        "rounds": {name: [round(rate, 3) for rate in each] for name, each in rates.items()},
    }


def start() -> dict[str, Any]:
    """Measure `tvmflow bench` of a model from empty caches, and again; and count the bytes."""
    with attached() as (daemon, folder):
        model = models.build("mobilenet_v2", folder / "mobilenet_v2.onnx")
        command = [
            sys.executable,
            "-c",
            COMMAND,
            "bench",
            str(model),
            "--on",
            "adb",
            "--runs",
            "100",
        ]
        # `HOME` is an empty folder: no agent is compiled yet, no program, no journal.
        environment = {k: v for k, v in os.environ.items() if not k.startswith(("TVMFLOW", "XDG"))}
        found: dict[str, Any] = {}
        for name in "first", "second":
            before, started = daemon.received, time.perf_counter()
            done = subprocess.run(
                command, env=environment, capture_output=True, text=True, check=True
            )
            assert "median" in done.stdout
            found[f"{name}_s"] = round(time.perf_counter() - started, 1)
            found[f"{name}_bytes"] = daemon.received - before
    return {**found, "second_share": round(found["second_bytes"] / found["first_bytes"], 5)}


def probed(rounds: int) -> dict[str, Any]:
    """Measure bandwidths by the probe and by a loop in C of its own, in turn."""
    with tempfile.TemporaryDirectory() as folder, tvmflow.connect("local") as device:
        loop = compiled(Path(folder), "bandwidth_loop", "core", "-l:libOpenCL.so.1")
        bench = Bench(device, 0)
        info = device.require_opencl(0)
        is_cpu = info.device_type == "cpu"
        program = Program(source(), f"{BUILD_OPTIONS} -DLANES={16 if is_cpu else 4} -DIMAGES")
        grid = cases.Grid.of(info, is_cpu=is_cpu)

        def by_probe() -> dict[str, float]:
            found = {}
            for name, is_image in {"buffer_gbps": False, "image_gbps": True}.items():
                place = cases.Place("float32", 2048, 2048, 2, is_image)
                access = "read" if is_image else "copy"
                with bench.memory():
                    ready = bench.grow(cases.stream(bench, program, grid, place, access))
                    found[name] = bench.rates([ready])[0] / 1e9
            return found

        def by_loop() -> dict[str, float]:
            done = subprocess.run([loop], capture_output=True, text=True, check=True)
            return {
                name: float(rate) for name, rate in re.findall(r"(\w+_gbps) (\S+)", done.stdout)
            }

        pairs = [(by_probe(), by_loop()) for _ in range(rounds)]
    return {
        name: {
            "probe_gbps": round(statistics.median(ours[name] for ours, _ in pairs), 3),
            "loop_gbps": round(statistics.median(loop[name] for _, loop in pairs), 3),
            "of_loop": round(statistics.median(a[name] / b[name] for a, b in pairs), 3),
        }
        for name in ("buffer_gbps", "image_gbps")
    }


def main() -> None:
    """Measure the figures of ``--only``, print a table and write ``results/phone.json``."""
    parser = common.arguments(__doc__, rounds=9, trials=12)
    names = "size", "latency", "tuning", "start", "probe"
    parser.add_argument("--only", nargs="+", choices=names, default=names)
    options = parser.parse_args()
    path = common.RESULTS / "phone.json"
    jobs = {
        "size": sizes,
        "latency": lambda: latency(options.rounds),
        "tuning": lambda: tuning(options.trials, max(1, options.rounds // 3)),
        "start": start,
        "probe": lambda: probed(options.rounds),
    }
    results = common.collect(
        path,
        [(name, jobs[name]) for name in options.only],
        lambda name, result: f"{name}: {result}",
        again=True,
    )
    device = common.opencl_device()
    common.write_json(path, {"device": device, "results": results})
    rows = []
    if size := results.get("size"):
        rows.append(("agent for android-arm64, KB", f"{size['android-arm64'] / 1e3:.0f}"))
    if found := results.get("latency"):
        for name in ("local", "adb"):
            ratio = found["of_application"][name]
            rows.append((f"latency through {name}, of that in a C program", f"{ratio:.3f}"))
    if found := results.get("tuning"):
        rows.append(("trials a second through adb, of those here", f"{found['of_here']:.2f}"))
    if found := results.get("start"):
        rows.append(("bench from empty caches, s", f"{found['first_s']:.1f}"))
        rows.append(("bytes of the second bench, of the first's", f"{found['second_share']:.3%}"))
    if found := results.get("probe"):
        for name in ("buffer", "image"):
            ratio = found[f"{name}_gbps"]["of_loop"]
            rows.append((f"probed bandwidth of {name}s, of a loop in C", f"{ratio:.2f}"))
    common.report(f"Phone, played by {device['name']}", ["figure", "measured"], rows)


if __name__ == "__main__":
    main()
