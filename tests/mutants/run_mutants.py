"""Apply deliberate bugs to copies of the package, and expect the nearest tests to fail.

    python tests/mutants/run_mutants.py [-k NAME …] [--limit SECONDS] [--jobs N]

A mutant is caught if a test of its files fails within the limit, while the same files pass with
the unchanged package.  A test that cannot be imported, or does not end in time, catches nothing.
Prints a table, writes ``benchmarks/results/mutants.json`` if all mutants ran, and ends with
status 1 if one survives.
"""

from __future__ import annotations

import argparse
import os
import queue
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from importlib.util import cache_from_source
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))

from catalogue import MUTANTS, Mutant  # noqa: E402
from common import report, write_json  # noqa: E402

#: Files that tests read, and those that build the plug-in.
_COPIED = (
    *("tvmflow", "schedules", "models", "tuning_logs", "native"),
    *("tests", "benchmarks", "docs", "examples", "pyproject.toml", "setup.py"),
    *("LICENSE", "NOTICE"),
)
_OBJECTS = "build/objects"
_PLUGIN = "tvmflow/runtime/libtvmflow_opencl.so"
#: Prints the origin of imported files, when run in an unrelated folder.
_WHERE = """
import sys, tvmflow.schedules.conv2d, tvmflow.codegen.loop_peeling
from tvmflow.module.link import native_folder
files = tvmflow.codegen.loop_peeling.__file__, tvmflow.schedules.conv2d.__file__
print(*files, native_folder("standalone"))
"""
#: Errors that every test would notice: a mutant that causes them says nothing about tests.
_BROKEN = re.compile(r"(ImportError|ModuleNotFoundError|SyntaxError|NameError)\b")
#: Time limit of tests of the unchanged package, in limits of a mutant: all of them run to the end.
_WHOLE = 10


@dataclass(frozen=True)
class Run:
    """Result of a run of tests."""

    #: pytest's exit status; ``None`` if the run was ended.
    status: int | None
    #: The first test that failed, and its message.
    failed: str
    message: str
    seconds: float
    #: Processor time of all processes of the run.
    cpu_s: float
    output: str


class Copy:
    """A copy of the tree whose package is imported instead of the installed one."""

    def __init__(self, folder: Path):
        self.root = folder / "tree"
        self.root.mkdir(parents=True)
        for name in _COPIED:
            source = ROOT / name
            if source.is_dir():
                # The package links to folders next to it, which are copied as well.
                shutil.copytree(source, self.root / name, symlinks=True)
            else:
                shutil.copy2(source, self.root / name)
        self._folder = folder
        # Compiled kernels depend on sources only: PoCL need not compile them for each run.
        pocl = folder / "pocl"
        pocl.mkdir()
        self._environment = {
            **os.environ,
            "PYTHONPATH": str(self.root),
            "POCL_CACHE_DIR": str(pocl),
            "OMP_NUM_THREADS": "1",
        }
        for variable in ("TVMFLOW_CACHE_DIR", "PYTEST_ADDOPTS"):
            self._environment.pop(variable, None)
        self._check()

    def _check(self) -> None:
        found = subprocess.run(
            [sys.executable, "-c", _WHERE],
            cwd=self._folder,
            env=self._environment,
            capture_output=True,
            text=True,
            check=True,
        ).stdout.split()
        elsewhere = [path for path in found if not Path(path).is_relative_to(self.root)]
        if elsewhere:
            raise RuntimeError(f"the copy is not what is imported: {', '.join(elsewhere)}")

    @contextmanager
    def edited(self, mutant: Mutant) -> Iterator[None]:
        """Apply an edit while the context lasts."""
        path = self.root / mutant.file
        original = path.read_text(encoding="utf-8")
        compiled = Path(cache_from_source(str(path))) if path.suffix == ".py" else None
        plugin = self.root / _PLUGIN
        of_plugin = path.suffix == ".cc" or path.match("native/core/*.c")
        built = plugin.read_bytes() if of_plugin else None
        try:
            path.write_text(mutant.applied(original), encoding="utf-8")
            if compiled is not None:
                # Python compares only the time and the length of the source, which may be the same.
                compiled.unlink(missing_ok=True)
            if built is not None:
                self._build_plugin()
            yield
        finally:
            path.write_text(original, encoding="utf-8")
            if compiled is not None:
                compiled.unlink(missing_ok=True)
            if built is not None:
                plugin.unlink()
                plugin.write_bytes(built)

    def _build_plugin(self) -> None:
        """Compile the C++ files that changed, and link the plug-in."""
        objects = self.root / _OBJECTS
        if not objects.exists() and (ROOT / _OBJECTS).exists():
            shutil.copytree(ROOT / _OBJECTS, objects)
        subprocess.run(
            [sys.executable, "setup.py", "--quiet", "build_ext", "--inplace"],
            cwd=self.root,
            env=self._environment,
            check=True,
        )

    def test(self, files: Sequence[str], limit_s: float, workers: int = 0) -> Run:
        """Run tests until one fails, in order, in this many worker processes if any."""
        results = self._folder / "results.xml"
        results.unlink(missing_ok=True)
        command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider"]
        command += ["-o", "junit_family=xunit1", f"--junitxml={results}", "--tb=short", *files]
        if any("::" in file for file in files):
            # A named test runs in any tier.
            command += ["--tier", "every"]
        if workers:
            command += ["-n", str(workers), "--dist", "load", "--maxschedchunk", "1"]
        started = time.monotonic()
        with tempfile.TemporaryFile() as output:
            process = subprocess.Popen(
                command,
                cwd=self.root,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            status, cpu_s = _wait(process, limit_s)
            seconds = time.monotonic() - started
            output.seek(0)
            text = output.read().decode(errors="replace")
        failed, message = _first_failure(results)
        return Run(status, failed, message, round(seconds, 1), round(cpu_s, 1), text)


def _wait(process: subprocess.Popen[bytes], limit_s: float) -> tuple[int | None, float]:
    """Wait for a process; kill it and its children after the limit."""
    deadline = time.monotonic() + limit_s
    in_time = True
    while True:
        pid, status, usage = os.wait4(process.pid, os.WNOHANG)
        if pid:
            break
        if in_time and time.monotonic() > deadline:
            in_time = False
            os.killpg(process.pid, signal.SIGKILL)
        time.sleep(0.05)
    process.returncode = os.waitstatus_to_exitcode(status)
    return process.returncode if in_time else None, usage.ru_utime + usage.ru_stime


def _first_failure(results: Path) -> tuple[str, str]:
    """Return the first test that failed, and its message; errors in a test's setup do not count."""
    if not results.exists():
        return "", ""
    for case in ElementTree.parse(results).iter("testcase"):
        failure = case.find("failure")
        if failure is not None:
            file = Path(case.get("file", "")).name
            return f"{file}::{case.get('name')}", failure.get("message", "")
    return "", ""


@dataclass(frozen=True)
class Verdict:
    """Whether a mutant was caught, and why."""

    mutant: Mutant
    caught: bool
    #: Test that failed, or the reason why none did.
    by: str
    seconds: float
    cpu_s: float
    #: Seconds of its tests without the mutant; ``None`` if they were not run.
    unchanged_s: float | None

    def described(self) -> dict[str, Any]:
        """Return the verdict as JSON."""
        return {
            "name": self.mutant.name,
            "breaks": self.mutant.breaks,
            "caught": self.caught,
            "by": self.by,
            "seconds": self.seconds,
            "cpu_seconds": self.cpu_s,
            "unchanged_seconds": self.unchanged_s,
        }


def judge(mutant: Mutant, run: Run, limit_s: float, unchanged_s: float | None) -> Verdict:
    """Return whether a run of its tests caught a mutant."""
    by, caught = run.failed, False
    if run.status is None:
        by = f"not ended after {limit_s:g} s"
    elif run.status == 0:
        by = "all tests passed"
    elif run.status < 0:
        by, caught = f"pytest was ended by signal {-run.status}", True
    elif run.status != 1 or not run.failed:
        by = f"no test failed, but pytest ended with {run.status}"
    elif _BROKEN.match(run.message):
        by = f"it is no slip: {run.message.splitlines()[0]}"
    else:
        caught = True
    return Verdict(mutant, caught, by, run.seconds, run.cpu_s, unchanged_s)


def arguments(parser: argparse.ArgumentParser) -> argparse.Namespace:
    """Parse the command line, with the options of every run."""
    parser.add_argument("--limit", type=float, default=60.0, help="seconds for each (default: 60)")
    parser.add_argument("--jobs", type=int, default=1, help="mutants at a time (default: 1)")
    parser.add_argument("--workers", type=int, default=0, help="test processes (default: one)")
    parser.add_argument("-v", action="store_true", help="show what pytest printed of survivors")
    return parser.parse_args()


def write_table(verdicts: Sequence[Verdict]) -> int:
    """Print the verdicts; return the number of caught mutants."""
    rows = [
        (v.mutant.name, v.by if v.caught else f"SURVIVES: {v.by}", v.seconds, v.cpu_s)
        for v in verdicts
    ]
    report("mutants", ("mutant", "caught by", "s", "CPU s"), rows)
    caught = sum(v.caught for v in verdicts)
    print(f"{caught} of {len(verdicts)} caught")
    return caught


def main() -> int:
    """Run the requested mutants."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument(
        "-k", nargs="+", default=[""], metavar="NAME", help="only mutants with this in their name"
    )
    options = arguments(parser)
    chosen = [m for m in MUTANTS if any(part in m.name for part in options.k)]
    if not chosen:
        parser.error(f"no mutant has {' or '.join(options.k)} in its name")
    verdicts = run_all(chosen, options)
    caught = write_table(verdicts)
    if len(chosen) == len(MUTANTS):
        facts = {"limit_s": options.limit, "jobs": options.jobs, "caught": caught}
        write_json("mutants", {**facts, "mutants": [v.described() for v in verdicts]})
    return 0 if caught == len(verdicts) else 1


def run_all(
    chosen: Sequence[Mutant], options: argparse.Namespace, check_unchanged: bool = True
) -> list[Verdict]:
    """Run mutants; with ``check_unchanged``, run their tests on the unchanged package first."""
    with tempfile.TemporaryDirectory(prefix="tvmflow-mutants-") as folder, ExitStack() as stack:
        copies: queue.Queue[Copy] = queue.Queue()
        for number in range(options.jobs):
            copies.put(Copy(Path(folder, str(number))))

        @contextmanager
        def a_copy() -> Iterator[Copy]:
            copy = copies.get()
            try:
                yield copy
            finally:
                copies.put(copy)

        def unchanged(files: tuple[str, ...]) -> Run:
            with a_copy() as copy:
                run = copy.test(files, _WHOLE * options.limit, options.workers)
            print(f"unchanged, {' '.join(files)}: {run.status} ({run.seconds} s)", flush=True)
            return run

        def changed(mutant: Mutant) -> Verdict:
            without = good.get(mutant.tests)
            if without is not None and without.status != 0:
                print(f"{' '.join(mutant.tests)}, package unchanged:\n{without.output[-3000:]}")
                by = f"its tests do not pass without it: {without.failed or without.status}"
                return Verdict(mutant, False, by, 0.0, 0.0, without.seconds)
            with a_copy() as copy, copy.edited(mutant):
                run = copy.test(mutant.tests, options.limit, options.workers)
            verdict = judge(mutant, run, options.limit, without.seconds if without else None)
            print(f"{mutant.name}: {verdict.by} ({run.seconds} s)", flush=True)
            if options.v and not verdict.caught:
                print(run.output[-3000:])
            return verdict

        pool = stack.enter_context(ThreadPoolExecutor(options.jobs))
        sets = list(dict.fromkeys(m.tests for m in chosen)) if check_unchanged else []
        good = dict(zip(sets, pool.map(unchanged, sets), strict=True))
        return list(pool.map(changed, chosen))


if __name__ == "__main__":
    sys.exit(main())
