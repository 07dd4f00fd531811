"""Modules of sessions are kept on the disk for later processes, and nothing goes wrong without."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import time

import numpy as np
import pytest

import tvmflow
from tvmflow.onnxruntime import store

LLVM = ["tvmflow-llvm"]
X = np.random.default_rng(0).standard_normal((1, 3, 8, 10)).astype(np.float32)


def run(content, providers=LLVM, **more):
    session = tvmflow.InferenceSession(content, providers=providers, **more)
    return session.run(None, {"x": X})[0]


@pytest.fixture
def entry(content, folder):
    """Return the file of a module that was compiled, and what it computed."""
    result = run(content)
    (path,) = folder.glob("*.so")
    return path, result


def test_a_second_session_compiles_nothing(content, entry, compiled):
    np.testing.assert_array_equal(run(content), entry[1])
    assert compiled == []


def test_what_a_module_depends_on_is_in_its_key(content, entry, compiled, monkeypatch):
    run(content, [("tvmflow-llvm", {"storage_overrides": {}})])  # That is the default.
    assert len(compiled) == 0
    run(content, [("tvmflow-llvm", {"check_indices": True})])
    assert len(compiled) == 1
    monkeypatch.setattr(tvmflow.onnxruntime.modules, "_processor", lambda: "another")
    run(content)
    assert len(compiled) == 2
    monkeypatch.setattr(tvmflow.onnxruntime.modules, "_package", lambda: "another")
    run(content)
    assert len(compiled) == 3


@pytest.mark.parametrize("damage", ["cut", "flipped", "foreign", "empty"])
def test_a_damaged_entry_is_compiled_again(content, entry, compiled, caplog, damage):
    path, expected = entry
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0xFF
    path.unlink()  # It may be mapped.
    path.write_bytes(
        {
            "cut": data[: len(data) // 2], "flipped": data, "foreign": b"#!/bin/sh\n", "empty": b"",
        }[damage]
    )  # fmt: skip
    with caplog.at_level(logging.WARNING):
        np.testing.assert_array_equal(run(content), expected)
    assert len(compiled) == 1
    assert "compiled again" in caplog.text
    run(content)
    assert len(compiled) == 1


def unusable(folder, kind):
    if kind == "a file":
        folder.write_text("")
    elif kind == "of others":
        folder.mkdir()
        folder.chmod(0o777)
    elif kind == "read-only":
        folder.mkdir()
        folder.chmod(0o500)


@pytest.mark.parametrize("kind", ["a file", "of others", "read-only"])
def test_without_a_usable_folder_modules_are_compiled(content, folder, kind, caplog, monkeypatch):
    unusable(folder, kind)
    if kind == "read-only":  # Root may write everywhere.
        monkeypatch.setattr(os, "access", lambda *_: False)
    with caplog.at_level(logging.WARNING):
        run(content)
    assert "not kept for later processes" in caplog.text
    assert "TVMFLOW_CACHE_DIR" in caplog.text


def test_a_full_disk_keeps_nothing(content, folder, caplog, monkeypatch):
    def full(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(tvmflow.Module, "save", full)
    with caplog.at_level(logging.WARNING):
        run(content)
    assert "No space left" in caplog.text
    assert list(folder.glob("*.so")) == []


def test_no_cache_may_be_wanted(content, folder, monkeypatch):
    monkeypatch.setenv("TVMFLOW_CACHE", "0")
    run(content)
    assert not folder.exists()


def test_the_folder_is_bounded(content, folder, monkeypatch):
    session = tvmflow.InferenceSession(content, providers=LLVM)
    session.run(None, {"x": X})
    (first,) = folder.glob("*.so")
    monkeypatch.setattr(store, "MOST_BYTES", 2 * first.stat().st_size + 5000)
    for width in (11, 12):
        os.utime(first, (1, 1))
        session.run(None, {"x": np.repeat(X, 2, axis=3)[..., :width]})
    assert not first.exists()
    assert len(list(folder.glob("*.so"))) == 2


def test_modules_of_large_weights_have_a_sidecar(content, folder, compiled):
    small = [("tvmflow-llvm", {"embed_limit_bytes": 1})]
    expected = run(content, small)
    assert len(list(folder.glob("*.so.weights"))) == 1
    np.testing.assert_array_equal(run(content, small), expected)
    assert len(compiled) == 1


PROCESS = """
import sys, time, numpy as np, tvmflow
from tvmflow.onnxruntime.modules import Modules
compile_one = Modules._compile
def slow(self, shapes):
    print("compiled", flush=True)
    time.sleep(1)
    return compile_one(self, shapes)
Modules._compile = slow
session = tvmflow.InferenceSession(open(sys.argv[1], "rb").read(), providers=["tvmflow-llvm"])
session.run(None, {"x": np.ones((1, 3, 8, 10), np.float32)})
"""


def test_of_two_processes_one_compiles(content, tmp_path):
    (tmp_path / "model.onnx").write_bytes(content)
    command = [sys.executable, "-c", PROCESS, str(tmp_path / "model.onnx")]
    both = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    texts = [process.communicate()[0] for process in both]
    assert [process.returncode for process in both] == [0, 0]
    assert sorted(texts) == ["", "compiled\n"]


def in_child(work):
    """Return whether a forked child ends well."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            work()
            status = 0
        finally:
            os._exit(status)
    end = time.monotonic() + 60
    while time.monotonic() < end:
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            return os.waitstatus_to_exitcode(status) == 0
        time.sleep(0.05)
    os.kill(child, 9)
    os.waitpid(child, 0)
    return False


def test_a_forked_child_goes_on(content, compiled):
    session = tvmflow.InferenceSession(content, providers=LLVM)
    expected = session.run(None, {"x": X})[0]

    def work():
        np.testing.assert_array_equal(session.run(None, {"x": X})[0], expected)
        wider = np.repeat(X, 2, axis=3)
        assert session.run(["y"], {"x": wider})[0].shape == (1, 5, 4, 10)

    assert in_child(work)


def test_a_child_forked_during_a_compilation_goes_on(content, monkeypatch):
    import threading

    from tvmflow.onnxruntime.modules import Modules

    started, go_on, compile_one = threading.Event(), threading.Event(), Modules._compile
    parent = os.getpid()

    def slow(self, shapes):
        if os.getpid() == parent:
            started.set()
            assert go_on.wait(60)
        return compile_one(self, shapes)

    monkeypatch.setattr(Modules, "_compile", slow)
    session = tvmflow.InferenceSession(content, providers=LLVM)
    thread = threading.Thread(target=session.run, args=(None, {"x": X}))
    thread.start()
    assert started.wait(60)
    # Another shape: the parent has the file's lock for this one, as any process would.
    wider = np.repeat(X, 2, axis=3)
    ended_well = in_child(lambda: session.run(None, {"x": wider}))
    go_on.set()
    thread.join()
    assert ended_well
