"""Run ``tvmflow farm serve --on`` where phones run this machine's programs.

Sensors are read more often than usual.
"""

from __future__ import annotations

import sys

from tvmflow.agent import adb
from tvmflow.agent.executable import agent_executable
from tvmflow.cli import main
from tvmflow.devices.host import Host
from tvmflow.farm import agents

if __name__ == "__main__":
    adb.agent_executable = lambda host: agent_executable(Host.native())
    agents.LOOK_S = 0.3
    sys.argv[1:1] = ["farm", "serve"]
    main()
