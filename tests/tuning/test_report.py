"""Content of a tuning session's page."""

from __future__ import annotations

import re
from dataclasses import replace

from support.tunables import tasks

from tvmflow.journal.records import Device
from tvmflow.tuning.report import write_report
from tvmflow.tuning.session import Tuned
from tvmflow.tuning.tuner import Point, Progress


def test_a_page_has_units_knobs_device_and_date(tmp_path):
    task = tasks()["conv2d"]
    in_images = replace(task)
    in_images.__dict__["workload"] = replace(task.workload, storage="texture")
    progress = [
        Progress(
            each, 4e-4, 2e-4, {"tile_w": 8, "share": True}, [Point(4e-4, None), Point(c, None)]
        )
        for each, c in ((task, 2e-4), (in_images, 3e-4))
    ]
    device = Device("", "Adreno <740>", "v2")
    write_report(tmp_path / "a.html", "net", Tuned(progress, 7, None, [], (), [device, device]))
    page = (tmp_path / "a.html").read_text(encoding="utf-8")
    assert page.count("Measured on Adreno &lt;740&gt; v2, ") == 1
    assert re.search(r"v2, \d{4}-\d\d-\d\d \d\d:\d\d", page)
    # Labels of the axes: least and greatest time, first and last trial.
    for label in (">640 µs<", ">180 µs<", ">1<", ">2<", ">trial<"):
        assert page.count(label) >= 2, label
    assert page.count("<code>tile_w=8 share=true</code>") == 2
    assert f"<td>{task.name}</td>" in page
    assert f"<td>{task.name} (texture)</td>" in page
    numbers = [float(n) for n in re.findall(r'c[xy]="([\d.-]+)"', page)]
    assert len(numbers) == 8
    assert 0 <= min(numbers) <= max(numbers) <= 260


def test_a_single_trial_is_drawn(tmp_path):
    one = Progress(tasks()["conv2d"], 1e-4, 1e-4, {}, [Point(1e-4, None)])
    write_report(tmp_path / "a.html", "net", Tuned([one], 1, None, []))
    page = (tmp_path / "a.html").read_text(encoding="utf-8")
    assert "<circle" in page
    assert "Measured on" not in page
