"""A TVM RPC server, kept running.

TVM's server runs each session in a process of its own, but ends itself when one crashes:
one bad kernel would take the device out of the farm.  Here it is started again, on the
same port.  Beside it, facts about the machine are published through the tracker.
"""

from __future__ import annotations

import functools
import json
import os
import signal
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from ..errors import FarmError
from ..runtime.devices import why_no_opencl
from . import modules
from .about import ABOUT_FUNCTION, About, is_throttled, temperature_c
from .precompile import PRECOMPILE_FUNCTION, precompile_for_client
from .tracker import Address, Tracker, check_key, protocol

#: Ports that are tried when none is given.
PORTS = range(9090, 9190)


@dataclass(frozen=True)
class ServeOptions:
    """What a server serves, and where.

    Parameters
    ----------
    tracker
        The tracker that hands it out.
    key
        What clients ask for.
    host
        The address to listen at.
    port
        The port to listen at; ``None``: the first free one of :data:`PORTS`.
    advertise
        The host that clients connect to, where it is not the one the tracker sees.
    opencl_device
        The device that becomes ``opencl:0``: ``PLATFORM:DEVICE``, indices or parts of names.
    """

    tracker: Address
    key: str
    host: str = "0.0.0.0"
    port: int | None = None
    advertise: str | None = None
    opencl_device: str | None = None


class FarmServer:
    """A server in a process of its own, and its entry in the tracker's summary.

    Raises
    ------
    FarmError
        If the tracker cannot be reached, or no port is free.
    """

    def __init__(self, options: ServeOptions):
        check_key(options.key)
        self.options = options
        self.crashes = 0
        # Before TVM is imported, here and in the server's process: the plug-in reads them once.
        if options.opencl_device is not None:
            os.environ["TVMFLOW_OPENCL_DEVICE"] = options.opencl_device
        # Candidates run once and never again: the cache of built programs is for others.
        os.environ.setdefault("TVMFLOW_CACHE", "0")
        self._tracker: Tracker | None = Tracker(options.tracker)
        self.about = About.here()
        if options.opencl_device and all(d.kind != "opencl" for d in self.about.devices):
            reason = (why_no_opencl() or "there is none").partition("\n")[0]
            raise FarmError(
                f"The OpenCL device {options.opencl_device!r} cannot be served: {reason}",
                remedy="Choose one that `tvmflow devices` lists.",
            )
        ports = PORTS if options.port is None else range(options.port, options.port + 1)
        self._server = self._start(ports)
        self.port: int = self._server.port
        self._publish()

    def check(self) -> list[str]:
        """Start the server again if it ended, publish the state; say what happened."""
        happened = []
        if not self._is_listening():
            self._server.terminate()
            self.crashes += 1
            self._server = self._start(range(self.port, self.port + 1))
            happened.append("A session crashed the server; it was started again.")
        try:
            if self._tracker is None:
                self._tracker = Tracker(self.options.tracker)
                happened.append("The tracker is back.")
            self._publish()
        except FarmError as error:
            if self._tracker is not None:
                self._tracker.close()
                self._tracker = None
                # TVM's server connects again by itself.
                happened.append(f"{error.message} Trying again.")
        return happened

    def close(self) -> None:
        """End the server and its sessions."""
        self._server.terminate()
        if self._tracker is not None:
            self._tracker.close()

    def _start(self, ports: range) -> Any:
        import psutil
        from tvm import rpc

        options = self.options
        try:
            server = rpc.Server(
                options.host,
                ports.start,
                ports.stop,
                tracker_addr=(options.tracker.host, options.tracker.port),
                key=options.key,
                custom_addr=options.advertise,
                server_init_callback=functools.partial(prepare, os.getpid()),
            )
        except (ValueError, OSError) as error:
            where = f"{options.host}, ports {ports.start} to {ports.stop - 1}"
            raise cannot_listen(where, error) from error
        server.proc.send(os.getpid)
        self._process = psutil.Process(server.proc.recv())
        return server

    def _is_listening(self) -> bool:
        try:
            self._server.proc.send(is_listening)
            return bool(self._server.proc.recv())
        except ChildProcessError:
            return False

    def _publish(self) -> None:
        assert self._tracker is not None
        facts = self.about.as_dict() | {
            "busy_s": self._busy_s(),
            "crashes": self.crashes,
            "temperature_c": temperature_c(),
            "throttled": is_throttled(),
        }
        self._tracker.publish(self.options.key, self.options.advertise, self.port, facts)

    def _busy_s(self) -> float | None:
        """How long the current session lasts already."""
        import psutil

        with suppress(psutil.Error):
            for session in self._process.children():
                if session.status() != psutil.STATUS_ZOMBIE:
                    return round(time.time() - session.create_time(), 1)
        return None


@contextmanager
def running_tracker(host: str, port: int) -> Iterator[None]:
    """Run a tracker in a process of its own.

    Raises
    ------
    FarmError
        If the port is taken, or the address is not this machine's.
    """
    family = protocol().get_addr_family
    from tvm.rpc.tracker import Tracker as RpcTracker

    # TVM's tracker leaves a half-made object behind where it cannot listen.
    try:
        socket.create_server((host, port), family=family((host, port))).close()
    except OSError as error:
        raise cannot_listen(Address(host, port), error) from error
    tracker = RpcTracker(host, port, port + 1)
    try:
        yield
    finally:
        # `terminate` asks it to end through 127.0.0.1, where it may not listen.
        tracker.proc.kill()


def cannot_listen(where: object, error: Exception) -> FarmError:
    """Return the error for an address or a port that cannot be had."""
    # TVM's worker process hands a whole traceback over.
    reason = str(error).strip().splitlines()[-1]
    return FarmError(
        f"Listening at {where} failed: {reason}.",
        remedy="Give the address of this machine with --host and a free port with --port.",
    )


# -- in the server's process -----------------------------------------------------------------


def prepare(parent: int) -> None:
    """Set the server's process up; sessions are forked from it."""
    import tvm_ffi

    # Ctrl-C reaches all processes of a terminal: the one that started this one ends it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
    # In a session, which is a process of its own: no driver is opened before TVM forks.
    tvm_ffi.register_global_func(ABOUT_FUNCTION, lambda: json.dumps(About.here().as_dict()))
    tvm_ffi.register_global_func(PRECOMPILE_FUNCTION, precompile_for_client)
    modules.register()


def is_listening() -> bool:
    """Whether the server waits for sessions or has one."""
    from tvm.rpc.server import PopenRPCServerState

    state = PopenRPCServerState.current
    return state is not None and state.thread.is_alive()


def _end_with(parent: int) -> None:
    """End this process when the one that started it has gone without a word."""
    while os.getppid() == parent:
        time.sleep(1)
    os._exit(1)
