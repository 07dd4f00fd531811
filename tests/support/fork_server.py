"""Fork a process for each requested script: the server of `forks.ForkServer`.

Importing TVM takes a second, here once for all processes.  Each process loads the plug-in
itself, because the plug-in reads the environment while it is loaded.
"""

from __future__ import annotations

import json
import os
import runpy
import select
import socket
import sys
from typing import Any

from tvmflow.runtime import plugin

autoload, plugin.autoload = plugin.autoload, lambda: None
import tvm  # noqa: E402, F401

plugin.autoload = autoload


def run(request: dict[str, Any]) -> None:
    """Run a script in this process, until the interpreter ends."""
    for name, number in (("stdout", 1), ("stderr", 2)):
        os.dup2(os.open(request[name], os.O_WRONLY), number)
    os.environ.clear()
    os.environ.update(request["env"])
    if os.environ.get("TVM_DEVICE_BACKEND_AUTOLOAD") != "0":
        autoload()
    script, *_ = sys.argv = request["command"]
    sys.path[0] = os.path.dirname(script)
    runpy.run_path(script, run_name="__main__")


def serve(connection: socket.socket) -> None:
    """Start the requested script; send its process id, and its status when it ended."""
    with connection, connection.makefile("rw") as stream:
        request = json.loads(stream.readline())
        child = os.fork()
        if child == 0:
            connection.close()
            run(request)
            return
        print(child, file=stream, flush=True)
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), file=stream, flush=True)
    os._exit(0)


def main(path: str) -> None:
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(path)
    listening.listen()
    print("ready", flush=True)
    waiting: set[int] = set()
    while True:
        ready, _, _ = select.select([listening, sys.stdin], [], [])
        if sys.stdin in ready:
            return
        connection, _ = listening.accept()
        waiting.add(os.fork())
        if 0 in waiting:
            listening.close()
            serve(connection)
            return
        connection.close()
        waiting = {pid for pid in waiting if os.waitpid(pid, os.WNOHANG)[0] == 0}


if __name__ == "__main__":
    main(sys.argv[1])
