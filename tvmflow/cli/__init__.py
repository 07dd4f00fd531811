"""The command line: it parses, calls the library, and prints.

Importing this package imports neither TVM nor ONNX nor NumPy, so that ``tvmflow --help``
and shell completion answer at once; each command imports what it needs.
"""

from __future__ import annotations

import sys


def _leave_broken_pipes_of_help() -> None:
    """Exit quietly if the reader of the help is gone: typer prints it with a console of rich."""
    from rich.console import Console

    from .output import leave_broken_pipe

    def leave(self: Console) -> None:
        leave_broken_pipe()

    Console.on_broken_pipe = leave  # type: ignore[method-assign]


def main() -> None:
    """Run the command line; the entry point of the program ``tvmflow``."""
    try:
        from .app import app
        from .session import install_signal_handlers

        install_signal_handlers()
        if len(sys.argv) == 1 or {"-h", "--help"}.intersection(sys.argv):
            _leave_broken_pipes_of_help()
        app(prog_name="tvmflow")
    except KeyboardInterrupt:
        # No command has begun yet, so nothing has to be undone; commands print a message
        # themselves.
        raise SystemExit(130) from None
