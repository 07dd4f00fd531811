"""Commands that are stopped: their exit status, and no files left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from support.interrupted import HEED_CTRL_C, everything, start

#: Waits in a stage, so that the moment of the signal is certain; all else is the real program.
WAIT_IN_STAGE = """
import sys, time
from tvmflow.compiler import driver
from tvmflow.cli import main

def wait(job):
    print("waiting", flush=True)
    # Short ones: a signal just before a sleep does not end it.
    for _ in range(4000):
        time.sleep(0.1)

stages = list(driver.STAGES)
place = [stage.name for stage in stages].index(sys.argv.pop(1))
stages.insert(place, driver.Stage("wait", other=wait))
driver.STAGES = tuple(stages)
main()
"""

#: Waits in the middle of writing the weights next to the module.
WAIT_IN_WEIGHTS = """
import time
import numpy as np
from tvmflow.compiler import driver
from tvmflow.cli import main
from tvmflow.module import weights as module_weights

def pieces(array):
    yield bytes(array.nbytes // 2)
    print("waiting", flush=True)
    for _ in range(4000):
        time.sleep(0.1)

real = driver.write_artifact

def write(*arguments, weights, embed_limit_bytes, **keywords):
    real(*arguments, weights={"slow": np.zeros(16, np.float32)}, embed_limit_bytes=0, **keywords)

module_weights.pieces = pieces
driver.write_artifact = write
main()
"""

#: Waits in a function that TVM calls; it replaces the one named MODULE:NAME.
WAIT_IN_TVM = """
import sys, time
from importlib import import_module
import tvm_ffi
from tvmflow.cli import main

def wait():
    print("waiting", flush=True)
    for _ in range(4000):
        time.sleep(0.1)

def through_tvm(*_, **__):
    tvm_ffi.convert(wait)()

module, _, name = sys.argv.pop(1).partition(":")
*owners, name = name.split(".")
place = import_module(module)
for owner in owners:
    place = getattr(place, owner)
setattr(place, name, through_tvm)
main()
"""

#: Waits in a destructor, where Python drops the exception of a signal.
WAIT_IN_DESTRUCTOR = """
import sys, time
from tvmflow.compiler import driver
from tvmflow.cli import main

class Slow:
    def __del__(self):
        print("waiting", flush=True)
        for _ in range(4000):
            time.sleep(0.1)

def drop(job):
    Slow()
    for _ in range(4000):
        time.sleep(0.1)

driver.STAGES = (driver.Stage("import", other=drop), *driver.STAGES[1:])
main()
"""

#: Waits in text that Python executes: it reports an interruption there as unhandled.
WAIT_IN_TEXT = """
import time
from tvmflow.compiler import driver
from tvmflow.cli import main

def run(job):
    exec("print('waiting', flush=True)\\nfor _ in range(4000): time.sleep(0.1)", {"time": time})

driver.STAGES = (driver.Stage("import", other=run), *driver.STAGES[1:])
main()
"""


OPTIONS = ["--target", "llvm", "--shape", "x/in=1,3,8,8"]
MOMENTS = {
    "in-stage": (WAIT_IN_STAGE, "layout"),
    "before-export": (WAIT_IN_STAGE, "export"),
    "in-weights": (WAIT_IN_WEIGHTS,),
    "in-destructor": (WAIT_IN_DESTRUCTOR,),
    "in-text": (WAIT_IN_TEXT,),
    "in-conversion": (WAIT_IN_TVM, "tvmflow.frontend.convert:_result"),
    "in-schedule": (WAIT_IN_TVM, "tvmflow.compiler.scheduling:schedule_function"),
    "in-code": (WAIT_IN_TVM, "tvm.relax:build"),
}
STATUS = {signal.SIGINT: 130, signal.SIGTERM: 143, signal.SIGHUP: 129}
#: Cases of every run: every signal at one moment, and every moment with one signal.
TELLING = [
    ("in-weights", signal.SIGINT),
    ("in-weights", signal.SIGTERM),
    ("in-weights", signal.SIGHUP),
    ("in-stage", signal.SIGINT),
    ("in-destructor", signal.SIGINT),
    ("in-text", signal.SIGINT),
    ("in-schedule", signal.SIGINT),
    ("before-export", signal.SIGTERM),
]


@pytest.mark.parametrize(
    ("moment", "number"),
    [
        pytest.param(
            *(moment, number),
            marks=[] if (moment, number) in TELLING else [pytest.mark.slow],
            id=f"{moment}-{number.name}",
        )
        for moment in MOMENTS
        for number in STATUS
    ],
)
def test_a_stopped_compilation_leaves_nothing(
    model: Path, tmp_path: Path, moment: str, number: signal.Signals
):
    command = ["compile", str(model), *OPTIONS, "-o", "out.so"]
    process = start(*MOMENTS[moment], *command, folder=tmp_path)
    assert process.stdout is not None
    assert process.stdout.readline() == "waiting\n", process.communicate()
    process.send_signal(number)
    stdout, stderr = process.communicate(timeout=400)
    assert process.returncode == STATUS[number], stderr
    assert everything(tmp_path) == ["tmp"]
    assert "Traceback" not in stdout + stderr
    assert f"Stopped by {number.name}" in stderr


#: Commands that go on when one of their steps fails, and the function that TVM calls there.
GOES_ON = {
    "profile": (
        [
            "profile",
            "{module}",
            "--runs",
            "2",
            "--busy",
            "--html",
            "out.html",
            "--trace",
            "out.json",
        ],
        "tvmflow.explain.analysis.report:findings",
    ),
    "run": (
        ["run", "{module}", "--random-seed", "0", "--outputs", "out.npz"],
        "tvmflow.module.session:Session.bring",
    ),
    "bench": (["bench", "{module}"], "tvmflow.module.session:Session._to_host"),
    "verify": (["verify", "{model}", "{module}"], "onnxruntime:InferenceSession.run"),
    "lab": (["lab", "matmul", "--size", "16"], "tvmflow.explain.lab:found_and_removed"),
    "lab-ceilings": (
        ["lab", "matmul", "--size", "16"],
        "tvmflow.explain.lab:ceilings_above",
    ),
    "tune": (
        ["tune", "{model}", *OPTIONS, "--journal", "net.journal", "--report", "out.html"],
        "tvmflow.tuning.session:Tuner.run",
    ),
}


#: Commands that every run of the tests covers.
OFTEN = {"profile", "lab", "tune"}


@pytest.mark.onnxruntime
@pytest.mark.parametrize(
    "command",
    [pytest.param(name, marks=[] if name in OFTEN else [pytest.mark.slow]) for name in GOES_ON],
)
def test_a_stopped_command_does_not_go_on(
    model: Path, compiled: Path, tmp_path: Path, command: str
):
    arguments, place = GOES_ON[command]
    given = [text.format(module=compiled, model=model) for text in arguments]
    process = start(WAIT_IN_TVM, place, *given, folder=tmp_path)
    assert process.stdout is not None
    assert process.stdout.readline() == "waiting\n", process.communicate()
    process.send_signal(signal.SIGINT)
    stdout, stderr = process.communicate(timeout=400)
    assert process.returncode == 130, stderr
    assert stderr.count("Stopped by SIGINT") == 1
    assert "Traceback" not in stdout + stderr
    assert not [path for path in everything(tmp_path) if path.startswith("out")]


def test_stopped_before_a_command_begins(tmp_path: Path):
    script = """
import sys
from tvmflow.cli import main

class Stop:
    def find_spec(self, name, *_):
        if name == "tvmflow.cli.app":
            raise KeyboardInterrupt

sys.meta_path.insert(0, Stop())
main()
"""
    process = start(script, "devices", folder=tmp_path)
    assert process.communicate(timeout=400) == ("", "")
    assert process.returncode == 130


@pytest.mark.parametrize("arguments", [("inspect", "{}", "--json"), ("inspect", "{}"), ("-h",)])
def test_a_reader_that_goes_away(compiled: Path, arguments: tuple[str, ...]):
    process = subprocess.Popen(
        [sys.executable, "-m", "tvmflow", *(each.format(compiled) for each in arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    process.stdout.close()
    assert process.stderr is not None
    stderr = process.stderr.read()
    assert process.wait(timeout=400) == 141
    assert stderr == ""


WATCHED = """
import os, sys, time
from tvmflow.cli import output, session

output._PATIENCE_S = output._TURN_S = 0.01

@session.command
def slow():
    # Until the line is there, as far as there may be one.
    for _ in range(int(sys.argv[1])):
        time.sleep(0.1)
    output.note("noted")
    time.sleep(0.1)
    if output.state.json:
        output.print_json({})

output.state.json = "--json" in sys.argv
output.state.quiet = "-q" in sys.argv
slow()
"""


@pytest.mark.parametrize(
    ("arguments", "shown"), [((), True), (("--json",), False), (("-q",), False), (("dumb",), False)]
)
def test_a_person_sees_that_a_command_is_at_work(arguments: tuple[str, ...], shown: bool):
    """Progress is shown on a terminal, until the first output; never in pipes."""
    reader, terminal = os.openpty()
    command = [sys.executable, "-c", WATCHED, "5", *arguments]
    env = {**os.environ, "TERM": "dumb" if "dumb" in arguments else "xterm"}
    subprocess.run(command, stdout=subprocess.PIPE, stderr=terminal, env=env, check=True)
    os.set_blocking(reader, False)
    text = os.read(reader, 1 << 16).decode() if "-q" not in arguments else ""
    os.close(terminal)
    os.close(reader)
    assert ("working, " in text) == shown
    if shown:
        assert text.index("working, ") < text.index("\x1b[2K") < text.index("noted")
        assert "working" not in text[text.index("noted") :]
    piped = subprocess.run(command, capture_output=True, text=True, env=env, check=True)
    assert "working" not in piped.stdout + piped.stderr


def test_errors_and_exit_status_of_the_program(tmp_path: Path):
    done = subprocess.run(
        [sys.executable, "-m", "tvmflow", "run", "none.so", "--random-seed", "0"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith("Error: Reading the module none.so failed")
    assert len(done.stderr.splitlines()) == 2


def test_native_logs_stay_out_of_the_terminal(tmp_path: Path):
    script = """
import os, sys, warnings
from tvmflow.cli import output, session

@session.command
def noisy():
    os.write(2, b"from C++")
    warnings.warn("from Python")
    output.note("from us")
    if "fail" in sys.argv:
        raise RuntimeError("broken")

output.state.verbose = "-v" in sys.argv
output.state.debug = "--debug" in sys.argv
try:
    noisy()
except BaseException as error:
    print(type(error).__name__)
"""

    def stderr(*arguments: str) -> str:
        command = [sys.executable, "-c", HEED_CTRL_C + script, *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True).stderr

    assert stderr() == "from us\n"
    assert "from C++" in stderr("-v")
    assert "from Python" in stderr("-v")
    assert "from C++" not in stderr("fail")
    assert "from C++" in stderr("fail", "--debug")
