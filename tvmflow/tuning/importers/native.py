"""Trials as JSON of our own, with all that a journal holds."""

from __future__ import annotations

from typing import Any

from ...journal.records import Device, Error, Event, Original, Target, Trial, Workload, vars_of


def document(trial: Trial) -> dict[str, Any]:
    """A trial as a JSON object."""
    content = {
        **vars_of(trial),
        "workload": vars_of(trial.workload),
        "target": vars_of(trial.target),
        "device": vars_of(trial.device),
        "error": trial.error.name,
        "costs": list(trial.costs),
    }
    if trial.original is None:
        del content["original"]
    else:
        content["original"] = trial.original._asdict()
    return content


def event(event: Event) -> dict[str, Any]:
    """An event as a JSON object."""
    device = None if event.device is None else vars_of(event.device)
    return {**vars_of(event), "device": device}


def trial(content: dict[str, Any]) -> Trial:
    """The trial of such an object.

    Raises
    ------
    KeyError, TypeError, ValueError
        If it is no such object.
    """
    original = content.get("original")
    for name, kind in (("message", str), ("source", str), ("knobs", dict), ("provenance", dict)):
        if not isinstance(content[name], kind):
            raise TypeError(f"its {name} is {content[name]!r}")
    if not all(isinstance(version, str) for version in content["toolchain"].values()):
        raise TypeError("versions are texts")
    return Trial(
        **{
            **content,
            "workload": Workload(**content["workload"]),
            "target": Target(**content["target"]),
            "device": Device(**content["device"]),
            "error": Error[content["error"]],
            "costs": tuple(map(float, content["costs"])),
            "timestamp": float(content["timestamp"]),
            "seconds": float(content["seconds"]),
            "original": None if original is None else Original(**original),
        }
    )
