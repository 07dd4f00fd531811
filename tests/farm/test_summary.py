"""Summaries that pass through a tracker: malformed entries spoil no others."""

from __future__ import annotations

import json
import socket
import struct
from dataclasses import asdict
from typing import Any

import pytest
from support.farms import LOCAL, Farm, eventually

from tvmflow.farm.server_info import ServedDevice, ServerInfo
from tvmflow.runtime.secret import Address
from tvmflow.runtime.tracker import (
    ABOUT,
    SERVER,
    TUNING,
    MalformedError,
    Queue,
    Server,
    Tracker,
    read_address,
    read_summary,
)

FACTS: dict[str, Any] = {
    **asdict(ServerInfo("1", "2", "x86_64-linux-gnu", ())),
    "devices": [asdict(ServedDevice("opencl", 0, "GPU", "1"))],
    "busy_s": 1.5,
    "crashes": 0,
    "temperature_c": None,
    "throttled": None,
}
GOOD = [
    {"key": f"{SERVER}board", "addr": ["10.0.0.5", 9090]},
    {"key": f"{ABOUT}board", "addr": ["10.0.0.5", 9090], "tvmflow": FACTS},
    {"key": f"{TUNING}board", "addr": ["10.0.0.9", 0], "tvmflow": {"10.0.0.5:9090": "conv2d"}},
]


def entry(**changes: Any) -> dict[str, Any]:
    return {"key": f"{SERVER}other", "addr": ["10.0.0.6", 9090], **changes}


def told(**changes: Any) -> dict[str, Any]:
    return entry(key=f"{ABOUT}other", tvmflow={**FACTS, **changes})


MALFORMED = {
    "none": None,
    "number": 5,
    "text": "server",
    "list": [1],
    "empty": {},
    "no address": {"key": f"{SERVER}other"},
    "no key": {"addr": ["10.0.0.6", 9090]},
    "key of another type": entry(key=["server:x"]),
    "unknown key": entry(key="server-info:other"),
    "long key": entry(key=SERVER + "x" * 65),
    "key that a terminal obeys": entry(key=f"{SERVER}\x1b[2Jx"),
    "address that is text": entry(addr="10.0.0.6:9090"),
    "short address": entry(addr=["10.0.0.6"]),
    "long address": entry(addr=["10.0.0.6", 9090, 1]),
    "host that is no text": entry(addr=[5, 9090]),
    "host that is null": entry(addr=[None, 9090]),
    "port that is text": entry(addr=["10.0.0.6", "9090"]),
    "port out of range": entry(addr=["10.0.0.6", 65536]),
    "facts that are a list": entry(key=f"{ABOUT}other", tvmflow=[]),
    "no facts": entry(key=f"{ABOUT}other"),
    "busy for some text": told(busy_s="long"),
    "devices that are text": told(devices="GPU"),
    "device without a name": told(devices=[{}]),
    "device that is text": told(devices=["GPU"]),
    "crashes that are true": told(crashes=True),
    "version that is a number": told(tvmflow=1),
    "hot as a list": told(temperature_c=[50]),
    "runs that are a list": entry(key=f"{TUNING}other", tvmflow=["conv2d"]),
    "run that is a number": entry(key=f"{TUNING}other", tvmflow={"10.0.0.6:9090": 1}),
    "much": entry(addr="x" * 100_000),
}


@pytest.mark.parametrize("name", MALFORMED)
@pytest.mark.parametrize("place", ["before", "behind"])
def test_a_malformed_entry_spoils_nothing_else(name: str, place: str):
    bad = MALFORMED[name]
    items = [bad, *GOOD] if place == "before" else [*GOOD, bad]
    queues = {"board": {"free": 1, "pending": 2}}
    summary = read_summary({"server_info": items, "queue_info": queues})
    assert summary.servers == (Server(Address("10.0.0.5", 9090), "board", FACTS),)
    assert summary.queues == {"board": Queue(1, 2)}
    assert summary.runs == {"10.0.0.5:9090": "conv2d"}
    (shown,) = summary.malformed
    assert json.dumps(bad).startswith(shown.removesuffix("…"))
    assert shown.isprintable()
    assert len(shown) <= 201


def test_facts_that_are_malformed_leave_the_server():
    server = entry()
    summary = read_summary({"server_info": [server, told(busy_s="long")], "queue_info": {}})
    assert summary.servers == (Server(Address("10.0.0.6", 9090), "other", {}),)
    assert len(summary.malformed) == 1


@pytest.mark.parametrize(
    "answer",
    [None, 5, [], {}, {"server_info": {}}, {"server_info": [], "queue_info": {"k": {"free": "x"}}}],
)
def test_what_is_no_summary_is_refused(answer: Any):
    with pytest.raises(MalformedError):
        read_summary(answer)


def test_an_address_is_a_host_and_a_port():
    assert read_address(["10.0.0.6", 1]) == Address("10.0.0.6", 1)
    with pytest.raises(MalformedError, match="no host with a port"):
        read_address(["10.0.0.6", 0])


def test_the_status_of_a_farm_with_a_foreign_server(farm: Farm):
    """The summary reaches a real tracker, which keeps it as sent."""
    address = farm.serve("fine")
    with Tracker(farm.address) as tracker:
        base = tracker._base
        with socket.create_connection((LOCAL, farm.address.port)) as foreign:
            foreign.sendall(struct.pack("<i", base.RPC_TRACKER_MAGIC))
            assert len(base.recvall(foreign, 4)) == 4
            info = {"key": "server:foreign", "addr": ["10.0.0.6", "http"]}
            base.sendjson(foreign, [base.TrackerCode.UPDATE_INFO, info])
            assert base.recvjson(foreign) == base.TrackerCode.SUCCESS
            summary = tracker.summary()
            assert summary.malformed == (json.dumps(info),)
            assert address in [server.address for server in summary.servers]
        eventually(lambda: not tracker.summary().malformed)
