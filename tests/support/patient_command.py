"""Run the command ``tvmflow`` with enough patience for servers on busy machines."""

from __future__ import annotations

import os
import sys

from tvmflow.cli import main
from tvmflow.farm import connect
from tvmflow.runtime import tracker
from tvmflow.tuning import tuner

sys.path[0] = os.path.dirname(sys.path[0])
from support.farms import PATIENCE_S  # noqa: E402

connect.OFFER_S = tracker._ANSWER_S = PATIENCE_S
# Disturbed measurements are repeated at once.
tuner.PAUSE_S = 0.0

if __name__ == "__main__":
    main()
