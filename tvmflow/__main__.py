"""``python -m tvmflow`` is the program ``tvmflow``."""

from __future__ import annotations

from .cli import main

main()
