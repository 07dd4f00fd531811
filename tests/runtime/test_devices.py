"""Finding devices: which library, which order, which errors."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from support.fake_opencl import NO_ICD, build_fake, build_no_icd

from tvmflow.runtime import devices

MANY = "One:Slow CPU:cpu,One:Big GPU:gpu,Two:DSP:accelerator,Two:Small GPU:gpu"


def names(listed):
    return [device["name"] for device in listed["devices"]]


@pytest.mark.opencl
def test_the_device_that_tests_run_on_is_described(script):
    listed = script("list_devices.py")
    device = listed["devices"][0]
    attributes = listed["attributes"]
    assert (device["kind"], device["index"]) == ("opencl", 0)
    assert device["name"] == attributes["device_name"]
    assert device["max_work_group_size"] == attributes["max_threads_per_block"] > 0
    assert device["local_memory_bytes"] == attributes["max_shared_memory_per_block"] > 0
    assert device["global_cache_bytes"] == attributes["l2_cache_size_bytes"] >= 0
    assert device["global_memory_bytes"] == attributes["total_global_memory"] > 2**20
    assert device["compute_units"] == attributes["multi_processor_count"] > 0
    assert len(attributes["max_thread_dimensions"]) == 3
    assert device["version"].startswith(f"OpenCL {attributes['compute_version']}")
    assert attributes["api_version"] == 120
    assert device["driver"] == attributes["driver_version"] != ""
    assert attributes["warp_size"] >= 1
    assert attributes["available_global_memory"] is None
    assert listed["why_none"] is None
    if device["images"]:
        assert device["image2d_max_width"] >= 2048
        assert device["image_max_array_size"] >= 256


def test_gpus_come_before_accelerators_before_cpus(fake, script):
    listed = script("list_devices.py", env={**fake, "FAKE_DEVICES": MANY})
    assert names(listed) == ["Big GPU", "Small GPU", "DSP", "Slow CPU"]
    assert [device["index"] for device in listed["devices"]] == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("wanted", "first"),
    [
        ("0:0", "Slow CPU"),
        ("1:0", "DSP"),
        ("1:", "Small GPU"),
        (":cpu", "Slow CPU"),
        ("two:small", "Small GPU"),
        ("one:BIG", "Big GPU"),
        ("dsp", "DSP"),
        ("accelerator", "DSP"),
        ("1", "Small GPU"),
    ],
)
def test_the_wanted_device_comes_first(fake, script, wanted, first):
    env = {**fake, "FAKE_DEVICES": MANY, "TVMFLOW_OPENCL_DEVICE": wanted}
    listed = names(script("list_devices.py", env=env))
    assert listed[0] == first
    others = [name for name in ["Big GPU", "Small GPU", "DSP", "Slow CPU"] if name != first]
    assert listed[1:] == others


def test_a_wanted_device_that_does_not_exist(fake, script):
    env = {**fake, "FAKE_DEVICES": MANY, "TVMFLOW_OPENCL_DEVICE": "three:0"}
    listed = script("list_devices.py", env=env)
    assert listed["devices"] == []
    assert "TVMFLOW_OPENCL_DEVICE='three:0'" in listed["why_none"]
    assert "device 'Big GPU' of 'One' is usable" in listed["why_none"]


def test_a_platform_without_devices(fake, script):
    result = script("attempt.py", "allocate", env={**fake, "FAKE_DEVICES": "Empty"})
    assert result["type"] == "DeviceError"
    assert result["message"] == "No OpenCL device was found."
    assert "pip install" in result["remedy"]
    assert "platform 'Empty' has no device" in result["details"]


@pytest.mark.parametrize(
    ("version", "works"),
    [("3.0-rc2", False), ("1.8", False), ("3.1+debian", True), ("3.10", True), ("10.0", True)],
)
def test_pocl_is_refused_below_the_oldest_that_works(fake, script, version, works):
    pocl = {"FAKE_DEVICES": "Portable Computing Language:pthread:cpu", "FAKE_VERSION": version}
    listed = script("list_devices.py", env={**fake, **pocl})
    assert names(listed) == (["pthread"] if works else [])
    refused = "device 'pthread' of 'Portable Computing Language' is older than PoCL 3.1"
    assert (refused in (listed["why_none"] or "")) == (not works)


def test_a_library_that_is_none(fake, script, tmp_path):
    path = tmp_path / "text.so"
    path.write_text("not a library")
    result = script("attempt.py", "allocate", env={**fake, "TVMFLOW_OPENCL_LIBRARY": str(path)})
    assert result["type"] == "DeviceError"
    assert str(path) in result["details"]


def test_a_library_without_opencl(fake, script):
    env = {**fake, "TVMFLOW_OPENCL_LIBRARY": "libm.so.6"}
    result = script("attempt.py", "allocate", env=env)
    assert "libm.so.6: it is not an OpenCL library" in result["details"]


@pytest.mark.parametrize("first", range(3), ids=["null", "short table", "number"])
def test_a_vendor_s_library_without_icd_that_lacks_functions(fake, script, tmp_path, first):
    """Nothing is read through its platform, which would end the process."""
    env = {**fake, "TVMFLOW_OPENCL_LIBRARY": str(build_no_icd(tmp_path, first))}
    result = script("attempt.py", "allocate", env=env)
    assert "it lacks clGetDeviceInfo of OpenCL 1.2" in result["details"]


def test_a_vendor_s_library_without_icd_that_has_all_functions(fake, script, tmp_path):
    """Programs are built, and which file the driver is becomes part of the cache's keys."""
    env = {**fake, "TVMFLOW_OPENCL_LIBRARY": str(build_fake(tmp_path, *NO_ICD))}
    assert script("attempt.py", "launch", "8", "8", env=env) is None
    assert list((tmp_path / "cache").rglob("*.program*"))


def test_a_device_number_beyond_the_last(fake, script):
    result = script("attempt.py", "other_device", env=fake)
    assert result["type"] == "DeviceError"
    assert result["message"] == "There is no device opencl:1."
    assert "'Fake GPU' (opencl:0, Fake)" in result["details"]


def test_pips_drivers_stand_in_for_a_loader_without_any(script, tmp_path):
    (tmp_path / "vendors").mkdir()
    env = {"TVMFLOW_OPENCL_LIBRARY": "", "TVMFLOW_OPENCL_DEVICE": ""}
    env |= {"OCL_ICD_VENDORS": str(tmp_path / "vendors"), "OCL_ICD_FILENAMES": ""}
    listed = script("list_devices.py", env=env)
    if not listed["devices"]:
        pytest.skip("pip has installed no driver")
    assert "/lib/" in listed["devices"][0]["library"]
    assert "libOpenCL" not in listed["devices"][0]["library"]
    assert script("roundtrip.py", env=env)["wrong"] == []


def test_a_queue_that_cannot_be_created(fake, script):
    result = script("attempt.py", "allocate", env={**fake, "FAKE_REFUSE": "queue"})
    assert "command queue" in result["message"]
    assert "CL_OUT_OF_RESOURCES (-5)" in result["message"]


def test_a_forked_process_is_told(fake, script):
    result = script("attempt.py", "forked", env=fake)
    assert result["type"] == "DeviceError"
    assert "spawn" in result["remedy"]


def test_importing_tvm_opens_no_opencl_library(run_python):
    code = (
        "import tvm\n"
        "maps = open('/proc/self/maps').read()\n"
        "print('libOpenCL' in maps or 'libpocl' in maps)\n"
    )
    process = run_python(code, env={"TVMFLOW_OPENCL_LIBRARY": None})
    assert process.stdout.strip() == "False", process.stderr


def test_importing_tvm_survives_a_missing_plugin(run_python):
    code = (
        "import pathlib, warnings, tvmflow.runtime.plugin as plugin\n"
        "plugin.LIBRARY = pathlib.Path('missing.so')\n"
        "with warnings.catch_warnings(record=True) as caught:\n"
        "    warnings.simplefilter('always')\n"
        "    import tvm\n"
        "print([str(item.message) for item in caught if 'tvmflow' in str(item.message)])\n"
    )
    process = run_python(code)
    assert process.returncode == 0, process.stderr
    assert "was not built" in process.stdout


def test_facts_of_cuda_devices(monkeypatch):
    """They are those of TVM; what a runtime does not know is 0."""
    facts = {
        "max_threads_per_block": 1024, "max_shared_memory_per_block": 49152,
        "l2_cache_size_bytes": 50 << 20, "multi_processor_count": 132,
        "total_global_memory": 80 << 30,
    }  # fmt: skip
    known = SimpleNamespace(exist=True, index=0, device_name="H", compute_version="9.0", **facts)
    unknown = SimpleNamespace(**{**vars(known), "index": 1, **dict.fromkeys(facts)})
    gpus = [known, unknown, SimpleNamespace(exist=False)]
    monkeypatch.setattr("tvm.cuda", gpus.__getitem__)
    first, second = devices.cuda_devices()
    assert (first.max_work_group_size, first.local_memory_bytes) == (1024, 49152)
    assert (first.global_cache_bytes, first.compute_units) == (50 << 20, 132)
    assert first.global_memory_bytes == first.max_allocation_bytes == 80 << 30
    assert second.max_work_group_size == second.local_memory_bytes == second.compute_units == 0
    assert second.global_cache_bytes == second.global_memory_bytes == 0
