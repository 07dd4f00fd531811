"""``tvmflow inspect --host-abi``: whether a library fits the machine that is to load it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from .formats import facts, print_section, table
from .session import out_console, print_json

if TYPE_CHECKING:
    from ..module.standalone.host_abi import Report


def inspect_host_abi(library: Path, host: str | None, as_json: bool) -> None:
    """Check a library and print the report; exit with status 1 if it does not fit."""
    from ..devices.host import Host
    from ..module.standalone.host_abi import check_host_abi

    report = check_host_abi(library, Host.parse(host) if host else None)
    if as_json:
        print_json(_describe(report))
    else:
        _print(report)
    if not report.fits:
        raise typer.Exit(1)


def _describe(report: Report) -> dict[str, Any]:
    from dataclasses import asdict

    return {
        "path": str(report.path),
        "kind": report.facts.kind,
        "host": report.host.triple,
        "fits": report.fits,
        "android_refuses": report.android_refuses,
        "rules": [asdict(verdict) for verdict in report.verdicts],
        **asdict(report.facts),
    }


def _print(report: Report) -> None:
    console = out_console()
    refuses = "; ".join(report.android_refuses)
    about = [
        ("kind", report.facts.kind),
        ("host", report.host.triple),
        ("fits", "yes" if report.fits else "no"),
        ("on Android", f"not loaded: {refuses}" if refuses else "loaded, as far as the file tells"),
    ]
    print_section(console, str(report.path), facts(about))
    rows = [
        (verdict.rule, verdict.found, verdict.expected, "" if verdict.kept else "broken")
        for verdict in report.verdicts
    ]
    print_section(console, "Rules", table(["rule", "found", "expected", ""], rows))
