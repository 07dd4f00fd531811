"""Kernels of the example networks are as good on phones' GPUs as their budgets require.

A failing test names the kernel, the worse figure, and how to regenerate the budgets.
"""

from __future__ import annotations

from functools import cache

import gpu_budget
import pytest
from gpu_budget import LAUNCH, MACHINE, NETWORK, Change, advice, changes, launch_rows, machine_rows
from gpu_launches import GPUS, NETWORKS, before_scheduling, network_launches, scheduled
from launches import launches
from tvm import s_tir

from tvmflow.devices.gpus import find_gpu
from tvmflow.schedules import common, conv2d
from tvmflow.schedules.common import Workload

BUDGETS = gpu_budget.read()["budgets"]
before = cache(before_scheduling)


@cache
def kernels(network: str, preset: str):
    return counted(network, preset)


def counted(network: str, preset: str):
    """Compile, schedule and analyse a network, with all patches unless it is cached."""
    job = before(network, preset)
    functions = scheduled(job)
    return job, functions, launches(job.mod, functions, job.target)


def worse_launches(network: str, preset: str, found) -> list[Change]:
    places = [(f"launches, {network}, {name}", find_gpu(name)) for name in GPUS]
    return [
        change
        for place, gpu in places
        if gpu.preset == preset
        for change in changes(place, BUDGETS[place], launch_rows(found, gpu), LAUNCH)
        if change.is_worse
    ]


def worse_machine_code(gpu_name: str) -> list[Change]:
    gpu, worse = find_gpu(gpu_name), list[Change]()
    for network in NETWORKS:
        job, functions, found = kernels(network, gpu.preset)
        place = f"machine, {network}, {gpu_name}"
        now = machine_rows(found, functions, job, gpu)
        worse += [c for c in changes(place, BUDGETS[place], now, MACHINE) if c.is_worse]
    return worse


# The networks as they are ------------------------------------------------------------------

#: Networks that take long to schedule.
LONG = ("resnet50", "mobilevit")


@pytest.mark.parametrize(
    "network",
    [n if n in LONG else pytest.param(n, marks=pytest.mark.quick) for n in NETWORKS],
)
def test_schedules_for_adreno(network):
    worse = worse_launches(network, "adreno", kernels(network, "adreno")[2])
    assert not worse, advice(worse)


@pytest.mark.slow
def test_schedules_for_mali():
    worse = [c for n in NETWORKS for c in worse_launches(n, "mali", kernels(n, "mali")[2])]
    assert not worse, advice(worse)


# One test of one case per GPU: all cases run only if Mesa is installed.


@pytest.mark.slow
@pytest.mark.mesa
def test_machine_code_for_adreno_660():
    worse = worse_machine_code("adreno-660")
    assert not worse, advice(worse)


@pytest.mark.slow
@pytest.mark.mesa
def test_machine_code_for_adreno_740():
    worse = worse_machine_code("adreno-740")
    assert not worse, advice(worse)


@pytest.mark.slow
@pytest.mark.mesa
def test_machine_code_for_adreno_830():
    worse = worse_machine_code("adreno-830")
    assert not worse, advice(worse)


def test_all_networks_have_budgets():
    places = {f"launches, {network}, {gpu}" for network in NETWORKS for gpu in GPUS}
    places |= {f"machine, {n}, {gpu}" for n in NETWORKS for gpu in gpu_budget.MACHINE_GPUS}
    assert set(BUDGETS) == places


# Worse ones --------------------------------------------------------------------------------


def tiles_of_one_vector(monkeypatch):
    monkeypatch.setattr(conv2d, "_gpu_tile", lambda *_: (1, 1, 1))


def groups_of_twelve(monkeypatch):
    usual = Workload.bind_outer
    monkeypatch.setattr(
        Workload, "bind_outer", lambda self, loops, *_: usual(self, loops, (1, 3, 4))
    )


def no_vectors(monkeypatch):
    monkeypatch.setattr(s_tir.Schedule, "vectorize", lambda *_: None)


def copies_of_single_numbers(monkeypatch):
    """Have values that are read once and kept in registers be read one by one."""
    monkeypatch.setattr(common, "LANES", ())


@pytest.mark.parametrize(
    ("mutation", "figure"),
    [
        (tiles_of_one_vector, "reads"),
        (groups_of_twelve, "lanes"),
        (no_vectors, "reads"),
        (copies_of_single_numbers, "reads"),
    ],
)
def test_worse_schedules_are_noticed(monkeypatch, mutation, figure):
    network = "mobilenet_v1"
    mutation(monkeypatch)
    worse = worse_launches(network, "adreno", counted(network, "adreno")[2])
    # Both the network as a whole and its kernels are reported.
    noticed = {change.kernel for change in worse if change.figure.name == figure}
    assert NETWORK in noticed
    assert len(noticed) > 5
    text = advice(worse)
    assert "launches, mobilenet_v1, adreno-" in text
    assert f": {figure} " in text or len(worse) > 12
    assert "Remedy:" in text
    assert gpu_budget.REGENERATE in text


def test_stores_of_single_numbers_are_noticed(monkeypatch):
    """Tensors are buffers here: a texel is always written as a whole."""
    gpu, options = find_gpu("adreno-740"), {"storage": "buffer"}
    usual = launch_rows(network_launches("facebox_net", "adreno", **options), gpu)
    no_vectors(monkeypatch)
    now = launch_rows(network_launches("facebox_net", "adreno", **options), gpu)
    worse = {(c.kernel, c.figure.name) for c in changes("", usual, now, LAUNCH) if c.is_worse}
    assert {(kernel, "writes") for kernel in usual if "conv2d" in kernel} <= worse


@pytest.mark.mesa
@pytest.mark.slow
def test_worse_machine_code_is_noticed(monkeypatch):
    tiles_of_one_vector(monkeypatch)
    job, functions, found = counted("facebox_net", "adreno")
    gpu, place = find_gpu("adreno-740"), "machine, facebox_net, adreno-740"
    now = machine_rows(found, functions, job, gpu)
    worse = [c for c in changes(place, BUDGETS[place], now, MACHINE) if c.is_worse]
    assert {"reads", "multiply-adds"} <= {change.figure.name for change in worse}


# Comparing ---------------------------------------------------------------------------------

#: reads, writes, lanes, working, items, waves, registers, spilled
ROW = [0.1, 0.01, 0.9, 1.0, 2000.0, 8.0, 80.0, 0.0]


def changed(**figures) -> list[Change]:
    names = [figure.name for figure in LAUNCH]
    row = list(ROW)
    for name, value in figures.items():
        row[names.index(name)] = value
    return list(changes("place", {"f_kernel": ROW}, {"f_kernel": row}, LAUNCH))


@pytest.mark.parametrize(
    "figures",
    [{"reads": 0.104}, {"reads": 0.096}, {"lanes": 0.87}, {"waves": 8.0}, {"registers": 84.0}],
)
def test_margin(figures):
    assert changed(**figures) == []


@pytest.mark.parametrize(
    ("name", "value"),
    [("reads", 0.2), ("writes", 0.011), ("lanes", 0.19), ("working", 0.9), ("items", 1000.0),
     ("waves", 4.0), ("registers", 96.0), ("spilled", 4.0)],
)  # fmt: skip
def test_worse_figures(name, value):
    (change,) = changed(**{name: value})
    assert change.is_worse
    assert not change.is_better
    assert f"place, f_kernel: {name} {value:g} where at" in str(change)


@pytest.mark.parametrize(("name", "value"), [("reads", 0.05), ("items", 4000.0), ("waves", 16.0)])
def test_better_figures(name, value):
    (change,) = changed(**{name: value})
    assert change.is_better
    assert not change.is_worse


def test_kernels_without_budgets_are_worse():
    found = list(changes("place", {}, {"new_kernel": ROW}, LAUNCH))
    assert {c.kernel for c in found if c.is_worse} == {"new_kernel"}
