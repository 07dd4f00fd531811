"""The page of a profile of 100 kernels: its size, and how long a browser takes to draw it.

The profile is made up; each kernel has 300 lines of TIR and as many of source, with numbers that do
not compress.  Time goes from opening the file to the first picture of the whole page, in a
page of its own each time; the browser runs already and draws without a GPU.

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

from common import report, summary, write_json

from tvmflow.profiling.page.write import write_page
from tvmflow.profiling.record import Profile

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "support"))

from browser import Browser, no_browser
from profiles import synthetic_profile

#: What the requirement allows.
LIMIT_BYTES, LIMIT_MS = 2_000_000, 1000.0
KERNELS, LINES = 100, 300


def profile(seed: int) -> Profile:
    """A made-up one with texts of real size."""
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
    results: dict[str, Any] = {"kernels": KERNELS, "lines_of_each_text": LINES}
    with tempfile.TemporaryDirectory() as folder:
        pages = {"one profile": Path(folder, "one.html"), "two compared": Path(folder, "two.html")}
        write_page(pages["one profile"], profile(0))
        write_page(pages["two compared"], profile(1), before=profile(0))
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
            results[name] = {"bytes": path.stat().st_size, **summary(times[name])}
    rows = [
        (name, f"{results[name]['bytes'] / 1e6:.2f}", results[name]["median_ms"],
         results[name]["p90_ms"])
        for name in pages
    ]  # fmt: skip
    report("Page of a profile of 100 kernels", ("page", "MB", "drawn, ms", "p90, ms"), rows)
    one = results["one profile"]
    results["within_limits"] = one["bytes"] < LIMIT_BYTES and one["median_ms"] < LIMIT_MS
    print("Within the limits:", results["within_limits"])
    print("Wrote", write_json("profile_page", results))


if __name__ == "__main__":
    main()
