"""Device files: reading, origins, and the facts that they replace."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from tvmflow.devices.device_file import DeviceFile, Fact, Origin, flattened
from tvmflow.devices.presets import PRESETS
from tvmflow.devices.target import resolve
from tvmflow.errors import TargetError
from tvmflow.runtime.devices import DeviceInfo

INFO = DeviceInfo(
    "opencl", 0, "Mali-G715", vendor="ARM", driver="3.0", device_type="gpu", fp16=True,
    max_work_group_size=512, image2d_max_width=65536, image2d_max_height=65536,
    image_max_array_size=2048,
)  # fmt: skip


def written(folder, content):
    path = folder / "pixel8.json"
    path.write_text(json.dumps(content))
    return path


def test_facts_of_a_file_replace_the_presets(tmp_path):
    facts = {"texture.cached": Fact(1.25, Origin.MEASURED), "wave": Fact(32, Origin.MEASURED)}
    described = DeviceFile.of(INFO, "pixel8")
    described = replace(described, facts={**described.facts, **facts})
    path = written(tmp_path, described.to_json())
    device = resolve("opencl", str(path), "android-arm64").device
    mali = PRESETS["mali"]
    assert device.texture == replace(mali.texture, cached=1.25)
    assert (device.wave, device.max_group_size, device.image_extent) == (32, 512, 65536)
    assert device == replace(
        mali, texture=device.texture, wave=32, max_group_size=512, image_extent=65536,
        image_layers=2048, fp16=True,
    )  # fmt: skip


def test_launches_cost_what_was_measured(tmp_path):
    described = DeviceFile.of(INFO, "pixel8")
    measured = replace(described, rates={"launch_us": Fact(12.5, Origin.MEASURED)})
    assert described.device().launch_us == PRESETS["mali"].launch_us
    path = written(tmp_path, measured.to_json())
    assert resolve("opencl", str(path)).device == replace(described.device(), launch_us=12.5)


def test_every_fact_has_an_origin(tmp_path):
    read = DeviceFile.read(written(tmp_path, DeviceFile.of(INFO, "pixel8").to_json()))
    origins = {name: fact.origin.value for name, fact in read.all_facts().items()}
    assert origins.keys() == dict(flattened(PRESETS["mali"])).keys()
    assert origins["max_group_size"] == "reported"
    assert origins["texture.write"] == "assumed"
    assert origins["texture.cached"] == origins["convolution.items"] == "preset"
    # Mali's costs of Winograd's convolution are Adreno's, where they were measured.
    assert origins["winograd.tile"] == "assumed"
    adreno = DeviceFile("phone", "adreno").all_facts()
    assert adreno["winograd.tile"].origin.value == "preset"


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"version": 2}, "version 2; this tvmflow reads 1"),
        ({"format": "x"}, "an object with the format"),
        ({"preset": "powervr"}, "its preset is 'powervr'"),
        ({"name": 3}, "its name is 3"),
        ({"identity": []}, "identity is no object"),
        ({"measurements": 1}, "measurements are no object"),
        ({"facts": {"wafe": {"value": 1, "origin": "measured"}}}, "the nearest are wave"),
        ({"facts": {"wave": {"value": 1}}}, "needs a value, and an origin of measured"),
        ({"facts": {"wave": 16}}, "needs a value"),
        ({"facts": 7}, "needs a value"),
        ({"facts": {"wave": {"value": 16, "origin": "guessed"}}}, "an origin of measured"),
        ({"facts": {"wave": {"value": -16, "origin": "measured"}}}, "whole number from 1 to 1024"),
        ({"facts": {"wave": {"value": 1.5, "origin": "measured"}}}, "wave is 1.5"),
        ({"facts": {"wave": {"value": True, "origin": "measured"}}}, "wave is True"),
        ({"facts": {"wave": {"value": None, "origin": "measured"}}}, "wave is None"),
        ({"facts": {"fp16": {"value": 1, "origin": "measured"}}}, "expected true, false or null"),
        ({"facts": {"texture.cached": {"value": 0, "origin": "measured"}}}, "from 0.001 to 1000"),
        ({"facts": {"image_extent": {"value": 0, "origin": "reported"}}}, "layers without extent"),
        ({"facts": {"group_size": {"value": 2048, "origin": "measured"}}}, "at most 512"),
        ({"facts": {"group_size": {"value": 1, "origin": "measured"}}}, "none of the preset mali"),
        ({"rates": {"buffer_gbps": {"value": -3, "origin": "measured"}}}, "buffer_gbps is -3"),
        ({"rates": {"buffer_gbps": {"value": 1e400, "origin": "measured"}}}, "buffer_gbps is inf"),
    ],
)
def test_what_no_device_can_be_is_refused(tmp_path, change, reason):
    content = DeviceFile.of(INFO, "pixel8").to_json()
    facts = change.get("facts")
    if isinstance(facts, dict):
        change = {"facts": {**content["facts"], **facts}}
    path = written(tmp_path, {**content, **change})
    with pytest.raises(TargetError) as refused:
        resolve("opencl", str(path))
    assert reason in refused.value.message
    assert str(path) in refused.value.message


@pytest.mark.parametrize("text", ["", "[]", "{", "[" * 100_000, "\udcff"])
def test_damaged_files_are_refused(tmp_path, text):
    path = tmp_path / "d.json"
    path.write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(TargetError, match="was not used"):
        DeviceFile.read(path)
    with pytest.raises(TargetError, match="No such file"):
        DeviceFile.read(tmp_path / "none.json")


def test_cpus_are_not_compiled_for_a_file(tmp_path):
    path = written(tmp_path, DeviceFile.of(INFO, "pixel8").to_json())
    with pytest.raises(TargetError, match="compiles for CPUs"):
        resolve("llvm", str(path))
