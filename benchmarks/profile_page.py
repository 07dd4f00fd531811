"""The page of a profile of 100 kernels: its size, and how long a browser takes to draw it.

One profile is of a network that is compiled and measured: ResNet-101, narrow and at 96 pixels, with
the findings in its kernels.  Others are made up; each kernel has 300 lines of TIR and as many of
source, with numbers that do not compress.  Time goes from opening the file to the first picture of
the whole page, in a page of its own each time; the browser runs already and draws without a GPU.

    python benchmarks/profile_page.py [--rounds 15]
"""

from __future__ import annotations

import argparse
import dataclasses
import random
import sys
import tempfile
from pathlib import Path
from typing import Any

from common import opencl_device, report, summary, write_json

import tvmflow
from tvmflow.explain.profiling.page.write import write_page
from tvmflow.explain.profiling.record import Profile
from tvmflow.models.resnet import residual_network

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "support"))

from browser import Browser, no_browser
from profiles import synthetic_profile

#: What the requirement allows.
LIMIT_BYTES, LIMIT_MS = 2_000_000, 1000.0
KERNELS, LINES = 100, 300


def measured() -> Profile:
    """Of a real network; its weights, which are small, are not in the page."""
    network = residual_network("resnet101", (3, 4, 23, 3), width=0.5, size=96)
    with tvmflow.compile(network.model(), target="opencl") as module:
        return tvmflow.profile(module)


def made_up(seed: int) -> Profile:
    """One with texts of real size."""
    generator = random.Random(seed)
    made = synthetic_profile(KERNELS, seed)

    def text() -> str:
        lines = (
            f"        lv{generator.randrange(40)}[v_ax0, v_ax1 + {generator.randrange(9999)}] = "
            f"lv{generator.randrange(40)}[v_ax0 * {generator.randrange(999)}, v_ax1, v_ax2]"
            for _ in range(LINES)
        )
        return "\n".join(lines)

    return dataclasses.replace(
        made,
        tir={name: text() for name in made.tir},
        sources={name: text() for name in made.sources},
    )


def drawn_ms(browser: Browser, path: Path) -> float:
    """Open a page and ask it how long that took."""
    page = browser.page()
    page.open(path)
    time = page.run(
        "new Promise(done => { const look = () => document.documentElement.dataset.drawnMs"
        " ? done(Number(document.documentElement.dataset.drawnMs)) : setTimeout(look, 20);"
        " look(); })"
    )
    page.close()
    return float(time)


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=15)
    rounds = parser.parse_args().rounds
    if reason := no_browser():
        sys.exit(f"{reason}: nothing measured")
    results: dict[str, Any] = {"device": opencl_device(), "lines_of_each_text": LINES}
    profiles = {"ResNet-101": measured(), "made up": made_up(0), "two made up": made_up(1)}
    with tempfile.TemporaryDirectory() as folder:
        pages = {name: Path(folder, f"{number}.html") for number, name in enumerate(profiles)}
        for name, path in pages.items():
            before = profiles["made up"] if name == "two made up" else None
            write_page(path, profiles[name], before)
        browser = Browser(Path(folder, "browser"))
        results["browser"] = browser.call("Browser.getVersion")["product"]
        times: dict[str, list[float]] = {name: [] for name in pages}
        for number in range(rounds + 1):
            for name, path in pages.items():
                time = drawn_ms(browser, path)
                # The first one of each also starts the browser's own processes.
                if number:
                    times[name].append(time)
        browser.close()
        for name, path in pages.items():
            results[name] = {
                "kernels": len(profiles[name].kernels),
                "findings": len(profiles[name].findings),
                "bytes": path.stat().st_size,
                **summary(times[name]),
            }
    rows = [
        (name, results[name]["kernels"], results[name]["findings"],
         f"{results[name]['bytes'] / 1e6:.2f}", results[name]["median_ms"], results[name]["p90_ms"])
        for name in pages
    ]  # fmt: skip
    columns = ("page", "kernels", "findings", "MB", "drawn, ms", "p90, ms")
    report("Pages of profiles", columns, rows)
    results["within_limits"] = all(
        results[name]["kernels"] >= KERNELS
        and results[name]["bytes"] < LIMIT_BYTES
        and results[name]["median_ms"] < LIMIT_MS
        for name in pages
    )
    print("Within the limits:", results["within_limits"])
    print("Wrote", write_json("profile_page", results))


if __name__ == "__main__":
    main()
