"""The command line: parses, calls the library, prints.

Importing it imports neither TVM nor ONNX nor NumPy, so that ``tvmflow --help``
and shell completion answer at once; each command imports what it needs.
"""

from __future__ import annotations


def main() -> None:
    """Run the command line, the entry point of the program ``tvmflow``."""
    try:
        from .app import app
        from .session import install_signal_handlers

        install_signal_handlers()
        app(prog_name="tvmflow")
    except KeyboardInterrupt:
        # Before a command began, which ends itself with a message: nothing is there to undo.
        raise SystemExit(130) from None
