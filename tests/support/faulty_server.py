"""Run ``tvmflow farm serve`` with faults, which environment variables select.

``FAULT_SLOW_S``: seconds that loading takes.  ``FAULT_CRASH``: files that crash the session.
``FAULT_LIBRARY``: a library that is loaded instead of any other.  ``FAULT_VERSION``: the
reported version.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

from tvmflow.cli import main
from tvmflow.farm import server, server_info

prepare = server.prepare


def prepare_with_faults(parent: int) -> None:
    """Set up the process that sessions are forked from, with the faults in loading."""
    from tvm.rpc import server as tvm_server

    load = tvm_server._load_module

    def load_with_faults(path: str) -> Any:
        time.sleep(float(os.environ.get("FAULT_SLOW_S", "0")))
        if Path(path).name in os.environ.get("FAULT_CRASH", "").split():
            os.abort()
        return load(os.environ.get("FAULT_LIBRARY", path))

    tvm_server._load_module = load_with_faults
    server_info.__version__ = os.environ.get("FAULT_VERSION", server_info.__version__)
    prepare(parent)


if __name__ == "__main__":
    server.prepare = prepare_with_faults
    server_info.__version__ = os.environ.get("FAULT_VERSION", server_info.__version__)
    sys.argv[1:1] = ["farm", "serve"]
    main()
