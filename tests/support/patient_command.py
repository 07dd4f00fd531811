"""Run the command ``tvmflow`` with enough patience for servers on busy machines."""

from __future__ import annotations

from farms import PATIENCE_S

from tvmflow.cli import main
from tvmflow.farm import connect, tracker
from tvmflow.tuning import tuner

connect.OFFER_S = tracker._ANSWER_S = PATIENCE_S
# Disturbed measurements are repeated at once.
tuner.PAUSE_S = 0.0

if __name__ == "__main__":
    main()
