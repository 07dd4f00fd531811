"""The cache of built programs: used when sound, rebuilt when not, safe between processes."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow


def entries(env):
    return sorted(Path(env["TVMFLOW_CACHE_DIR"]).glob("*.program"))


def counts(result):
    return {name: result[name] for name in ("hits", "misses", "rebuilt", "stored")}


FRESH = {"hits": 0, "misses": 1, "rebuilt": 0, "stored": 1}
HIT = {"hits": 1, "misses": 0, "rebuilt": 0, "stored": 0}
#: Settings under which the same module loaded again asks the cache again.
REBUILD = {"TVMFLOW_KEPT_PROGRAMS": "0"}
REBUILT = {"hits": 0, "misses": 0, "rebuilt": 1, "stored": 1}


def with_own_caches(env, folder):
    """Return the environment with empty caches of this project and of the driver."""
    pocl = folder / "pocl"
    pocl.mkdir(exist_ok=True)
    return {
        **env,
        "TVMFLOW_CACHE_DIR": str(folder / "cache"),
        "TVMFLOW_CACHE": "1",
        "POCL_CACHE_DIR": str(pocl),
        "POCL_KERNEL_CACHE": "0",
    }


def test_a_second_process_takes_the_program_from_the_cache(driver, script, tmp_path):
    env = with_own_caches(driver.env, tmp_path)
    first = script("cached.py", env=env)
    assert counts(first) == FRESH
    second = script("cached.py", env=env)
    assert counts(second) == HIT
    assert second["results"] == first["results"] == [24.0]


def test_pocl_stores_a_program_after_half_of_its_kernels_ran(pocl, script, tmp_path):
    env = with_own_caches(pocl.env, tmp_path)
    result = script("cached.py", json.dumps({"kernels": 4, "runs": 2}), env=env)
    assert counts(result) == FRESH


def test_a_module_can_be_built_before_it_runs(driver, script, tmp_path):
    env = with_own_caches(driver.env, tmp_path)
    settings = json.dumps({"prebuild": True, "runs": 0})
    assert counts(script("cached.py", settings, env=env)) == FRESH
    second = script("cached.py", env=env)
    assert counts(second) == HIT
    assert second["results"] == [24.0]


def test_building_twice_stores_once(fake, script, builds):
    settings = json.dumps({"prebuild": True, "runs": 2})
    assert counts(script("cached.py", settings, env=fake)) == FRESH
    assert builds() == ["source"]


def test_one_build_and_one_load(fake, script, builds):
    script("cached.py", env=fake)
    script("cached.py", env=fake)
    assert builds() == ["source", "binary"]


def test_a_module_opened_again_is_not_built_again(fake, script, builds):
    settings = json.dumps({"kernels": [3, 3, 2, 3]})
    assert counts(script("cached.py", settings, env=fake)) == {**FRESH, "misses": 2, "stored": 2}
    assert builds() == ["source", "source"]


def test_programs_beyond_the_number_kept_are_released(fake, script, builds):
    settings = json.dumps({"kernels": [3, 2, 3, 2]})
    result = script("cached.py", settings, env=fake | {"TVMFLOW_KEPT_PROGRAMS": "1"})
    assert counts(result) == {"hits": 2, "misses": 2, "rebuilt": 0, "stored": 2}
    assert builds() == ["source", "source", "binary", "binary"]


def test_entries_belong_to_their_user_alone(fake, script):
    script("cached.py", env=fake)
    (entry,) = entries(fake)
    assert stat.S_IMODE(entry.stat().st_mode) == 0o600
    assert stat.S_IMODE(entry.parent.stat().st_mode) == 0o700


def test_every_damage_is_noticed(fake, script, builds):
    result = script("damage.py", "--exact", env=fake | REBUILD)
    assert result["unnoticed"] == []
    assert result["tried"] > 20
    # Only the last of all builds trusted its entry.
    assert [number for number, kind in enumerate(builds()) if kind == "binary"] == [
        result["tried"] + 5
    ]


@pytest.mark.parametrize("mode", [0o620, 0o602], ids=oct)
def test_an_entry_that_others_can_write_is_not_trusted(fake, script, builds, mode):
    script("cached.py", env=fake)
    entries(fake)[0].chmod(mode)
    assert counts(script("cached.py", env=fake)) == REBUILT
    assert builds() == ["source", "source"]


def test_an_entry_beyond_the_limit_is_not_read(fake, script, builds):
    """Its header may say anything: a file can be larger than memory, and take no room."""
    script("cached.py", env=fake)
    (entry,) = entries(fake)
    size = 1 << 40
    with open(entry, "r+b") as file:
        file.truncate(size)
        file.seek(48)
        file.write((size - 88).to_bytes(8, "little"))
    assert counts(script("cached.py", env=fake)) == REBUILT


def test_an_entry_that_the_driver_refuses_is_rebuilt(fake, script, builds):
    script("cached.py", env=fake)
    result = script("cached.py", env={**fake, "FAKE_REFUSE": "binary"})
    assert counts(result) == REBUILT
    assert builds() == ["source", "source"]


def test_a_damaged_entry_never_reaches_a_real_driver(pocl, script, tmp_path):
    # PoCL ends the process when it loads nonsense.
    env = with_own_caches(pocl.env, tmp_path) | REBUILD
    result = script("damage.py", "--few", env=env)
    assert result["unnoticed"] == []


@pytest.mark.parametrize(
    "change",
    [{"FAKE_VERSION": "1.1"}, {"FAKE_DEVICES": "Fake:Other GPU:gpu"}],
    ids=["driver version", "device name"],
)
def test_another_driver_or_device_has_entries_of_its_own(fake, script, change):
    script("cached.py", env=fake)
    assert counts(script("cached.py", env={**fake, **change})) == FRESH
    assert len(entries(fake)) == 2


def test_other_build_options_have_entries_of_their_own(fake, script):
    script("cached.py", env=fake)
    result = script("cached.py", json.dumps({"build_options": "-DX=1"}), env=fake)
    assert counts(result) == FRESH
    # From the environment too, where they are the same.
    assert counts(script("cached.py", env={**fake, "TVMFLOW_OPENCL_OPTIONS": "-DX=1"})) == HIT
    assert counts(script("cached.py", env={**fake, "TVMFLOW_OPENCL_OPTIONS": "-DX=2"})) == FRESH


def test_the_cache_can_be_switched_off(fake, script):
    nothing = {"hits": 0, "misses": 0, "rebuilt": 0, "stored": 0}
    result = script("cached.py", env={**fake, "TVMFLOW_CACHE": "0"})
    assert counts(result) == nothing
    assert counts(script("cached.py", json.dumps({"cache": False}), env=fake)) == nothing
    assert not Path(fake["TVMFLOW_CACHE_DIR"]).exists()


def test_a_folder_that_cannot_be_made_means_no_cache(fake, script, tmp_path):
    (tmp_path / "file").write_text("in the way")
    env = {**fake, "TVMFLOW_CACHE_DIR": str(tmp_path / "file" / "cache")}
    result = script("cached.py", env=env)
    assert result["stored"] == 0


@pytest.mark.skipif(os.geteuid() == 0, reason="root can write everywhere")
def test_a_folder_that_cannot_be_written_means_no_cache(fake, script, tmp_path):
    folder = tmp_path / "read-only"
    folder.mkdir(mode=0o500)
    result = script("cached.py", env={**fake, "TVMFLOW_CACHE_DIR": str(folder)})
    assert result["stored"] == 0


def test_the_folder_follows_xdg(fake, script, tmp_path):
    env = {**fake, "XDG_CACHE_HOME": str(tmp_path / "xdg")}
    env["TVMFLOW_CACHE_DIR"] = ""
    script("cached.py", env=env)
    assert len(list((tmp_path / "xdg" / "tvmflow" / "programs").glob("*.program"))) == 1


def test_entries_unused_for_longest_are_removed(fake, script):
    script("cached.py", json.dumps({"kernels": [1, 2, 3, 4, 5]}), env=fake)
    sizes = {entry: entry.stat().st_size for entry in entries(fake)}
    oldest = min(sizes, key=lambda entry: entry.stat().st_mtime_ns)
    now = time.time()
    for age, entry in enumerate(sorted(sizes, key=lambda entry: entry != oldest)):
        os.utime(entry, (now - 1000 + age, now - 1000 + age))
    limit = sum(sizes.values())
    settings = {"kernels": 7, "cache_limit_bytes": limit}
    assert script("cached.py", json.dumps(settings), env=fake)["stored"] == 1
    left = entries(fake)
    assert oldest not in left
    assert sum(entry.stat().st_size for entry in left) <= limit


def test_left_over_temporary_files_are_removed(fake, script):
    script("cached.py", env=fake)
    folder = Path(fake["TVMFLOW_CACHE_DIR"])
    stale, recent = folder / "tmp-0123-1-0", folder / "tmp-4567-1-0"
    for file in (stale, recent):
        file.write_bytes(b"half")
    os.utime(stale, (0, 0))
    script("cached.py", json.dumps({"kernels": 2}), env=fake)
    assert not stale.exists()
    assert recent.exists()


def test_processes_at_the_same_time(fake, script):
    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(lambda _: script("cached.py", env=fake), range(8)))
    assert all(result["results"] == results[0]["results"] for result in results)
    assert all(result["rebuilt"] == 0 for result in results)
    assert len(entries(fake)) == 1
    assert not list(Path(fake["TVMFLOW_CACHE_DIR"]).glob("tmp-*"))
    assert counts(script("cached.py", env=fake)) == HIT


@pytest.mark.slow
def test_processes_that_are_killed_while_they_store(fake, script):
    settings = json.dumps({"kernels": 400})
    path = Path(__file__).with_name("scripts") / "cached.py"
    for delay in range(12):
        process = subprocess.Popen(
            [sys.executable, str(path), settings],
            env={**os.environ, **fake},
            stdout=subprocess.DEVNULL,
        )
        time.sleep(0.6 + 0.05 * delay)
        process.kill()
        process.wait()
        result = script("cached.py", settings, env=fake)
        # The killed process left a whole entry or none.
        assert result["rebuilt"] == 0
        assert result["hits"] + result["stored"] == 1
        for entry in entries(fake):
            entry.unlink()
