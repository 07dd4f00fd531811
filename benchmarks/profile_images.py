"""The pictures of docs/profile.md: pages of MobileNetV2's profiles, in a browser without a window.

The network is compiled with --storage auto and with --storage texture and measured on the OpenCL
device that runs benchmarks, which should have nothing else to do meanwhile.

    python benchmarks/profile_images.py [--runs 40]
    python benchmarks/profile_images.py --profiles AUTO.json TEXTURE.json

The picture of docs/gpu.md is of a page that `tvmflow profile --html --isa` wrote, and of one of its
launches, by its number:

    python benchmarks/profile_images.py --isa-page PAGE.html 2

With Pillow installed, files have a third of the size.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path

from common import opencl_device

import tvmflow
from tvmflow.explain.profiling.page.write import write_page
from tvmflow.explain.profiling.reading import read_profile
from tvmflow.explain.profiling.record import Profile
from tvmflow.models import make

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "support"))

from browser import Browser, Page, no_browser

IMAGES = Path(__file__).parents[1] / "docs" / "images"
NETWORK = "mobilenet_v2"


def measured(storage: str, runs: int) -> Profile:
    """The network's profile, with what loading its file takes."""
    with tempfile.TemporaryDirectory() as folder:
        with tvmflow.compile(make(NETWORK), target="opencl", storage=storage) as module:
            path = module.save(Path(folder, f"{NETWORK}_{storage}.so"))
        found = tvmflow.profile(path, runs=runs)
    # Nobody else has the temporary folder.
    facts = dataclasses.replace(found.module, path=path.name)
    return dataclasses.replace(found, module=facts)


def opened(browser: Browser, path: Path, width: int, height: int, theme: str = "light") -> Page:
    """The page when all of it is drawn; links to its sections do not stay above them."""
    page = browser.page()
    page.open(path, width=width, height=height, theme=theme)
    page.wait_for("document.documentElement.dataset.drawnMs")
    page.run("document.getElementById('sections').style.position = 'static'")
    return page


def draw_machine_code(browser: Browser, path: Path, launch: int) -> None:
    """Write the picture of a launch with its machine code."""
    page = opened(browser, path, 1100, 1000)
    page.run(f"location.hash = 'k0.{launch}'")
    page.wait_for("document.querySelector('#kernel[open] pre')")
    # The last button is that of a listing.
    page.run("[...document.querySelectorAll('#kernel .controls button')].at(-1).click()")
    page.screenshot(IMAGES / "isa-kernel.png", "#kernel")
    closed(page)


def closed(page: Page) -> None:
    """Close a page that must have had nothing to complain about."""
    if complaints := page.complaints():
        sys.exit("the page complains: " + "; ".join(complaints))
    page.close()


def draw(browser: Browser, one: Path, two: Path) -> None:
    """Write all pictures, of the page of a profile and of the page of two."""
    page = opened(browser, one, 1100, 1010)
    page.screenshot(IMAGES / "profile-roofline.png")
    for part in ("layers", "timeline", "findings"):
        page.screenshot(IMAGES / f"profile-{part}.png", f"#{part}")
    closed(page)
    page = opened(browser, one, 1240, 900)
    page.screenshot(IMAGES / "profile-kernels.png", "#kernels")
    closed(page)
    page = opened(browser, one, 1100, 960, "dark")
    # The line of the finding that may save most; without findings, the slowest kernel.
    line = "#findings .where a:not(.of)"
    page.click(line if page.count(line) else "#kernels tbody a")
    page.wait_for("document.querySelector('#kernel[open] pre')")
    page.screenshot(IMAGES / "profile-kernel.png")
    closed(page)
    page = opened(browser, two, 1300, 1150)
    page.screenshot(IMAGES / "profile-compare.png")
    closed(page)


def shrink(path: Path) -> None:
    """Give a picture a palette: it has few colours, most of them of letters' edges."""
    if find_spec("PIL"):
        from PIL import Image

        Image.open(path).convert("RGB").quantize(
            255, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE
        ).save(path)


def main() -> None:
    """Measure, draw and write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=40)
    parser.add_argument(
        "--profiles", nargs=2, metavar="JSON", help="draw these instead of measuring"
    )
    parser.add_argument("--isa-page", nargs=2, metavar=("HTML", "LAUNCH"), help="draw only this")
    options = parser.parse_args()
    if reason := no_browser():
        sys.exit(f"{reason}: no picture is drawn")
    if options.isa_page:
        with tempfile.TemporaryDirectory() as folder:
            browser = Browser(Path(folder))
            draw_machine_code(browser, Path(options.isa_page[0]), int(options.isa_page[1]))
            browser.close()
        shrink(IMAGES / "isa-kernel.png")
        return
    if options.profiles:
        auto, texture = map(read_profile, options.profiles)
    else:
        opencl_device()
        auto, texture = (measured(storage, options.runs) for storage in ("auto", "texture"))
    with tempfile.TemporaryDirectory() as folder:
        one, two = Path(folder, "one.html"), Path(folder, "two.html")
        write_page(one, auto)
        write_page(two, auto, before=texture)
        browser = Browser(Path(folder, "browser"))
        draw(browser, one, two)
        browser.close()
    for path in sorted(IMAGES.glob("profile-*.png")):
        shrink(path)
        print(f"Wrote {path} ({path.stat().st_size / 1e3:.0f} kB)")


if __name__ == "__main__":
    main()
