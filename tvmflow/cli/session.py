"""The frame around each command: common options, errors, exit status.

C++ code (TVM, OpenCL drivers) logs to file descriptor 2 directly.  Without ``-v`` this log goes to
an unnamed file, which is shown only with ``--debug``.
"""

from __future__ import annotations

import functools
import logging
import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import IO, NoReturn, TypeVar

import typer

from ..errors import TvmflowError
from ..runtime.notices import NOTICE
from .options import COMMON, with_common_options, with_flags
from .output import err_console, leave_broken_pipe, note, print_json_error, state, waiting

R = TypeVar("R")

#: Delay before a lost signal is sent again; destructors have ended by then.
_AGAIN_S = 0.05


def command(
    function: Callable[..., R], common: Sequence[str] = ("json", *COMMON)
) -> Callable[..., R | None]:
    """Add the options and the error handling of all commands to a command."""

    @functools.wraps(function)
    def run(**given: object) -> R | None:
        try:
            with _native_log() as log:
                try:
                    # A service runs until it is stopped, so it does not report that it is working.
                    waiting.start(beats="json" in common)
                    result = function(**given)
                    waiting.end()
                    sys.stdout.flush()
                    return result
                except BaseException as error:  # noqa: BLE001 (every end is reported)
                    waiting.end()
                    _end(error, log)
        finally:
            state.reset()

    return with_common_options(run, common)


#: A command that runs until Ctrl-C, without a result.
service = functools.partial(command, common=COMMON)


def install_signal_handlers() -> None:
    """Let Ctrl-C, SIGTERM and SIGHUP unwind the stack, so that temporary files are removed."""
    import atexit
    import threading

    stopped_by: list[int] = []
    report_unraisable = sys.unraisablehook

    def interrupt(number: int, _frame: object) -> NoReturn:
        # Also store the signal: an exception that passes through C++ may change its type.
        state.signal = number
        stopped_by.append(number)
        raise KeyboardInterrupt

    def send_again(lost: sys.UnraisableHookArgs) -> None:
        """Send a signal again that arrived in a destructor, which cannot raise exceptions."""
        if stopped_by and issubclass(lost.exc_type, KeyboardInterrupt):
            number = stopped_by[-1]
            threading.Timer(_AGAIN_S, os.kill, (os.getpid(), number)).start()
        else:
            report_unraisable(lost)

    def leave() -> None:
        # If the signal interrupted `exec` of source text, as dataclasses use it, Python would end
        # itself with SIGINT instead of a status.
        if stopped_by:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(128 + stopped_by[-1])

    sys.unraisablehook = send_again
    # Functions run in reverse order of registration, so this one runs last.
    atexit.register(leave)

    for name in ("SIGINT", "SIGTERM", "SIGHUP"):
        number = getattr(signal, name, None)
        # A program started with nohup ignores SIGHUP, and must go on ignoring it.
        if number is not None and signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, interrupt)


def _end(error: BaseException, log: IO[bytes] | None) -> NoReturn:
    """Report the error that ended a command, and raise its exit status."""
    # Typer prints errors of the command line itself, together with the usage.
    usage = any(cls.__name__ in ("ClickException", "Abort") for cls in type(error).__mro__)
    if isinstance(error, (typer.Exit, SystemExit)) or usage:
        raise error
    if isinstance(error, KeyboardInterrupt) or state.signal is not None:
        number = state.signal or signal.SIGINT
        name = signal.Signals(number).name
        print_json_error("Stopped", f"Stopped by {name}.", None, None, 128 + number)
        err_console().print(f"[yellow]Stopped by {name}.[/yellow]")
        raise typer.Exit(128 + number) from None
    if isinstance(error, BrokenPipeError):
        leave_broken_pipe()
    if state.debug:
        import traceback

        traceback.print_exception(error)
        if log is not None:
            log.seek(0)
            sys.stderr.write(log.read().decode(errors="replace"))
    kind, label, status = "InternalError", "Internal error", 1
    remedy = details = None
    if isinstance(error, TvmflowError):
        kind, label, status = type(error).__name__, "Error", error.exit_status
        message = with_flags(error.message)
        remedy, details = (text and with_flags(text) for text in (error.remedy, error.details))
    else:
        lines = str(error).strip().splitlines() or [""]
        message = f"{type(error).__name__}: {lines[0][:300]}".rstrip(": ")
        if isinstance(error, MemoryError):
            remedy = "The memory of this machine is too small."
        elif not state.debug:
            again = "Run the command again with --debug and report what it prints."
            remedy = f"This should not happen. {again}"
    print_json_error(kind, message, remedy, details, status)
    _print_labelled(label, "red", message)
    if remedy:
        _print_labelled("Remedy", "green", remedy)
    if details:
        from rich.text import Text

        err_console().print(Text(details, style="dim"))
    raise typer.Exit(status) from None


def _print_labelled(label: str, colour: str, text: str) -> None:
    from rich.text import Text

    err_console().print(Text.assemble((f"{label}: ", f"bold {colour}"), text))


class _Warnings(logging.Handler):
    """A handler that prints warnings in the style of errors, and notices as notes."""

    def emit(self, record: logging.LogRecord) -> None:
        text = with_flags(record.getMessage())
        if record.levelno >= logging.WARNING:
            _print_labelled("Warning", "yellow", text)
        else:
            note(text)


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


@contextmanager
def _native_log() -> Iterator[IO[bytes] | None]:
    """Keep the logs of C++ code and Python's warnings off the terminal."""
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
        # A test runner may replace standard error; then there is nothing to redirect.
        if sys.stderr.fileno() == 2:
            terminal = os.dup(2)
    with _log_to(_Warnings(), NOTICE):
        if terminal is None:
            yield None
            return
        stderr = sys.stderr
        with tempfile.TemporaryFile() as log, os.fdopen(terminal, "w", buffering=1) as visible:
            stderr.flush()
            os.dup2(log.fileno(), 2)
            sys.stderr = visible
            try:
                yield log
            finally:
                visible.flush()
                sys.stderr = stderr
                os.dup2(visible.fileno(), 2)
