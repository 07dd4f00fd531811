"""The example that trains FaceBoxNet: some steps of it, and the rest of the program."""

from __future__ import annotations

import importlib.util
import struct
import zlib
from importlib.util import find_spec

import numpy as np
import pytest
from support import pages

import tvmflow
from tvmflow._versions import install_command


@pytest.fixture(scope="module")
def example():
    path = pages.ROOT / "examples" / "train_faces.py"
    spec = importlib.util.spec_from_file_location("train_faces", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def pixels(png: bytes) -> np.ndarray:
    """Decode a picture as `train_faces.png` writes it."""
    width, height = struct.unpack(">II", png[16:24])
    length = struct.unpack(">I", png[33:37])[0]
    rows = np.frombuffer(zlib.decompress(png[41 : 41 + length]), np.uint8)
    return rows.reshape(height, width + 1)[:, 1:]


@pytest.mark.skipif(not find_spec("torch"), reason="PyTorch is not installed")
def test_twenty_steps_and_what_comes_of_them(example, tmp_path, monkeypatch, capsys):
    import torch

    monkeypatch.setattr(example, "SIZE", 32)
    monkeypatch.setattr(example, "BATCH", 16)
    monkeypatch.setattr(example, "HELD_BACK", 16)
    torch.manual_seed(0)
    net = example.face_box_net()
    pictures, boxes = example.held_back()
    with torch.no_grad():
        before = example.loss_of(net(torch.from_numpy(pictures)), boxes).item()
    example.train(net, wanted=0.99, seconds=60, steps=20, seed=0)
    with torch.no_grad():
        pred = net(torch.from_numpy(pictures))
        assert example.loss_of(pred, boxes).item() < before
    example.export(net, tmp_path / "faces.onnx")
    with tvmflow.compile(tmp_path / "faces.onnx", target="llvm") as module:
        np.testing.assert_allclose(example.detect(module, pictures), pred.numpy(), atol=1e-3)
    assert "step 20, " in capsys.readouterr().out


def test_pictures_have_what_their_boxes_say(example):
    pictures, boxes = example.draw(np.random.default_rng(5), 60)
    assert {len(each) for each in boxes} == {1, 2, 3}
    for picture, each in zip(pictures, boxes, strict=True):
        assert each.dtype == np.uint8
        for x1, y1, x2, y2 in each.astype(int):
            inside = abs(np.median(picture[0, y1:y2, x1:x2]))
            assert inside > 0.5  # of a background around 0
        assert np.array_equal(each, each[np.argsort(each[:, 0].astype(int) + each[:, 2])])


def test_iou_of_the_slots_with_a_face(example):
    boxes = [np.array([[0, 0, 10, 10], [20, 0, 30, 10]], np.uint8), np.zeros((0, 4), np.uint8)]
    pred = np.full((2, example.SLOTS, 4), 7, np.float32)
    pred[0, :2] = [[0, 0, 10, 10], [25, 0, 35, 10]]  # the same, and a third in common
    assert example.iou(pred, boxes) == pytest.approx((1 + 1 / 3) / 2)
    assert example.found(pred).tolist() == [[True, True, False, False], [False] * 4]


def test_a_picture_with_boxes(example, tmp_path):
    pictures, boxes = example.draw(np.random.default_rng(5), 8)
    pred = np.zeros((8, example.SLOTS, 4), np.float32)
    pred[5, 0] = [3, 4, 13, 24]
    example.write_picture(tmp_path / "faces.png", pictures, pred, boxes, scale=2)
    found = pixels((tmp_path / "faces.png").read_bytes())
    side = 2 * example.SIZE + 2
    assert found.shape == (2 * side, 4 * side)
    # The sixth picture is the second of the second row, and begins after a border of a pixel.
    assert (found[side + 8, side + 6 : side + 27] == 255).all()
    assert found[side + 9, side + 7] != 255


def test_without_pytorch_it_says_what_to_install(example, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(example, "find_spec", lambda name: None)
    assert example.main(["-o", str(tmp_path / "faces")]) == 2
    assert install_command("torch") in capsys.readouterr().err
