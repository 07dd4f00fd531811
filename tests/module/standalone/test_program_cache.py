"""Binaries of programs: in the application's folder, and in the library's sidecar."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from support.commands import run
from support.drivers import POCL, system_loader
from support.fake_opencl import Fake, build_fake, compile_c
from support.small_plans import ADD, Plan, add_plan
from support.standalone_api import CallError, Model
from support.threads import in_threads

from tvmflow.errors import ArtifactError
from tvmflow.journal.frames import HEADER_BYTES
from tvmflow.module.standalone import programs

SIZE, SCALE = 64, 2.0
PROGRAMS = 3
THROUGH_A_LOADER = f"""
import sys
sys.path.insert(0, {str(Path(__file__).parents[2])!r})
import numpy as np
from support.standalone_api import Model
with Model(sys.argv[1], opencl_library="libOpenCL.so.1", cache_folder=sys.argv[2]) as model:
    model(np.ones(64, np.float32))
"""
X = np.random.default_rng(5).normal(size=SIZE).astype(np.float32)


def many_programs(options: str = "") -> tuple[Plan, np.ndarray]:
    """Return a plan of ``y = 2 x + w`` three times, each in its own program."""
    w = np.random.default_rng(1).normal(size=SIZE).astype(np.float32)
    plan = Plan(ADD, options)
    tensors = [plan.buffer(4 * SIZE) for _ in range(PROGRAMS + 1)]
    weight = plan.buffer(4 * SIZE)
    plan.weight(weight, w)
    for index in range(PROGRAMS):
        program = plan.program(ADD + f"// {index}\n", options) if index else 0
        x, y = tensors[index : index + 2]
        plan.launch("add", [x, weight, y, np.float32(SCALE)], (SIZE,), program=program)
    plan.input("x", (SIZE,), tensors[0])
    plan.output("y", (SIZE,), tensors[-1])
    y = X.astype(np.float64)
    for _ in range(PROGRAMS):
        y = SCALE * y + w
    return plan, y


@pytest.fixture(scope="module")
def built(link, tmp_path_factory):
    """Return the library, its driver, and the expected result."""
    plan, expected = many_programs()
    return link(plan), build_fake(tmp_path_factory.mktemp("built")), expected


class Case:
    """A library with a driver and a cache folder."""

    def __init__(self, library: Path, driver: Path, expected: np.ndarray, folder: Path):
        self.library, self.driver, self.expected, self.folder = library, driver, expected, folder
        self.fake = Fake(driver)

    def run(self, library: Path | None = None, **options) -> tuple[int, int, dict]:
        """Return the programs built from source and read as binaries, and the description."""
        self.fake.fake_reset()
        options = {"opencl_library": self.driver, "cache_folder": self.folder, **options}
        with Model(library or self.library, **options) as model:
            (found,) = model(X)
            description = model.describe()
        np.testing.assert_allclose(found, self.expected, rtol=1e-5, atol=1e-5)
        assert not self.fake.violations
        assert not self.fake.live
        return self.fake.fake_count(b"source"), self.fake.fake_count(b"binary"), description

    @property
    def files(self) -> list[Path]:
        return sorted(self.folder.glob("*"))


@pytest.fixture
def case(built, tmp_path):
    case = Case(*built, tmp_path / "a" / "b")
    yield case
    for name in ("DRIVER", "NAME", "BINARIES", "PLATFORM_NAME"):
        case.fake.set(name, None)
    programs.sidecar_path(built[0]).unlink(missing_ok=True)


def counts(result):
    return result[:2]


def test_the_second_instance_builds_nothing(case):
    assert counts(case.run()) == (PROGRAMS, 0)
    assert [path.stat().st_mode & 0o777 for path in case.files] == [0o600] * PROGRAMS
    assert case.folder.stat().st_mode & 0o777 == 0o700
    source, binary, description = case.run()
    assert (source, binary) == (0, PROGRAMS)
    assert (description["programs_from_cache"], description["cache"]) == (True, "")
    assert (description["programs_built"], description["programs_shipped"]) == (0, 0)


@pytest.mark.parametrize("setting", ["DRIVER", "NAME", "VERSION"])
def test_another_device_or_driver_builds_its_own(case, setting):
    case.run()
    case.fake.set(setting, "OpenCL 2.0 another")
    assert counts(case.run()) == (PROGRAMS, 0)
    case.fake.set(setting, None)
    assert counts(case.run()) == (0, PROGRAMS)


def test_pocl_s_binaries_depend_on_how_it_compiles(case, monkeypatch):
    def built(value: str) -> int:
        monkeypatch.setenv("POCL_WORK_GROUP_SPECIALIZATION", value)
        return counts(case.run())[0]

    assert [built(value) for value in "01"] == [PROGRAMS, 0]
    case.fake.set("PLATFORM_NAME", "Portable Computing Language")
    case.fake.set("DRIVER", "3.1")
    assert [built(value) for value in "0101"] == [PROGRAMS, PROGRAMS, 0, 0]


def test_other_options_are_another_program(case, link):
    case.run()
    assert counts(case.run(link(many_programs("-DOTHER")[0]))) == (PROGRAMS, 0)
    assert len(case.files) == 2 * PROGRAMS


def flip(content: bytes, at: int) -> bytes:
    return content[:at] + bytes([content[at] ^ 4]) + content[at + 1 :]


@pytest.mark.parametrize(
    "damage",
    [
        lambda content: content[:0],
        lambda content: content[:40],
        lambda content: content[:-1],
        lambda content: content + b"x",
        *(lambda content, at=at: flip(content, at) for at in (0, 8, 12, 20, 50, 60, 88, 200)),
    ],
)
def test_a_damaged_file_is_built_again_and_replaced(case, damage):
    case.run()
    path = case.files[1]
    content = path.read_bytes()
    path.write_bytes(damage(content))
    assert counts(case.run()) == (1, PROGRAMS - 1)
    assert path.read_bytes() == content


def test_what_the_driver_refuses_is_built_again(case):
    case.run()
    case.fake.set("BINARIES", "refuse")
    source, binary, _ = case.run()
    assert (source, binary) == (PROGRAMS, 0)


def test_a_driver_without_binaries_builds_each_time(case):
    case.fake.set("BINARIES", "none")
    case.run()
    assert counts(case.run()) == (PROGRAMS, 0)
    assert not case.files


@pytest.mark.parametrize("mode", [0o620, 0o602], ids=oct)
def test_a_file_that_others_can_write_is_not_trusted(case, mode):
    case.run()
    case.files[0].chmod(mode)
    assert counts(case.run()) == (1, PROGRAMS - 1)


@pytest.mark.timeout(60)
@pytest.mark.parametrize("kind", ["FIFO", "device", "folder"])
def test_what_is_no_regular_file_is_not_opened(case, kind):
    case.run()
    path = case.files[0]
    path.unlink()
    if kind == "FIFO":
        os.mkfifo(path)
    elif kind == "device":
        path.symlink_to("/dev/zero")
    else:
        path.mkdir()
    assert counts(case.run()) == (1, PROGRAMS - 1)


def test_a_file_beyond_the_limit_is_not_read(case):
    """Its header may claim any size: a sparse file can be larger than memory."""
    case.run()
    size = 1 << 40
    with case.files[0].open("r+b") as file:
        file.truncate(size)
        file.seek(48)
        file.write((size - 88).to_bytes(8, "little"))
    assert counts(case.run()) == (1, PROGRAMS - 1)


@pytest.mark.timeout(60)
@pytest.mark.parametrize("suffix", [".weights", ".programs"])
def test_a_fifo_as_a_sidecar_is_not_waited_for(case, link, suffix):
    plan, _ = many_programs()
    library = link(plan, weights=b"")
    library.with_name(f"{library.name}.weights").write_bytes(plan.weights())
    path = library.with_name(library.name + suffix)
    path.unlink(missing_ok=True)
    os.mkfifo(path)
    if suffix == ".programs":
        assert counts(case.run(library)) == (PROGRAMS, 0)
    else:
        with pytest.raises(CallError, match="it is no regular file"):
            case.run(library)


def test_a_temporary_file_s_link_is_not_followed(case, tmp_path):
    """Its name contains the process and an address, which others can guess."""
    victim = tmp_path / "victim"
    victim.write_text("kept")
    case.run()
    for path in case.files:
        path.unlink()
    program = tmp_path / "links.so"
    compile_c(program, "-shared", Path(__file__).with_name("link_first.c"))
    code = THROUGH_A_LOADER.replace('"libOpenCL.so.1"', "sys.argv[3]")
    command = (sys.executable, "-c", code, case.library, case.folder, case.driver)
    done = run(*command, LD_PRELOAD=program, LINK_TO=victim)
    assert "linked" in done.stderr
    assert victim.read_text() == "kept"
    assert len(case.files) == PROGRAMS


def test_binaries_are_taken_when_they_are_whole(case):
    case.fake.set("BINARIES", "late")
    case.fake.set("PLATFORM_NAME", "Portable Computing Language")
    case.fake.set("DRIVER", "3.1")
    assert counts(case.run()) == (PROGRAMS, 0)
    assert counts(case.run()) == (0, PROGRAMS)
    assert case.fake.fake_count(b"incomplete") == 0


def test_a_folder_that_cannot_be_is_only_noted(case, tmp_path):
    (tmp_path / "file").write_text("no folder")
    source, _, description = case.run(cache_folder=tmp_path / "file" / "sub")
    assert source == PROGRAMS
    assert "nothing is kept" in description["cache"]
    # One of the files cannot be moved into place.
    case.run()
    name = case.files[0].name
    case.files[0].unlink()
    (case.folder / name / "something").mkdir(parents=True)
    assert "nothing is kept" in case.run()[2]["cache"]
    assert not list(case.folder.glob("tmp-*"))


def test_no_folder_keeps_nothing(case):
    assert counts(case.run(cache_folder=None)) == (PROGRAMS, 0)
    assert counts(case.run(cache_folder=None)) == (PROGRAMS, 0)


def test_a_writer_that_died_leaves_nothing_for_long(case):
    case.folder.mkdir(parents=True)
    old, new = case.folder / "tmp-1", case.folder / "tmp-2"
    for path in (old, new):
        path.write_bytes(b"half")
    os.utime(old, (time.time() - 7200,) * 2)
    case.run()
    assert (old.exists(), new.exists()) == (False, True)


def test_the_files_used_least_recently_go(case, link):
    case.run()
    size = max(path.stat().st_size for path in case.files)
    limit = (PROGRAMS + 1) * size
    other = link(many_programs("-DOTHER")[0], f"-DTF_CACHE_LIMIT_BYTES={limit}u")
    for index, path in enumerate(case.files):
        os.utime(path, (1e9 + index,) * 2)
    kept = case.files[-1]
    case.run(other)
    assert sum(path.stat().st_size for path in case.files) <= limit
    assert (len(case.files), kept.exists()) == (PROGRAMS + 1, True)


def test_instances_write_the_same_folder_at_once(case):
    def work(_):
        with Model(case.library, opencl_library=case.driver, cache_folder=case.folder) as model:
            np.testing.assert_allclose(model(X)[0], case.expected, rtol=1e-5, atol=1e-5)

    in_threads(8, work)
    assert counts(case.run()) == (0, PROGRAMS)
    assert len(case.files) == PROGRAMS


# ---- The library's sidecar --------------------------------------------------------------------


@pytest.fixture
def shipped(case) -> Path:
    """Return the sidecar with binaries of this driver, and of another one."""
    case.run()
    path = programs.sidecar_path(case.library)
    taken = list(programs.from_folder(case.folder, {"device": "Fake GPU"}))
    others = [p._replace(key=bytes(32), binary=b"\xd7J" * 9) for p in taken[:1]]
    assert programs.update(path, others + taken).added == PROGRAMS + 1
    return path


def test_binaries_beside_the_library_are_taken(case, shipped):
    source, binary, description = case.run(cache_folder=None)
    assert (source, binary) == (0, PROGRAMS)
    assert (description["programs_built"], description["programs_shipped"]) == (0, PROGRAMS)
    # Neither another driver's binaries are used, nor those that the driver refuses.
    case.fake.set("DRIVER", "2.0")
    assert counts(case.run(cache_folder=None)) == (PROGRAMS, 0)


def test_the_folder_has_what_the_shipped_file_has_not(case, shipped, tmp_path):
    folder = tmp_path / "new"
    case.fake.set("DRIVER", "2.0")
    source, _, description = case.run(cache_folder=folder)
    assert (source, description["programs_built"]) == (PROGRAMS, PROGRAMS)
    source, _, description = case.run(cache_folder=folder)
    assert (source, description["programs_shipped"]) == (0, 0)


def test_what_is_there_is_replaced(case, shipped):
    again = programs.from_folder(case.folder, {"device": "renamed"})
    assert programs.update(shipped, again) == programs.Updated(0, PROGRAMS, 0, 0)
    read = programs.read(shipped)
    assert [program.description["device"] for program in read] == ["Fake GPU", *["renamed"] * 3]
    assert read[0].binary == b"\xd7J" * 9
    assert counts(case.run(cache_folder=None)) == (0, PROGRAMS)


def test_what_other_sources_gave_is_dropped(case, shipped):
    first, *others = programs.read(shipped)
    of_these = [p._replace(description={programs.SOURCE: "1"}) for p in others]
    # The file's other binaries are unknown.
    assert programs.update(shipped, of_these) == programs.Updated(0, PROGRAMS, 0, 0)
    next_ones = [p._replace(key=b"k" * 32, description={programs.SOURCE: "2"}) for p in others[:1]]
    assert programs.update(shipped, next_ones) == programs.Updated(1, 0, PROGRAMS, 0)
    assert programs.read(shipped) == [first, *next_ones]


def test_a_damaged_file_is_written_with_what_is_sound(case, shipped):
    content = shipped.read_bytes()
    shipped.write_bytes(flip(content, 20)[:-1])
    whole = programs.read(shipped)
    assert len(whole) == PROGRAMS - 1
    updated = programs.update(shipped, whole)
    assert (updated.replaced, updated.damaged_bytes > 200) == (PROGRAMS - 1, True)
    assert programs.update(shipped, whole).damaged_bytes == 0
    shipped.write_bytes(flip(content, 3))
    assert programs.update(shipped, []) == programs.Updated(0, 0, 0, HEADER_BYTES)
    shipped.write_bytes(b"something else")
    with pytest.raises(ArtifactError, match="begins with"):
        programs.update(shipped, whole)
    assert shipped.read_bytes() == b"something else"
    assert not list(shipped.parent.glob(".*.tmp"))


def test_a_binary_that_no_frame_takes_is_refused(tmp_path):
    with pytest.raises(ArtifactError, match="less than 16 MiB"):
        programs.update(tmp_path / "p", [programs.Program(bytes(32), {}, bytes(1 << 24))])
    assert not (tmp_path / "p").exists()


def test_a_shipped_file_that_is_cut_or_damaged_costs_what_it_touches(case, shipped):
    content = shipped.read_bytes()
    rng = np.random.default_rng(11)
    lost = []
    for at in rng.choice(len(content), 60, replace=False):
        for damaged in (content[:at], flip(content, at)):
            shipped.write_bytes(damaged)
            source, binary, _ = case.run(cache_folder=None)
            assert source + binary == PROGRAMS
        lost.append(source)
    # A damaged byte costs at most one program, but one in the header costs all.
    assert set(lost) <= {0, 1, PROGRAMS}
    assert 1 in lost
    assert np.mean(lost) < 1.3


def test_what_is_shipped_for_another_driver_is_not_noticed_by_users(case, shipped):
    case.fake.set("BINARIES", "refuse")
    assert counts(case.run(cache_folder=None)) == (PROGRAMS, 0)


def test_add_plan_is_what_the_fake_driver_computes(case, link):
    plan, w = add_plan()
    with Model(link(plan), opencl_library=case.driver) as model:
        np.testing.assert_allclose(model(X)[0], 2 * X + w, rtol=1e-6)


@pytest.mark.opencl
def test_the_driver_behind_a_loader_is_the_one_that_counts(link, tmp_path):
    """An update of the driver need not change its description."""
    driver = POCL.path
    if not driver or system_loader() is None:
        pytest.skip("PoCL or a loader is not installed")
    library = link(add_plan()[0])
    command = (sys.executable, "-c", THROUGH_A_LOADER, library, tmp_path / "cache")
    run(*command, OCL_ICD_VENDORS=driver, TVMFLOW_OPENCL_DEVICE="")
    (kept,) = (tmp_path / "cache").glob("*.program")
    status = Path(driver).stat()
    identity = (status.st_size * 31 + int(status.st_mtime)) % 2**32
    assert int.from_bytes(kept.read_bytes()[12:16], "little") == identity
