"""``python -m tvmflow.cli`` is the program ``tvmflow``."""

from __future__ import annotations

from . import main

main()
