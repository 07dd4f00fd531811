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
  tvmflow farm serve --tracker 192.168.1.10:9190 --key pixel8 --on adb:all
      --max-temp 45 --bind 192.168.1.21 --secret-file farm.secret
      where phones are plugged in: each is lent while it is at most 45 °C warm
  tvmflow farm serve --tracker 192.168.1.10:9190 --key rtx4090
      --bind 192.168.1.22 --secret-file farm.secret
      on a machine with TVM and a device of its own
  tvmflow farm status --tracker 192.168.1.10:9190 --secret-file farm.secret
      the devices, and which of them are free
  tvmflow bench net.onnx --on farm:192.168.1.10:9190/pixel8 --secret-file farm.secret
      on the next free phone
  tvmflow farm tracker
      for this machine only, or for others through a tunnel

[bold]Safety[/bold]
  A server executes what it is sent, with all rights of its user. Clients must know the
  secret; the connection is not encrypted. docs/farm.md shows tunnels and more.
"""

app = typer.Typer(
    name="farm",
    help="Lend phones and other devices: TVM's RPC tracker, and servers.",
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
    on: Annotated[
        str | None,
        "PLACE",
        "Serve a phone or board, which needs no TVM: adb:all (every attached phone), adb, "
        "adb:SERIAL, ssh:USER@HOST, local, or tcp:HOST:PORT (docs/phones.md).",
    ] = None,
    max_temp: Annotated[
        float | None,
        "C",
        "With --on: do not lend a device whose hottest sensor is above so many °C, until it is 2 "
        "degrees below.",
    ] = None,
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
    """Serve this machine's devices, or phones and boards, until Ctrl-C."""
    from ..farm.agents import AgentServers
    from ..farm.server import FarmServer, ServeOptions
    from ..runtime.secret import Address

    if on is not None and opencl_device is not None:
        raise typer.BadParameter("--opencl-device does not go with --on.")
    if max_temp is not None and on is None:
        raise typer.BadParameter("--max-temp goes with --on.")
    address = Address.parse(tracker, secret_file)
    options = ServeOptions(address, key, bind, port, advertise, opencl_device, wait)
    server = FarmServer(options) if on is None else AgentServers(options, on, max_temp)
    try:
        if isinstance(server, FarmServer):
            about, where = server.about, f"at port {server.port}"
            rows = [(f"{d.kind}:{d.index}", f"{d.name} ({d.driver})") for d in about.devices]
            print_facts(f"tvmflow {about.tvmflow} with TVM {about.tvm} on {about.host}", rows)
            note_missing_opencl(device.kind for device in about.devices)
        else:
            where = ", ".join(server.servers) or "phones that will be attached"
        note(
            ("Serving", "green"),
            f" {where} for the key {key}, connected to the tracker at {address}; Ctrl-C ends it.",
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
    rows += [("", "", "malformed", *[""] * 4, entry, "", "") for entry in summary.malformed]
    columns = ["server", "key", "state", "measures", ">crashes", "temperature", "tvmflow"]
    columns += ["model", "device", "driver"]
    title = f"Servers of the tracker at {connection.address}"
    spare = ("tvmflow", ">crashes", "driver")
    print_table(title, columns if rows else ["none"], rows, spare=spare if rows else ())
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
    state = facts.get("state") or state
    temperature = "" if degrees is None else f"{degrees:.0f} °C"
    if facts.get("throttled"):
        temperature = f"{temperature}, throttled".lstrip(", ")
    # Show the first accelerator, else the CPU.
    devices = facts.get("devices") or [{}]
    version, crashes = facts.get("tvmflow", "not of tvmflow"), facts.get("crashes")
    system = str(facts.get("system", ""))
    # Boards have no short name of their system.
    system = system if system.startswith("Android") else ""
    model = ", ".join(filter(None, (facts.get("model"), system)))
    return (
        *(address, server.key, state if facts else "", runs.get(address, "")),
        *("" if crashes is None else str(crashes), temperature, str(version), model),
        *(str(devices[0].get(name, "")) for name in ("name", "driver")),
    )
