"""Precompilation of a library's programs on every free server of a key."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory

from ..devices.host import Host
from ..errors import FarmError, TvmflowError
from ..module import elf
from ..module.standalone.precompile import (
    START_LIMIT_S,
    Precompiled,
    Source,
    precompile,
    start_here,
)
from ..module.standalone.programs import SOURCE, read, sidecar_path, update
from ..runtime import process
from ..runtime.json_types import JsonObject
from ..runtime.process import Worker, WorkerLostError
from ..runtime.secret import Address
from ..runtime.tracker import Offer, Tracker, check_key
from .connect import borrow, connect, last_line
from .server_info import check_served

#: Function of a tvmflow server: a library's name, a device's index → JSON.
PRECOMPILE_FUNCTION = "tvmflow.farm.precompile"
#: Time to open the session and send the library on a slow network.
_SEND_S = 600.0
#: Time limit of a session: two starts, each with a process.
_SESSION_S = 2 * (START_LIMIT_S + process.START_LIMIT_S) + _SEND_S


def precompile_on_farm(
    source: Source, tracker: Address, key: str, device_index: int
) -> Iterator[tuple[str, Precompiled | str]]:
    """Precompile on each free server in turn.

    Yields each server's address, and its binaries or the reason why there are none.

    Raises `FarmError` if the tracker cannot be reached, nobody serves the key, only servers of
    other versions do, or no process can be started here.
    """
    with Tracker(tracker) as connection:
        waiting = {server.address for server in check_served(connection, check_key(key))}
    done = set()
    while waiting:
        # A server that hangs blocks the process that talks to it, which can be ended.
        with closing(Worker()) as worker:
            try:
                # A lent server waits for seconds only, and the process takes some to start.
                worker.start()
            except WorkerLostError as error:
                raise FarmError(
                    f"Precompiling {source.library} on the farm failed: no process could be "
                    f"started here that talks to its servers: {error}.",
                    remedy="Free memory on this machine, and try again.",
                ) from error
            offer = borrow(tracker, key)
            # The tracker lends the server that waited longest: a repetition means all were used.
            if offer is None or offer.address in done:
                break
            done.add(offer.address)
            waiting.discard(offer.address)
            yield str(offer.address), _ask(worker, offer, source, device_index)
    for address in sorted(waiting):
        yield str(address), "It was busy."


def _ask(worker: Worker, offer: Offer, source: Source, device_index: int) -> Precompiled | str:
    try:
        answer = worker.call(
            *(talk, offer, source.library, source.weights_file, device_index),
            timeout_s=_SESSION_S + _SEND_S,
        )
    except (WorkerLostError, RuntimeError) as error:
        return f"The session failed: {last_line(error)}."
    if isinstance(answer, str):
        return answer
    facts, content = answer
    with TemporaryDirectory() as folder:
        path = Path(folder, "programs")
        path.write_bytes(content)
        try:
            programs = tuple(read(path))
            # Programs of other sources must not be stored for this library.
            if {p.description.get(SOURCE) for p in programs} == {source.plan.source_digest}:
                return Precompiled(**facts, programs=programs)
        except (TvmflowError, TypeError):
            pass
    return "What it sent was not understood."


def talk(
    offer: Offer, library: Path, weights: Path | None, device_index: int
) -> tuple[JsonObject, bytes] | str:
    """Precompile on a server; return facts and binaries, or an error.  Runs in a worker process."""
    try:
        remote, about = connect(offer, _SESSION_S)
    except FarmError as error:
        return str(error)
    precompile_there = remote.get_function(PRECOMPILE_FUNCTION)
    there = Host.parse(about.host).architecture
    architecture = elf.read_library(library).architecture
    if there != architecture:
        return (
            f"It is {there}, but the library is for {architecture}: compile it with "
            f"`host={about.host}`."
        )
    for path in (library, weights):
        if path is not None:
            remote.upload(str(path))
    answer: JsonObject = json.loads(precompile_there(library.name, device_index))
    if "error" in answer:
        return str(answer["error"])
    return answer, bytes(remote.download(sidecar_path(library).name))


def precompile_for_client(name: str, device_index: int) -> str:
    """Precompile an uploaded library into its sidecar; runs in a session on the server."""
    import tvm_ffi

    library = Path(tvm_ffi.get_global_func("tvm.rpc.server.workpath")(name))
    try:
        found = precompile(Source.open(library), start_here(device_index))
        update(sidecar_path(library), found.programs)
    except TvmflowError as error:
        return json.dumps({"error": str(error)})
    return json.dumps({name: value for name, value in vars(found).items() if name != "programs"})
