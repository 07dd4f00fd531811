"""``tvmflow predict``: a table, JSON and a page of predicted times, without a device."""

from __future__ import annotations

import re

import onnx
import pytest
from support.tunables import model


@pytest.fixture
def network(tmp_path):
    path = tmp_path / "net<1>.onnx"
    onnx.save(model(), path)
    return path


def test_times_are_printed_by_layer(cli, network):
    shown = cli("predict", network, "--gpu", "adreno-740").succeeded().stdout
    assert "net<1>.onnx on adreno-740, predicted" in shown
    assert "327 kernels were measured on adreno-740" in shown
    lines = [line.split() for line in shown.splitlines()]
    assert [line[-1] for line in lines if "depthwise" in line] == ["model"]
    assert {line[-1] for line in lines if "moving" in line} == {"bound"}


def test_json_and_page_have_all_layers(cli, network, tmp_path):
    page = tmp_path / "page.html"
    options = ("--gpu", "adreno830", "--dtype", "fp16", "--html", page)
    found = cli("predict", network, *options, "--json").succeeded().json
    assert (found["gpu"], found["device"], found["dtype"]) == ("adreno-830", "adreno-830", "fp16")
    assert found["seconds"] == pytest.approx(sum(each["total"] for each in found["layers"]))
    low, high = found["range"]
    assert low < found["seconds"] < high
    assert found["verified"] is False
    assert found["verification"]["sentence"].startswith("Not verified: no measurement of this GPU")
    text = page.read_text(encoding="utf-8")
    assert "Predicted time of net&lt;1&gt;.onnx on adreno-830" in text
    assert "Not verified: no measurement of this GPU" in text
    count = len(found["layers"])
    assert text.count("<svg") == text.count('<tr id="layer') == count
    bounds = sum(each["bound"] is not None for each in found["layers"])
    assert 0 < bounds < count
    assert text.count('class="mark colour2"') == text.count(">bound<") == bounds
    assert not re.search(r"https?:|src=|@import|url\(|<script", text)


@pytest.mark.parametrize(
    ("gpu", "words"),
    [
        ("adreno-7400", ("'adreno-7400' is not known; the nearest are adreno-740",)),
        ("adreno-618", ("Predicting times on adreno-618 failed", "rates are published", "Remedy")),
        ("sm_90", ("Predicting times on sm_90 failed", "adreno-740, ")),
    ],
)
def test_a_gpu_without_rates_is_refused(cli, network, gpu, words):
    cli("predict", network, "--gpu", gpu).refused(*words)


def test_files_that_are_no_model_are_refused(cli, tmp_path):
    path = tmp_path / "net.onnx"
    path.write_text("no model")
    cli("predict", path, "--gpu", "adreno-740").refused("net.onnx")
    cli("predict", "none.onnx", "--gpu", "adreno-740").refused("none.onnx")
    cli("predict", path).refused("--gpu")


def test_a_page_that_cannot_be_written_is_refused_before_the_work(cli, network):
    options = ("--gpu", "adreno-740", "--html", "no/such/folder/page.html")
    cli("predict", network, *options).refused("Writing", "folder", "Remedy")
