"""Ceilings: kernels that compute what they say, and a cache that is a cache."""

from __future__ import annotations

import dataclasses
import datetime
import json

import numpy as np
import pytest

from tvmflow.devices.target import resolve
from tvmflow.explain.profiling import ceilings as module
from tvmflow.explain.profiling.caches import Cache
from tvmflow.explain.profiling.counting import count_kernels
from tvmflow.explain.profiling.record import CacheCeiling, Ceilings
from tvmflow.runtime.devices import DeviceInfo, host_device, opencl_devices

KNOWN = Ceilings(10.0, 100.0, 5.0, int8_gops=400.0)


def device(kind):
    """The device of this machine, with the means to run kernels on it."""
    info = host_device() if kind == "llvm" else opencl_devices()[0]
    return module._Device(kind, info)


KINDS = ["llvm", pytest.param("opencl", marks=pytest.mark.opencl)]


@pytest.mark.parametrize("kind", KINDS)
def test_products_and_sums_are_computed_one_behind_the_other(kind):
    on = device(kind)
    function = module.arithmetic(on.target, "float32", items=4, steps=5)
    kernel, (factors, sums) = on._prepare(function)
    lanes = on.target.device.channel_block
    rng = np.random.default_rng(1)
    values = rng.uniform(0.2, 0.9, (2, lanes)).astype(np.float32)
    factors.copyfrom(values)
    kernel["main"](factors, sums)
    expected = values[1].astype(np.float64)
    for _ in range(5):
        expected = expected * values[0] + values[1]
    np.testing.assert_allclose(sums.numpy(), np.broadcast_to(expected, sums.shape), rtol=1e-5)
    (count,) = count_kernels(function, on_gpu=kind != "llvm")
    assert count.flops == {"fp32": 2 * 5 * 4 * module.CHAINS * lanes}


@pytest.mark.parametrize("kind", KINDS)
def test_a_copy_is_one(kind):
    on = device(kind)
    kernel, (source, result) = on._prepare(module.copy(on.target))
    values = np.arange(module.COPIED, dtype=np.float32).reshape(source.shape)
    source.copyfrom(values)
    kernel["main"](source, result)
    np.testing.assert_array_equal(result.numpy(), values)


@pytest.mark.parametrize("kind", KINDS)
def test_copies_may_stay_in_a_cache(kind):
    """Each thread has its part, copies it to and fro, and a part is not cut off."""
    on = device(kind)
    function = module.shuttle(on.target, elements=3 * 7 * 256, groups=3, turns=5)
    kernel, (first, second) = on._prepare(function)
    assert first.shape[0] == 3
    assert np.prod(first.shape) == 3 * 7 * 256
    values = np.random.default_rng(3).standard_normal(first.shape, np.float32)
    first.copyfrom(values)
    kernel["main"](first, second)
    np.testing.assert_array_equal(first.numpy(), values)
    np.testing.assert_array_equal(second.numpy(), values[:, ::-1])
    # Each element counts once, however often it is accessed.
    (count,) = count_kernels(function, on_gpu=kind != "llvm")
    assert (count.bytes_read, count.bytes_written) == (2 * values.nbytes, 2 * values.nbytes)


@pytest.fixture
def two_caches(monkeypatch):
    """A processor with two levels that two threads use."""
    known = [Cache("L1", 1 << 15, 1 << 16), Cache("L2", 1 << 19, 1 << 20)]
    monkeypatch.setattr(module, "cpu_caches", lambda threads: known)
    monkeypatch.setattr(module, "_threads", lambda info: 2)


def test_working_sets_fit_their_caches(two_caches, monkeypatch):
    """No time passes: what is touched takes a nanosecond for two bytes."""
    sets = []

    def bytes_a_ns(self, function, scope=None):
        (count,) = count_kernels(function, on_gpu=False)
        assert count.bytes_read == count.bytes_written
        sets.append(count.bytes_read)
        return 2.0 / len(sets) ** 4

    monkeypatch.setattr(module._Device, "_bytes_a_ns", bytes_a_ns)
    first, second = device("llvm")._cache_ceilings()
    # Half of the first level; of the second what the first does not hold.
    assert sets == [1 << 15, 1 << 18]
    assert (first.name, first.capacity_bytes) == ("L1", 1 << 16)
    assert (second.name, second.capacity_bytes) == ("L2", 1 << 20)
    # A rate is of all turns, each of which reads and writes both buffers.
    moved = [first.gbps / 2.0 * sets[0] * 2, second.gbps / (2.0 / 16) * sets[1] * 2]
    assert moved == [module._CACHED_BYTES] * 2


@pytest.mark.parametrize(
    ("measured", "kept"),
    [
        ([100.0, 50.0], {"L1": 100.0, "L2": 50.0}),
        # Noise.
        ([100.0, 105.0], {"L1": 100.0, "L2": 105.0}),
        # The smaller one was disturbed.
        ([100.0, 150.0, 160.0], {"L1": 160.0, "L2": 150.0}),
        # The larger one is no rate of a cache.
        ([100.0, 4021.0, 120.0], {"L1": 120.0}),
        ([100.0, 4021.0, 90.0], {"L1": 100.0}),
    ],
)
def test_a_larger_cache_is_not_faster(two_caches, monkeypatch, measured, kept):
    sizes, rates = [], iter(measured)
    monkeypatch.setattr(
        module._Device, "_cached_gbps", lambda self, size: sizes.append(size) or next(rates)
    )
    assert {c.name: c.gbps for c in device("llvm")._cache_ceilings()} == kept
    assert next(rates, None) is None
    # It is the smaller one that is measured again.
    assert sizes == [sizes[0], sizes[1], sizes[0]][: len(measured)]


def test_memory_is_measured_with_more_than_caches_hold(monkeypatch):
    on = device("llvm")
    on.info = dataclasses.replace(
        on.info, global_memory_bytes=1 << 35, max_allocation_bytes=1 << 35
    )
    for capacity, elements in [(1 << 20, module.COPIED), (1 << 28, 1 << 26), (1 << 34, 1 << 30)]:
        monkeypatch.setattr(module, "cpu_caches", lambda _, c=capacity: [Cache("L3", c, c)])
        assert on._copied() == elements
    # For a GPU only its driver's facts count, not the CPU's caches.
    on.info = dataclasses.replace(on.info, device_type="gpu")
    assert on._copied() == module.COPIED
    assert on._cache_ceilings() == ()
    on.info = dataclasses.replace(on.info, global_cache_bytes=1 << 28)
    assert on._copied() == 1 << 26


@pytest.mark.opencl
def test_a_gpu_has_the_cache_that_its_driver_tells_of(monkeypatch):
    """This device, taken for a GPU of 2 units: 4 groups of each fill half of the cache."""
    told = dataclasses.replace(
        device("opencl").info, device_type="gpu", compute_units=2, global_cache_bytes=1 << 20
    )
    copies = []
    shuttle = module.shuttle
    monkeypatch.setattr(
        module, "shuttle", lambda target, *sizes: copies.append(sizes) or shuttle(target, *sizes)
    )
    (cache,) = module._Device("opencl", told)._cache_ceilings()
    assert (cache.name, cache.capacity_bytes) == ("cache", 1 << 20)
    assert 0.1 < cache.gbps < 1e5
    # Two buffers of fp32.
    assert copies == [(1 << 16, 8, module._CACHED_BYTES // (1 << 20))]


@pytest.mark.opencl
@pytest.mark.parametrize("told", [0, 1 << 14])
def test_a_cache_too_small_for_all_items_is_left_out(told):
    """As that of one unit, which is what some drivers tell of."""
    info = dataclasses.replace(
        device("opencl").info, device_type="gpu", compute_units=40, global_cache_bytes=told
    )
    assert module._Device("opencl", info)._cache_ceilings() == ()


def test_the_better_one_of_each_cache_is_kept():
    caches = [CacheCeiling("L1", 100, 30.0), CacheCeiling("L2", 1000, 9.0)]
    new = dataclasses.replace(KNOWN, caches=tuple(caches))
    old = dataclasses.replace(KNOWN, caches=(CacheCeiling("L2", 900, 12.0),))
    assert module.better(new, old).caches == (caches[0], CacheCeiling("L2", 1000, 12.0))


@pytest.mark.opencl
def test_every_texel_is_read():
    on = device("opencl")
    if not on.info.images:
        pytest.skip("the device has no images")
    function = module.texels(on.target)
    kernel, (image, sums) = on._prepare(function, module.TEXTURE)
    values = np.random.default_rng(2).standard_normal(image.shape, np.float32)
    image.copyfrom(values)
    kernel["main"](image, sums)
    np.testing.assert_allclose(sums.numpy(), values.sum(0), rtol=1e-4, atol=1e-5)
    (count,) = count_kernels(function, on_gpu=True)
    assert count.bytes_read == values.nbytes
    assert count.reads_texture


@pytest.mark.parametrize("target", ["adreno", "mali", pytest.param("cuda", marks=pytest.mark.nvcc)])
def test_code_is_generated_for_devices_that_are_not_here(target):
    spec = resolve("cuda") if target == "cuda" else resolve("opencl", target)
    kernels = {
        "copy": (module.copy(spec), "source"),
        "shuttle": (module.shuttle(spec, 1 << 14, 4, 3), "second"),
        "fp16": (module.arithmetic(spec, "float16", 256, 3), "half"),
        "int8": (module.arithmetic(spec, "int32", 256, 3), "tvmflow_dot4"),
        "nothing": (module.nothing(spec), "result"),
    }
    if spec.kind == "opencl":
        kernels["texels"] = (module.texels(spec), "read_imagef")
    for name, (function, word) in kernels.items():
        built = module.build(function, spec)
        (kernel,) = (part for part in built.imports if part.kind == spec.kind)
        assert word in kernel.inspect_source(), name


@pytest.fixture
def counted(monkeypatch, tmp_path):
    """A device that is measured in no time, and how often it was."""
    measured = []

    class Device:
        def __init__(self, kind, info):
            measured.append((kind, info.driver))

        def measure(self):
            return KNOWN

    monkeypatch.setattr(module, "_Device", Device)
    monkeypatch.setenv("TVMFLOW_CACHE_DIR", str(tmp_path))
    monkeypatch.delenv("TVMFLOW_CACHE", raising=False)
    return measured


INFO = DeviceInfo("opencl", 0, "a device", driver="1", version="OpenCL 3.0", compute_units=2)


def test_a_device_is_measured_once(counted):
    assert module.ceilings("opencl", INFO) == KNOWN
    assert module.ceilings("opencl", INFO) == KNOWN
    assert len(counted) == 1
    assert module.ceilings("opencl", INFO, fresh=True) == KNOWN
    assert len(counted) == 2


def test_what_was_measured_on_a_busy_machine_is_measured_again(counted, monkeypatch):
    series = [
        Ceilings(10.0, 90.0, 5.0, texture_gbps=3.0, date="first", others_share=0.6),
        Ceilings(8.0, 120.0, 4.0, int8_gops=400.0, date="second", others_share=0.11),
        Ceilings(9.0, 110.0, 6.0, date="third", others_share=0.1),
    ]
    found = iter(series)
    monkeypatch.setattr(module._Device, "measure", lambda _: next(found))
    monkeypatch.setattr(module, "others_now", lambda: now)
    now = 0.05
    assert module.ceilings("opencl", INFO) == series[0]
    now = 0.4
    # As busy as then: nothing would be gained.
    assert module.ceilings("opencl", INFO) == series[0]
    now = None
    assert module.ceilings("opencl", INFO) == series[0]
    now = 0.05
    both = Ceilings(10.0, 120.0, 4.0, 3.0, None, 400.0, date="second", others_share=0.11)
    assert module.ceilings("opencl", INFO) == both
    all_three = dataclasses.replace(both, date="third", others_share=0.1)
    # The machine was quiet: no further measurement.
    assert [module.ceilings("opencl", INFO) for _ in range(2)] == [all_three] * 2
    assert next(found, None) is None


def test_a_file_without_date_and_load_is_read(counted, tmp_path):
    module.ceilings("opencl", INFO)
    (path,) = (tmp_path / "ceilings").iterdir()
    content = json.loads(path.read_text())
    del content["date"], content["others_share"]
    path.write_text(json.dumps(content))
    assert module.ceilings("opencl", INFO) == KNOWN
    assert len(counted) == 1


def test_date_and_load_in_words():
    assert KNOWN.measured_text() is None
    quiet = dataclasses.replace(KNOWN, date="2026-01-02T03:04:05+00:00", others_share=0.04)
    took = "2026-01-02 03:04:05 UTC; other programs took 4% of the processors"
    assert quiet.measured_text() == took
    disturbed = dataclasses.replace(KNOWN, others_share=0.25)
    assert disturbed.measured_text().startswith("other programs took 25% of the processors, so")


def test_another_driver_is_another_device(counted):
    for driver in ("1", "2", "1"):
        module.ceilings("opencl", dataclasses.replace(INFO, driver=driver))
    assert counted == [("opencl", "1"), ("opencl", "2")]


def test_other_threads_of_the_host_are_another_device(counted, monkeypatch):
    host = dataclasses.replace(INFO, kind="llvm")
    for threads in (1, 2, 1):
        monkeypatch.setattr(module.tvm.runtime, "num_threads", lambda threads=threads: threads)
        module.ceilings("llvm", host)
        # TVM binds threads to cores: how many this one may use depends on what ran before.
        module.ceilings("llvm", dataclasses.replace(host, compute_units=1))
        module.ceilings("opencl", INFO)
    assert [kind for kind, _ in counted] == ["llvm", "opencl", "llvm"]


DAMAGED = [
    *("", "{", "7", '{"copy_gbps": 1.0}', '{"colour": 3}'),
    '{"copy_gbps": null, "fp32_gflops": 1.0, "launch_us": 1.0}',
]


@pytest.mark.parametrize("content", DAMAGED)
def test_a_damaged_file_is_measured_again(counted, tmp_path, content):
    module.ceilings("opencl", INFO)
    (path,) = (tmp_path / "ceilings").iterdir()
    path.write_text(content)
    assert module.ceilings("opencl", INFO) == KNOWN
    assert module.ceilings("opencl", INFO) == KNOWN
    assert len(counted) == 2


def test_nothing_is_kept_where_nothing_should_be(counted, monkeypatch, tmp_path):
    monkeypatch.setenv("TVMFLOW_CACHE", "0")
    module.ceilings("opencl", INFO)
    module.ceilings("opencl", INFO)
    assert len(counted) == 2
    assert not list(tmp_path.iterdir())


def test_a_folder_that_cannot_be_written_is_no_error(counted, monkeypatch, tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("")
    monkeypatch.setenv("TVMFLOW_CACHE_DIR", str(blocked))
    assert module.ceilings("opencl", INFO) == KNOWN


@pytest.mark.parametrize("kind", KINDS)
def test_ceilings_of_this_machine_are_plausible(kind, monkeypatch):
    monkeypatch.setattr(module, "_times", lambda measure: [measure(), measure()])
    monkeypatch.setattr(module, "_LAUNCHES", 20)
    # Two passes for the largest set.
    monkeypatch.setattr(module, "_CACHED_BYTES", 1 << 25)
    monkeypatch.setattr(module._Device, "_copied", lambda self: 1 << 20)
    found = device(kind).measure()
    assert 0.1 < found.copy_gbps < 1e5
    assert 0.5 < found.fp32_gflops < 1e6
    assert 0 < found.launch_us < 1e5
    assert found.int8_gops > 0
    assert found.texture_gbps is None or 0 < found.texture_gbps < 1e5
    assert all(0.1 < cache.gbps < 1e5 for cache in found.caches)
    assert datetime.datetime.fromisoformat(found.date).utcoffset() == datetime.timedelta(0)
    assert found.others_share is None or 0 <= found.others_share <= 1
