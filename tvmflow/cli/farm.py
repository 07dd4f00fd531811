"""``tvmflow farm``: run a tracker and servers, and show their state."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from .devices import note_missing_opencl
from .output import err_console, note, print_facts, print_json, print_table, state
from .session import command, service

if TYPE_CHECKING:
    from ..farm.server import Event
    from ..runtime.tracker import Server

EXAMPLES = """
[bold]Examples[/bold]
  (umask 077; openssl rand -hex 32 > farm.secret)
      a secret, to be copied to every machine of the farm
  tvmflow farm tracker --bind 192.168.1.10 --secret-file farm.secret
      on one machine: it knows the servers and their keys
  tvmflow farm serve --tracker 192.168.1.10:9190 --key rk3588
      --bind 192.168.1.21 --secret-file farm.secret
      on each machine with a device
  tvmflow farm status --tracker 192.168.1.10:9190 --secret-file farm.secret
      the devices, and which of them are free
  tvmflow farm tracker
      for this machine only, or for others through a tunnel

[bold]Safety[/bold]
  A server executes what it is sent, with all rights of its user. Clients must know the
  secret; the connection is not encrypted. docs/farm.md shows tunnels and more.
"""

app = typer.Typer(
    name="farm",
    help="Lend devices to tuning runs: TVM's RPC tracker and servers.",
    epilog=EXAMPLES,
    no_args_is_help=True,
    rich_markup_mode="rich",
)

TrackerAddress = Annotated[str, "HOST:PORT", "The tracker's address."]
ServedSecretFile = Annotated[
    Path | None,
    "FILE",
    "File with the secret that clients must know: 16 bytes or more, readable by you alone.",
]
Bind = Annotated[
    str,
    "ADDRESS",
    "Address of this machine to listen at (0.0.0.0: all). One that other machines can "
    "reach needs --secret-file.",
]
_PERIOD_S = 1.0


@app.command("tracker", epilog=EXAMPLES)
@service
def run_tracker(
    bind: Bind = "127.0.0.1",
    port: Annotated[int, typer.Option(min=1, max=65535), "The port to listen at."] = 9190,
    secret_file: ServedSecretFile = None,
) -> None:
    """Run a tracker until Ctrl-C."""
    from ..farm.server import running_tracker
    from ..runtime.secret import Secret

    secret = None if secret_file is None else Secret.read(secret_file)
    with running_tracker(bind, port, secret) as take_events:
        note(("Tracking", "green"), f" at {bind}:{port}; Ctrl-C ends it.")
        while True:
            time.sleep(_PERIOD_S)
            _log(take_events())


@app.command("serve", epilog=EXAMPLES)
@service
def serve(
    tracker: TrackerAddress,
    key: Annotated[str, "KEY", "Name for this kind of device, which tuning runs ask for."],
    bind: Bind = "127.0.0.1",
    port: Annotated[
        int | None,
        typer.Option(min=1, max=65535),
        "The port to listen at (default: the first free one).",
    ] = None,
    advertise: Annotated[
        str | None, "HOST", "Host that tuning runs connect to, if it differs from --bind."
    ] = None,
    secret_file: ServedSecretFile = None,
    opencl_device: Annotated[
        str | None,
        "PLATFORM:DEVICE",
        "Which OpenCL device to serve: indices or parts of names (see `tvmflow devices`).",
    ] = None,
    wait: Annotated[
        float | None,
        typer.Option(min=0),
        "S",
        "Give up if the tracker does not answer within so many seconds (default: never).",
    ] = None,
) -> None:
    """Serve this machine's devices until Ctrl-C."""
    from ..farm.server import FarmServer, ServeOptions
    from ..runtime.secret import Address

    address = Address.parse(tracker, secret_file)
    server = FarmServer(ServeOptions(address, key, bind, port, advertise, opencl_device, wait))
    try:
        about = server.about
        rows = [(f"{d.kind}:{d.index}", f"{d.name} ({d.driver})") for d in about.devices]
        print_facts(f"tvmflow {about.tvmflow} with TVM {about.tvm} on {about.host}", rows)
        note_missing_opencl(device.kind for device in about.devices)
        note(
            ("Serving", "green"),
            f" at port {server.port} for the key {key}, connected to the tracker at {address}; "
            "Ctrl-C ends it.",
        )
        while True:
            time.sleep(_PERIOD_S)
            _log(server.check())
    finally:
        server.close()


@app.command("status", epilog=EXAMPLES)
@command
def show_status(tracker: TrackerAddress, secret_file: Path | None = None) -> None:
    """Show a tracker's servers, their devices, and waiting requests."""
    from ..runtime.secret import Address
    from ..runtime.tracker import Tracker

    with Tracker(Address.parse(tracker, secret_file)) as connection:
        summary = connection.summary()
    servers = [
        {
            "address": str(server.address),
            "key": server.key,
            "measures": summary.runs.get(str(server.address)),
            **server.about,
        }
        for server in summary.servers
    ]
    queues = {
        key: {"servers": len(summary.serving(key)), **vars(queue)}
        for key, queue in summary.queues.items()
    }
    if print_json({"servers": servers, "malformed": summary.malformed, "keys": queues}):
        return
    rows = [_server_row(server, summary.runs) for server in summary.servers]
    rows += [("", "", "malformed", "", "", "", "", entry) for entry in summary.malformed]
    columns = ["server", "key", "state", "measures", ">crashes", "temperature", "tvmflow", "device"]
    title = f"Servers of the tracker at {connection.address}"
    print_table(title, columns if rows else ["none"], rows)
    keys = [(key, *queue.values()) for key, queue in sorted(queues.items())]
    print_table("Keys", ["key", ">servers", ">free", ">waiting requests"], keys)


def _log(events: Iterable[Event]) -> None:
    """Print events with the time; with ``--quiet`` only those that are not routine."""
    for event in events:
        if not (event.is_routine and state.quiet):
            stamp = datetime.now().astimezone().isoformat(sep=" ", timespec="seconds")
            from rich.text import Text

            err_console().print(Text(f"{stamp} {event.text}"))


def _server_row(server: Server, runs: Mapping[str, str]) -> tuple[str, ...]:
    facts, address = server.about, str(server.address)
    busy_s, degrees = facts.get("busy_s"), facts.get("temperature_c")
    state = "free" if busy_s is None else f"busy for {busy_s:.0f} s"
    temperature = "" if degrees is None else f"{degrees:.0f} °C"
    if facts.get("throttled"):
        temperature = f"{temperature}, throttled".lstrip(", ")
    # Show the first accelerator, else the CPU.
    devices = facts.get("devices") or [{}]
    return (
        *(address, server.key, state if facts else "", runs.get(address, "")),
        *(str(facts.get("crashes", "")), temperature, str(facts.get("tvmflow", "not of tvmflow"))),
        str(devices[0].get("name", "")),
    )
