"""Pages of tuning, labs and predictions in windows as narrow as a phone: nothing is cut off."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from support.browser import Page
from support.tunables import model, tasks

import tvmflow
from tvmflow.explain import prediction_page
from tvmflow.explain.lab import run_lab
from tvmflow.explain.lab_page import write_page
from tvmflow.explain.profiling import ceilings
from tvmflow.explain.profiling.record import Ceilings
from tvmflow.tuning.report import write_report
from tvmflow.tuning.session import Tuned
from tvmflow.tuning.tuner import Point, Progress


def tuning(path: Path) -> None:
    points = [Point(4e-4, None), Point(2e-4, None)]
    progress = [Progress(each, 4e-4, 2e-4, {"tile_w": 8}, points) for each in tasks().values()]
    write_report(path, "net.onnx", Tuned(progress, 7, None, []))


def lab(path: Path) -> None:
    write_page(path, run_lab("relu", size=7, seconds=1e-3))


def prediction(path: Path) -> None:
    prediction_page.write_page(path, "net.onnx", tvmflow.predict(model(), "adreno-830"))


@pytest.mark.browser
@pytest.mark.parametrize("write", [tuning, lab, prediction])
def test_a_page_fits_narrow_windows(
    page: Page, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, write: Callable[[Path], None]
):
    known = Ceilings(copy_gbps=10.0, fp32_gflops=1e3, launch_us=0.001)
    monkeypatch.setattr(ceilings._Device, "measure", lambda self: known)
    path = tmp_path / "page.html"
    write(path)
    for width in (500, 1366):
        page.open(path, width=width)
        assert page.run("document.documentElement.scrollWidth") <= width
        # Neither the table in its own box, and no name stands upright.
        assert (
            page.run("(e => e.scrollWidth - e.clientWidth)(document.querySelector('.wide'))") <= 0
        )
        heights = page.run(
            "[...document.querySelectorAll('td:first-child')].map(e=>e.clientHeight)"
        )
        assert max(heights) < 80
