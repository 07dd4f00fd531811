"""What surrounds a command: its output, its errors, its exit status, its end.

Results go to standard output, everything else to standard error.  C++ code (TVM,
OpenCL drivers) writes its log to file descriptor 2 directly; unless the user asks
for it, that goes to a file without a name, which is shown only with ``--debug``.
"""

from __future__ import annotations

import functools
import logging
import math
import os
import re
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, NoReturn, ParamSpec, TypeVar

import typer

from ..devices.choices import STANDALONE
from ..errors import TvmflowError

if TYPE_CHECKING:
    from rich.console import Console

P = ParamSpec("P")
R = TypeVar("R")

_INTERRUPTED = 130  # 128 + SIGINT, as shells report it
_BROKEN_PIPE = 141  # 128 + SIGPIPE
#: Destructors have ended by then.
_AGAIN_S = 0.05


@dataclass
class State:
    """The options of every command, and the signal that arrived."""

    verbose: bool = False
    quiet: bool = False
    debug: bool = False
    json: bool = False
    signal: int | None = None

    def reset(self) -> None:
        """Forget what an earlier command of this process was told."""
        self.__init__()  # type: ignore[misc]


state = State()


def err_console() -> Console:
    """Return the console for progress and errors."""
    from rich.console import Console

    return Console(stderr=True, highlight=False, soft_wrap=True)


def out_console() -> Console:
    """Return the console for results."""
    from rich.console import Console

    return Console(highlight=False)


def print_json(value: Any) -> None:
    """Print a result for machines: strict JSON, on standard output."""
    import json

    typer.echo(json.dumps(_strict(value), indent=2, ensure_ascii=False, allow_nan=False))


def note(*parts: str | tuple[str, str]) -> None:
    """Print text for people, unless they want none: parts with or without a style."""
    from rich.text import Text

    if not state.quiet:
        # Not markup: names of files may contain brackets.
        err_console().print(Text.assemble(*parts))


def note_file(path: Path, about: str = "") -> None:
    """Print that a file was written."""
    note(("Wrote", "green"), " ", (str(path), "bold"), about)


def command(function: Callable[P, R]) -> Callable[P, R | None]:
    """Give a command the error handling of all commands."""

    @functools.wraps(function)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> R | None:
        try:
            with _native_log() as log:
                try:
                    result = function(*args, **kwargs)
                    sys.stdout.flush()
                    return result
                except BaseException as error:  # noqa: BLE001 (every end is reported)
                    _end(error, log)
        finally:
            state.reset()

    return wrapper


def install_signal_handlers() -> None:
    """Let Ctrl-C, SIGTERM and SIGHUP unwind the stack, so that nothing is left behind."""
    import atexit
    import threading

    stopped_by: list[int] = []

    def interrupt(number: int, _frame: Any) -> NoReturn:
        # Remembered as well: an exception that passes through C++ may change its type.
        state.signal = number
        stopped_by.append(number)
        raise KeyboardInterrupt

    def heed(lost: Any, told: Callable[[Any], object] = sys.unraisablehook) -> None:
        """Send a signal again that came during a destructor, from which nothing is raised."""
        if stopped_by and issubclass(lost.exc_type, KeyboardInterrupt):
            number = stopped_by[-1]
            threading.Timer(_AGAIN_S, os.kill, (os.getpid(), number)).start()
        else:
            told(lost)

    def leave() -> None:
        # An interruption of `exec` of text, as dataclasses do, would make Python end itself with
        # SIGINT after all, instead of with a status.
        if stopped_by:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(128 + stopped_by[-1])

    sys.unraisablehook = heed
    # The first that is registered is the last that is called.
    atexit.register(leave)

    for name in ("SIGINT", "SIGTERM", "SIGHUP"):
        number = getattr(signal, name, None)
        # A program started with nohup ignores SIGHUP, and should go on doing so.
        if number is not None and signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, interrupt)


def _end(error: BaseException, log: IO[bytes] | None) -> NoReturn:
    """Report what ended a command early, and raise its exit status."""
    if isinstance(error, (typer.Exit, SystemExit)) or _is_usage_error(error):
        raise error
    if isinstance(error, KeyboardInterrupt) or state.signal is not None:
        number = state.signal or signal.SIGINT
        err_console().print(f"[yellow]Stopped by {signal.Signals(number).name}.[/yellow]")
        raise typer.Exit(128 + number) from None
    if isinstance(error, BrokenPipeError):
        # The reader has gone (`tvmflow inspect … | head`): nobody to report to.
        with suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise typer.Exit(_BROKEN_PIPE) from None
    if state.debug:
        import traceback

        traceback.print_exception(error)
        if log is not None:
            log.seek(0)
            sys.stderr.write(log.read().decode(errors="replace"))
    if isinstance(error, TvmflowError):
        _print_error(error)
        raise typer.Exit(error.exit_status) from None
    _print_unexpected(error)
    raise typer.Exit(1) from None


#: Options in messages: `storage=buffer`, or a name alone.
_OPTION = re.compile(r"`(\w+)(?:=([^`]+))?`")
#: Those that commands have beside `CompileOptions`, and are not spelled like it there.
_OPTIONS = frozenset({
    "advertise", "bind", "devices", "dump_ir", "fresh_ceilings", "kernels", "ops", "port", "search",
    "secret_file", "size", "steps", "threads",
})  # fmt: skip


def with_flags(text: str) -> str:
    """A message of the library with its options as they are typed: ``--storage buffer``."""
    from .compile_flags import FLAGS

    def flag(match: re.Match[str]) -> str:
        name, value = match.groups()
        if (name, value) == ("format", STANDALONE):
            return "--standalone"
        if name in FLAGS:
            typed = FLAGS[name].name
        elif name in _OPTIONS:
            typed = f"--{name.replace('_', '-')}"
        else:
            return match[0]
        return f"{typed} {value}" if value else typed

    return _OPTION.sub(flag, text)


def _print_error(error: TvmflowError) -> None:
    from rich.text import Text

    console = err_console()
    console.print(Text.assemble(("Error: ", "bold red"), with_flags(error.message)))
    if error.remedy:
        console.print(Text.assemble(("Remedy: ", "bold green"), with_flags(error.remedy)))
    if error.details:
        console.print(Text(with_flags(error.details), style="dim"))


def _print_unexpected(error: BaseException) -> None:
    from rich.text import Text

    lines = str(error).strip().splitlines() or [""]
    what = f"{type(error).__name__}: {lines[0][:300]}".rstrip(": ")
    console = err_console()
    console.print(Text.assemble(("Internal error: ", "bold red"), what))
    if isinstance(error, MemoryError):
        console.print("[bold green]Remedy: [/bold green]The memory of this machine is too small.")
    elif not state.debug:
        console.print(
            "[bold green]Remedy: [/bold green]This should not happen. Run the command again with "
            "--debug and report what it prints."
        )


def _is_usage_error(error: BaseException) -> bool:
    """Whether the command line itself is wrong; typer prints those with the usage."""
    return any(cls.__name__ in ("ClickException", "Abort") for cls in type(error).__mro__)


@contextmanager
def _log_to(handler: logging.Handler, level: int) -> Iterator[None]:
    logger = logging.getLogger("tvmflow")
    logger.addHandler(handler)
    before = logger.level
    logger.setLevel(level)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(before)


class _Warnings(logging.Handler):
    """Prints warnings as errors are printed, with their own word in front."""

    def emit(self, record: logging.LogRecord) -> None:
        from rich.text import Text

        err_console().print(
            Text.assemble(("Warning: ", "bold yellow"), with_flags(record.getMessage()))
        )


@contextmanager
def _native_log() -> Iterator[IO[bytes] | None]:
    """Keep what C++ code and Python's warnings write away from the terminal."""
    if state.verbose:
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(logging.Formatter("%(message)s"))
        with _log_to(handler, logging.DEBUG if state.debug else logging.INFO):
            yield None
        return
    import tempfile
    import warnings

    logging.getLogger().addHandler(logging.NullHandler())
    warnings.simplefilter("ignore")
    terminal: int | None = None
    with suppress(OSError, ValueError, AttributeError):
        # Under a test runner, standard error is no file; there is nothing to redirect then.
        if sys.stderr.fileno() == 2:
            terminal = os.dup(2)
    if terminal is None:
        with _log_to(_Warnings(), logging.WARNING):
            yield None
        return
    stderr = sys.stderr
    with (
        tempfile.TemporaryFile() as log,
        os.fdopen(terminal, "w", buffering=1) as visible,
        _log_to(_Warnings(), logging.WARNING),
    ):
        stderr.flush()
        os.dup2(log.fileno(), 2)
        sys.stderr = visible
        try:
            yield log
        finally:
            visible.flush()
            sys.stderr = stderr
            os.dup2(visible.fileno(), 2)


def _strict(value: Any) -> Any:
    """Replace what JSON does not have: infinity and NaN become strings."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, dict):
        return {str(key): _strict(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_strict(item) for item in value]
    return value
