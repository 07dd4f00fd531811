"""``python -m tvmflow.cli`` is the program ``tvmflow``."""

from . import main

main()
