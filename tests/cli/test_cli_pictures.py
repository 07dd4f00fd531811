"""Pictures in files, by ``run``, ``bench`` and ``inspect``."""

from __future__ import annotations

import builtins

import numpy as np
import onnx
import pytest
from onnx import helper
from PIL import Image
from support.operators import build

import tvmflow
from tvmflow.cli.pictures import read_pictures

WIDTH, HEIGHT = 11, 7


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    """Return a function that compiles a network whose result is its picture."""
    folder, made = tmp_path_factory.mktemp("libraries"), {}
    nodes = [helper.make_node("Identity", ["x"], ["y"])]
    model = build(nodes, {"x": (1, 3, HEIGHT, WIDTH)}, ["y"])
    onnx.save(model, folder / "net.onnx")

    def make(text):
        if text not in made:
            images = {"x": text} if text else {}
            with tvmflow.compile(
                model, target="llvm", format="standalone", image_inputs=images
            ) as module:
                made[text] = module.save(folder / f"libnet{len(made)}.so")
        return made[text]

    return make


@pytest.fixture
def picture(tmp_path):
    """Smooth colours, as wide as high pictures are; the file says that it lies on its side."""
    across, down = np.meshgrid(np.linspace(0, 1, HEIGHT), np.linspace(0, 1, WIDTH))
    levels = np.stack([150 + 20 * across, 60 + 20 * down, 200 - 20 * across], -1)
    image = Image.fromarray(np.rint(levels).astype(np.uint8))
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned by 90 degrees clockwise
    path = tmp_path / "a=face.png"
    image.save(path, exif=exif)
    return path, np.rot90(np.asarray(image).astype(float), -1)


@pytest.mark.parametrize(
    ("text", "error"),
    [
        *((f"{format},range=1", 1e-3) for format in ("rgb8", "rgba8", "bgra8")),
        # Chroma has half the size, and levels are whole numbers in both.
        *((f"{format},range=1", 6.0) for format in ("nv12", "yuv420,luma=video")),
    ],
)
def test_a_file_becomes_what_the_library_takes(cli, library, picture, tmp_path, text, error):
    path, levels = picture
    out = tmp_path / "out.npz"
    for given in (path, f"x={path}"):
        assert cli("run", library(text), "--picture", given, "--outputs", out).status == 0
        with np.load(out) as arrays:
            got = arrays["y"][0].transpose(1, 2, 0)
        assert got.shape == levels.shape
        assert np.abs(got - levels).max() <= error
        assert np.abs(got - levels).mean() <= error / 2


def test_grey_pictures(library, picture):
    with tvmflow.load(library("grey8,range=1")) as module:
        (image,) = read_pictures([str(picture[0])], module).values()
        assert image.pixels.shape == (HEIGHT, WIDTH)
        assert np.abs(image.pixels - picture[1] @ [0.299, 0.587, 0.114]).max() <= 1


def test_bench_measures_with_a_picture(cli, library, picture):
    about = cli("bench", library("rgb8"), "--picture", picture[0], "--runs", "2", "--json").json
    assert about["runs"] == 2
    cli("bench", library("rgb8"), "--picture", picture[0], "--scaling").refused(
        "--picture and --backend do not go with --scaling"
    )


def test_inspect_says_what_an_input_takes(cli, library):
    text = "nv21,size=640x480,fit=letterbox,rotate=90,luma=video,order=bgr"
    assert "x: nv21, 640x480, letterbox, turned by 90 degrees" in cli(
        "inspect", library(text)
    ).stdout.replace("\n", " ")
    (about,) = cli("inspect", library(text), "--json").json["pictures"]
    assert about["scale"] == pytest.approx([1 / 255] * 3)
    del about["scale"], about["shift"]
    assert about == {
        "input": "x", "format": "nv21", "size": [640, 480], "fit": "letterbox", "rotate": 90,
        "order": "bgr", "luma": "video",
    }  # fmt: skip
    assert "x: rgb8, any size, stretch" in cli("inspect", library("rgb8")).stdout
    assert "pictures" not in cli("inspect", library("")).stdout


def test_run_prints_the_largest_values(cli, library, tmp_path):
    x = np.zeros((1, 3, HEIGHT, WIDTH), np.float32)
    x[0, 2, 4, 5], x[0, 1, 0, 10], x[0, 0, 6, 0] = 7.5, 3, -1
    np.savez(tmp_path / "in.npz", x=x)
    text = cli("run", library(""), "--inputs", tmp_path / "in.npz").stdout
    assert "2,4,5: 7.5, 1,0,10: 3, 0,0,0: 0" in text
    (about,) = cli("run", library(""), "--inputs", tmp_path / "in.npz", "--json").json["outputs"]
    assert about["top"][0] == {"index": [0, 2, 4, 5], "value": 7.5}
    assert (about["min"], about["max"], len(about["top"])) == (-1, 7.5, 5)


def test_what_is_no_picture(cli, library, picture, tmp_path, monkeypatch):
    path, _ = picture
    other = tmp_path / "text.jpg"
    other.write_text("no picture")
    cli("run", library("rgb8"), "--picture", other).refused("text.jpg failed: cannot identify")
    cli("run", library("rgb8"), "--picture", tmp_path / "none.jpg").refused("No such file")
    cli("run", library(""), "--picture", path).refused("0 inputs take pictures")
    cli("run", library(""), "--picture", f"x={path}").refused("the input 'x' takes none")
    twice = ("--picture", path, "--picture", f"x={path}")
    cli("run", library("rgb8"), *twice).refused("the picture of 'x' is given twice")
    fixed = library("nv21,size=640x480,fit=letterbox,rotate=90,luma=video,order=bgr")
    cli("run", fixed, "--picture", path).refused("expected 640x480 pixels")
    cli("run", library("rgb8")).refused("--picture FILE, or --random-seed")
    real = builtins.__import__

    def without_pillow(name, *arguments, **more):
        if name.startswith("PIL"):
            raise ImportError(name)
        return real(name, *arguments, **more)

    monkeypatch.setattr(builtins, "__import__", without_pillow)
    cli("run", library("rgb8"), "--picture", path).refused("Pillow, which decodes it", "pictures]")
