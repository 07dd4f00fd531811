"""Train FaceBoxNet on drawn pictures, compile it and draw the boxes that it finds.

python examples/train_faces.py -o faces          until IoU passes 0.6: minutes, on a CPU
python examples/train_faces.py -o faces --iou 0.7 --target opencl

Faces are ellipses with eyes, one to three in a picture with noise. The loss is `giou_loss`, of
predictions in fp32 and targets in bytes, packed. DIR then has the network as ``faces.onnx`` and
``faces.so``, and ``faces.png``: what the compiled network finds in pictures that it has not seen
(white), and where the faces are (black).  Needs PyTorch: ``python -m pip install '.[torch]'`` in
the repository's folder.
"""

from __future__ import annotations

import argparse
import io
import struct
import sys
import time
import warnings
import zlib
from contextlib import closing
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

import tvmflow
from tvmflow._versions import install_command
from tvmflow.errors import EnvironmentMismatchError
from tvmflow.module.files import write_file
from tvmflow.ops import mask_of, pack

if TYPE_CHECKING:
    import torch

#: Pixels of a picture's side, and boxes that the network gives for one.
SIZE, SLOTS = 48, 4
#: Faces of a picture, and half of a face's width in pixels.
FACES, RADII = (1, 3), (5, 9)
#: Pictures of a step, and those that are held back.
BATCH, HELD_BACK = 64, 256
#: A box with a shorter side, in pixels, says that there is no face.
SHORTEST_SIDE = RADII[0]


# -- pictures -----------------------------------------------------------------------------


def draw(rng: np.random.Generator, number: int) -> tuple[np.ndarray, list[np.ndarray]]:
    """Pictures ``[number, 1, SIZE, SIZE]`` and the boxes of each, uint8 ``[n, 4]``.

    Brightness is 0 in the mean of a picture, and some -2 to 2. Boxes are ``x1 y1 x2 y2`` in pixels,
    from left to right.
    """
    pictures = rng.uniform(0.2, 0.8, (number, 1, 1, 1)) + rng.normal(
        0, 0.08, (number, 1, SIZE, SIZE)
    )
    boxes = [_draw_faces(rng, picture[0]) for picture in pictures]
    # The mean is that of the light, which says nothing; with it, the network learns nothing.
    pictures = pictures.clip(0, 1)
    pictures = (pictures - pictures.mean((2, 3), keepdims=True)) * 4
    return pictures.astype(np.float32), boxes


def _draw_faces(rng: np.random.Generator, picture: np.ndarray) -> np.ndarray:
    """Draw faces that do not overlap; those that find no place are left out."""
    y, x = np.mgrid[:SIZE, :SIZE] + 0.5
    boxes: list[list[int]] = []
    shade = picture.mean()
    for _ in range(rng.integers(FACES[0], FACES[1] + 1)):
        width = rng.integers(2 * RADII[0], 2 * RADII[1] + 1)
        height = int(width * rng.uniform(1.1, 1.4))
        x1, y1 = rng.integers(0, SIZE - width), rng.integers(0, SIZE - height)
        box = [int(x1), int(y1), int(x1 + width), int(y1 + height)]
        if any(_overlap(box, other) for other in boxes):
            continue
        boxes.append(box)
        across, down = (x - x1) / width * 2 - 1, (y - y1) / height * 2 - 1
        brightness = rng.choice([-1, 1]) * rng.uniform(0.25, 0.5)
        picture[across**2 + down**2 <= 1] += brightness
        for side in (-0.4, 0.4):
            picture[(across - side) ** 2 + (down + 0.25) ** 2 <= 0.04] = shade
    return np.array(sorted(boxes, key=lambda box: box[0] + box[2]), np.uint8)


def _overlap(a: list[int], b: list[int]) -> bool:
    return all(max(a[i], b[i]) < min(a[i + 2], b[i + 2]) for i in (0, 1))


# -- the network --------------------------------------------------------------------------


def face_box_net() -> torch.nn.Module:
    """FaceBoxNet, as `tvmflow models build facebox_net` writes it, with boxes in pixels."""
    from torch import nn

    layers: list[nn.Module] = []
    for level in range(4):
        layers += [nn.Conv2d(4**level, 4 ** (level + 1), 3, padding=1), nn.MaxPool2d(2), nn.ReLU()]
    hidden = SIZE * SIZE // 4
    last = nn.Linear(hidden, SLOTS * 4)
    # Boxes begin around the middle: one without sides would have no intersection to enlarge.
    last.weight.data *= 0.1
    last.bias.data = last.bias.new_tensor([0.25, 0.25, 0.75, 0.75] * SLOTS)
    layers += [nn.Flatten(), nn.Linear(SIZE * SIZE, hidden), nn.ReLU(), last]

    class Boxes(nn.Module):
        """Numbers of a picture's sides as boxes in pixels."""

        def forward(self, numbers: torch.Tensor) -> torch.Tensor:
            return numbers.reshape(-1, SLOTS, 4) * SIZE

    return nn.Sequential(*layers, Boxes())


def loss_of(pred: torch.Tensor, boxes: list[np.ndarray]) -> torch.Tensor:
    """1 - GIoU of boxes with a face, and a pull of those without one to the corner."""
    import torch

    from tvmflow.ops.torch import giou_loss, to_device

    batch = pack(boxes, "uint8")
    target, offsets = to_device(batch, pred.device)
    empty = pred[~torch.from_numpy(mask_of(batch.count, SLOTS)).to(pred.device)]
    pull = empty.abs().mean() / SIZE
    return 1 - giou_loss(pred, target, offsets=offsets) + pull


def iou(pred: np.ndarray, boxes: list[np.ndarray]) -> float:
    """The mean of intersection over union of true boxes and those in their slots."""
    target, count = pack(boxes, "float32").padded(SLOTS)
    low, high = np.maximum(pred, target)[..., :2], np.minimum(pred, target)[..., 2:]
    inter, *areas = (
        (side[..., 0] * side[..., 1])
        for side in np.maximum(
            [high - low, pred[..., 2:] - pred[..., :2], target[..., 2:] - target[..., :2]], 0
        )
    )
    valid = mask_of(count, SLOTS)
    return float((inter[valid] / (sum(areas) - inter)[valid]).mean())


def found(pred: np.ndarray) -> np.ndarray:
    """Which boxes are faces: those with sides."""
    return np.asarray((pred[..., 2:] - pred[..., :2]).min(-1) >= SHORTEST_SIDE)


# -- training -----------------------------------------------------------------------------


def train(
    net: torch.nn.Module, wanted: float, seconds: float, steps: int | None, seed: int
) -> tuple[float, int]:
    """Train until IoU of the pictures held back passes ``wanted``, or time or steps are over.

    Returns IoU and the number of steps.
    """
    import torch

    rng = np.random.default_rng(seed)
    pictures, boxes = held_back()
    held = torch.from_numpy(pictures)
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
    start, step, reached = time.perf_counter(), 0, 0.0
    while reached <= wanted and step != steps and time.perf_counter() - start < seconds:
        batch, target = draw(rng, BATCH)
        optimizer.zero_grad()
        loss = loss_of(net(torch.from_numpy(batch)), target)
        loss.backward()
        optimizer.step()
        step += 1
        if step % 100 == 0 or step == steps:
            with torch.no_grad():
                pred = net(held).numpy()
            reached = iou(pred, boxes)
            right = (found(pred).sum(1) == [len(each) for each in boxes]).mean()
            print(
                f"step {step}, {time.perf_counter() - start:.0f} s: loss {loss.item():.3f}, "
                f"IoU {reached:.3f}, as many boxes as faces in {right:.0%} of pictures",
                flush=True,
            )
    return reached, step


def held_back() -> tuple[np.ndarray, list[np.ndarray]]:
    """Pictures that no seed of the training draws."""
    return draw(np.random.default_rng([1, 1]), HELD_BACK)


# -- what comes of it ---------------------------------------------------------------------


def export(net: torch.nn.Module, path: Path) -> None:
    """Write the network as ONNX, for one picture."""
    import torch

    buffer = io.BytesIO()
    with warnings.catch_warnings():
        # The newer exporter needs another package, and knows nothing more of such a network.
        warnings.simplefilter("ignore", DeprecationWarning)
        torch.onnx.export(
            net.eval(), (torch.zeros(1, 1, SIZE, SIZE),), buffer,
            input_names=["image"], output_names=["boxes"], dynamo=False,
        )  # fmt: skip
    write_file(path, buffer.getvalue())


def detect(module: Any, pictures: np.ndarray) -> np.ndarray:
    """Boxes ``[N, SLOTS, 4]`` of pictures, by the compiled network, one after another."""
    return np.concatenate([module(image=picture[None])["boxes"] for picture in pictures])


def write_picture(
    path: Path, pictures: np.ndarray, pred: np.ndarray, boxes: list[np.ndarray], scale: int = 4
) -> None:
    """Write pictures side by side, four in a row, as PNG."""
    grey = (100 + 40 * pictures[:, 0]).clip(0, 200)
    large = np.kron(grey, np.ones((scale, scale))).astype(np.uint8)
    large = np.pad(large, ((0, 0), (1, 1), (1, 1)), constant_values=255)
    for picture, mine, known, true in zip(large, pred, found(pred), boxes, strict=False):
        for box, shade in [*((box, 0) for box in true), *((box, 255) for box in mine[known])]:
            x1, y1, x2, y2 = (box.clip(0, SIZE) * scale).astype(int)
            picture[[y1, y2], x1 : x2 + 1] = shade
            picture[y1 : y2 + 1, [x1, x2]] = shade
    side = large.shape[1]
    rows = large.reshape(-1, 4, side, side).swapaxes(1, 2).reshape(-1, 4 * side)
    write_file(path, png(rows))


def png(pixels: np.ndarray) -> bytes:
    """A grey picture, uint8 ``[height, width]``, as PNG (ISO/IEC 15948)."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        checksum = zlib.crc32(kind + content)
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", checksum)

    height, width = pixels.shape
    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    # A filter of none begins each row.
    rows = np.pad(pixels, ((0, 0), (1, 0))).tobytes()
    parts = (chunk(b"IHDR", header), chunk(b"IDAT", zlib.compress(rows)), chunk(b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


def run(options: argparse.Namespace) -> bool:
    """Go the whole way; return whether IoU was reached."""
    if not find_spec("torch"):
        raise EnvironmentMismatchError(
            "Training a network failed: it needs PyTorch, which is not installed.",
            remedy=f"Install it: {install_command('torch')}",
        )
    import torch

    torch.manual_seed(options.seed)
    net = face_box_net()
    start = time.perf_counter()
    reached, steps = train(net, options.iou, options.minutes * 60, options.steps, options.seed)
    print(f"{steps} steps in {time.perf_counter() - start:.0f} s: IoU {reached:.3f}")
    options.output.mkdir(parents=True, exist_ok=True)
    model = options.output / "faces.onnx"
    export(net, model)
    with tvmflow.compile(model, target=options.target) as compiled:
        library = compiled.save(options.output / "faces.so")
    pictures, boxes = held_back()
    with closing(tvmflow.load(library)) as module:
        pred = detect(module, pictures)
    with torch.no_grad():
        apart = np.abs(pred - net(torch.from_numpy(pictures)).numpy()).max()
    print(f"compiled for {options.target}: IoU {iou(pred, boxes):.3f}, at most {apart:.2g} pixels "
          "from PyTorch's boxes")  # fmt: skip
    write_picture(options.output / "faces.png", pictures[:16], pred[:16], boxes[:16])
    print(f"written: {model}, {library}, {options.output / 'faces.png'}")
    return reached > options.iou or options.steps is not None


def main(arguments: list[str] | None = None) -> int:
    """Train; the exit status is 1 where IoU was not reached in time."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("-o", "--output", type=Path, required=True, metavar="DIR")
    parser.add_argument("--iou", type=float, default=0.6, help="trained until it is passed")
    parser.add_argument("--minutes", type=float, default=5.0, help="at most")
    parser.add_argument("--steps", type=int, help="at most, whatever IoU is then")
    parser.add_argument("--target", choices=("llvm", "opencl", "cuda"), default="llvm")
    parser.add_argument("--seed", type=int, default=0, help="of weights and pictures")
    try:
        return 0 if run(parser.parse_args(arguments)) else 1
    except tvmflow.TvmflowError as error:
        print(error, file=sys.stderr)
        return error.exit_status


if __name__ == "__main__":
    sys.exit(main())
