"""GPUs by name: their facts, and the devices that schedules ask."""

from __future__ import annotations

from dataclasses import fields

import pytest

from tvmflow.devices.gpus import GPUS
from tvmflow.devices.presets import PRESETS, SOURCES, device_of
from tvmflow.devices.target import resolve


@pytest.mark.parametrize("name", ["adreno-620", "adreno-640", "adreno-740", "mali-g76"])
def test_a_gpus_name_refines_its_preset(name):
    device, gpu = resolve("opencl", name).device, GPUS[name]
    preset = PRESETS[gpu.preset]
    assert device == device_of(gpu)
    assert (device.name, device.wave, device.texture) == (preset.name, preset.wave, preset.texture)
    assert device.launch_us == gpu.launch_us


def test_tiles_follow_the_series():
    vectors = {name: device_of(GPUS[name]).convolution.vectors for name in GPUS}
    assert vectors["adreno-640"] < PRESETS["adreno"].convolution.vectors < vectors["adreno-740"]
    assert vectors["mali-g610"] == PRESETS["mali"].convolution.vectors


@pytest.mark.parametrize("preset", ["adreno", "mali"])
def test_each_number_of_a_phones_preset_has_a_source(preset):
    device = PRESETS[preset]
    rates = {f"texture.{field.name}" for field in fields(device.texture)}
    assert set(SOURCES[preset]) == rates | {"winograd", "convolution", "depthwise", "launch_us"}
    assert all(SOURCES[preset].values())
