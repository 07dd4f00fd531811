"""Pictures as inputs: checks of the option, and the kernels that write pictures to inputs.

One kernel converts, rotates, resizes and normalises a picture, and writes the buffer or texture
that the network's first kernel reads.  `native/standalone/picture.c` computes the kernel's
`_GEOMETRY`, `native/standalone/picture_cpu.c` does the same as the kernel on a CPU.  The filter is
Pillow's ``BILINEAR``: a triangle, which is wider if the picture shrinks.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from ...errors import CompileError
from ...ir.pictures import (
    CHROMA_FORMATS,
    FITS,
    IMAGE_FORMATS,
    LARGEST_PICTURE,
    ImageInput,
    refuse_picture,
)
from ...ir.tensors import TensorInfo

#: Arrangements of channels, in the order of `tf_arrangement`.
_ARRANGEMENTS = ("NCHW", "NHWC", "NCHW4c")


def arrangement(info: TensorInfo) -> tuple[str, int] | None:
    """Return the arrangement and number of an input's channels; ``None`` if it is no picture."""
    shape = info.logical_shape or info.shape
    if len(shape) != 4 or shape[0] != 1 or info.dtype not in ("float32", "float16", "uint8"):
        return None
    if max(shape) > LARGEST_PICTURE:
        return None
    if shape[1] in (1, 3):
        return "NCHW" if info.logical_shape is None else "NCHW4c", shape[1]
    return ("NHWC", shape[3]) if shape[3] in (1, 3) and info.logical_shape is None else None


def check_image_inputs(asked: Mapping[str, str], inputs: tuple[TensorInfo, ...]) -> None:
    """Raise `CompileError` for an input that does not exist, or cannot be a picture."""
    known = {info.name: info for info in inputs}
    for name, text in asked.items():
        if name not in known:
            raise CompileError(
                f"The model has no input {name!r} for pictures; it has {', '.join(known)}.",
                remedy="Give the name of an input of the ONNX model.",
            )
        found = arrangement(known[name])
        if found is None:
            raise CompileError(
                f"The input {known[name]} cannot take pictures: expected one picture of 1 or 3 "
                "channels, NCHW or NHWC, of float32, float16 or uint8.",
                remedy="Set open extents with `shapes`, or leave it out of `image_inputs`.",
            )
        spec = ImageInput.parse(name, text)
        for key in ("mean", "std"):
            if len(getattr(spec, key)) not in (1, found[1]):
                raise refuse_picture(name, f"{key} has three numbers, and the network one channel")


# -- the kernels of OpenCL -------------------------------------------------------------------

#: Definition of the structure `tf_geometry` in native/standalone/picture.h.
_GEOMETRY = """\
#ifndef TVMFLOW_GEOMETRY
#define TVMFLOW_GEOMETRY
typedef struct {
  int2 size, from, to, upright, first, column, row;
  int offset[3], stride[3], pixel[3], last[2], swapped;
  float2 origin, step;
} tvmflow_geometry;
#endif
"""
_KERNEL = """\
__kernel void {name}({output}, __constant const tvmflow_geometry* restrict g, {picture}) {{
  const int2 at = (int2)(get_global_id(0), get_global_id(1));
  if (at.x >= g->size.x || at.y >= g->size.y) return;
{planes}  float4 level = (float4)({pad});
  if (all(at >= g->from) && all(at < g->to)) {{
    const float2 center = g->origin + (convert_float2(at - g->from) + 0.5f) * g->step;
    const float2 reach = fmax(g->step, 1.0f), slope = 1.0f / reach;
    const int2 begin = max(convert_int2(center - reach + 0.5f), 0);
    const int2 end = min(convert_int2(center + reach + 0.5f), g->upright);
    const float2 nearest = convert_float2(begin) + 0.5f - center;
    float4 sum = 0.0f;
    float2 weights = 0.0f;
    for (int x = 0; x < end.x - begin.x; ++x) weights.x += 1.0f - fabs(nearest.x + x) * slope.x;
    for (int y = 0; y < end.y - begin.y; ++y) {{
      float4 line = 0.0f;
      int2 p = g->first + begin.x * g->column + (begin.y + y) * g->row;
      for (int x = 0; x < end.x - begin.x; ++x, p += g->column) {{
{pixel}
        line += (1.0f - fabs(nearest.x + x) * slope.x) * pixel;
      }}
      const float weight = 1.0f - fabs(nearest.y + y) * slope.y;
      sum += weight * line;
      weights.y += weight;
    }}
    level = sum / (weights.x * weights.y);
  }}
{store}
}}
"""
#: Position of a plane's samples, loaded before the loops because drivers do not hoist that.
_PLANE = """\
  __global const uchar* const plane{c} = picture + g->offset[{c}];
  const int stride{c} = g->stride[{c}], pixel{c} = g->pixel[{c}];
"""
_LAST = """\
  const int last{c} = g->last[{c} - 1];
"""
_PIXEL = "plane0[p.y * stride0 + p.x * pixel0]"
_CHROMA = "plane{c}[min((p.y >> 1) * stride{c} + (p.x >> 1) * pixel{c}, last{c})]"
_LUMA = {
    "full": """\
        const float luma = {y}, u = {u} - 128.0f, v = {v} - 128.0f;""",
    "video": """\
        const float luma = ({y} - 16.0f) * (255.0f / 219.0f);
        const float u = ({u} - 128.0f) * (255.0f / 224.0f);
        const float v = ({v} - 128.0f) * (255.0f / 224.0f);""",
}
_FROM_LUMA = """
        const float4 pixel = clamp(
            (float4)(luma + 1.402f * v, luma - 0.344136f * u - 0.714136f * v, luma + 1.772f * u,
                     0.0f), 0.0f, 255.0f);"""
_IMAGE_PIXEL = """\
        const float4 pixel = 255.0f * read_imagef(picture, p);"""


def _planes(spec: ImageInput) -> str:
    """Return statements that define the planes which `_pixel` reads."""
    chroma = (1, 2) if spec.format in CHROMA_FORMATS else ()
    text = "".join(_PLANE.format(c=c) for c in (0, *chroma))
    return text + "".join(_LAST.format(c=c) for c in chroma)


def _pixel(spec: ImageInput) -> str:
    """Return statements that define ``pixel``: red, green, blue."""
    if spec.format in CHROMA_FORMATS:
        u, v = (_CHROMA.format(c=c) for c in (1, 2))
        return _LUMA[spec.luma].format(y=_PIXEL, u=u, v=v) + _FROM_LUMA
    begin = f"        __global const uchar* const from = &{_PIXEL};\n"
    value = {
        "rgb8": "(float4)(from[0], from[1], from[2], 0.0f)",
        "grey8": "(float4)(*from)",
    }.get(spec.format)
    if value is None:
        begin += "        const float4 four = convert_float4(vload4(0, from));\n"
        value = "g->swapped ? four.zyxw : four"
    return begin + f"        const float4 pixel = {value};"


def _store(spec: ImageInput, info: TensorInfo, scope: str | None) -> tuple[str, str]:
    """Return the output's parameter, and statements that write ``level`` to it."""
    # Imported here because it needs TVM, while running a library does not.
    from ...ir.scope import is_half, is_texture

    found = arrangement(info)
    assert found is not None
    order, channels = found
    scale, shift = spec.levels(channels)
    if channels == 1:
        grey = "level.x" if spec.format == "grey8" else (
            "0.299f * level.x + 0.587f * level.y + 0.114f * level.z"
        )  # fmt: skip
        lines = [f"  const float value = ({grey}) * {_f(scale[0])} + {_f(shift[0])};"]
        values = ["value"]
    else:
        lanes = "xyzw" if spec.order == "rgb" else "zyxw"
        factors, terms = (", ".join(map(_f, (*v, 0.0))) for v in (scale, shift))
        lines = [f"  const float4 value = level.{lanes} * (float4)({factors}) + (float4)({terms});"]
        values = ["value.x", "value.y", "value.z"]
    stored = "float16" if scope is not None and is_half(scope) else info.dtype
    if order == "NCHW4c":
        four = "value" if channels == 3 else "(float4)(value, 0.0f, 0.0f, 0.0f)"
        if scope is not None and is_texture(scope):
            lines.append(f"  write_imagef(to, (int4)(at, 0, 0), {four});")
            return "__write_only image2d_array_t to", "\n".join(lines)
        store = "vstore_half4" if stored == "float16" else "vstore4"
        lines.append(f"  {store}({four}, at.y * g->size.x + at.x, to);")
    else:
        lines.append("  const int place = at.y * g->size.x + at.x;")
        for channel, value in enumerate(values):
            place = f"place * {channels} + {channel}"
            if order == "NCHW":
                place = f"{channel} * g->size.x * g->size.y + place"
            if stored == "float16":
                lines.append(f"  vstore_half({value}, {place}, to);")
            else:
                kept = f"convert_uchar_sat_rte({value})" if stored == "uint8" else value
                lines.append(f"  to[{place}] = {kept};")
    kind = {"float32": "float", "float16": "half", "uint8": "uchar"}[stored]
    return f"__global {kind}* restrict to", "\n".join(lines)


def _f(value: float) -> str:
    return f"{float(value)!r}f"


@dataclass(frozen=True)
class Picture:
    """A picture input of a plan, and the kernels that write it."""

    input: int
    spec: ImageInput
    arrangement: str
    channels: int
    kernel: str
    image_kernel: str = ""  #: Kernel that reads an OpenCL image; "" if there is none.

    def record(self) -> dict[str, object]:
        """Return the fields of `tf_picture` other than strings and the program."""
        scale, shift = (v + [0.0] * (3 - len(v)) for v in self.spec.levels(self.channels))
        width, height = self.spec.size or (0, 0)
        return {
            "input": self.input,
            "format": IMAGE_FORMATS.index(self.spec.format),
            "fit": FITS.index(self.spec.fit),
            "rotation": self.spec.rotate,
            "width": width,
            "height": height,
            "arrangement": _ARRANGEMENTS.index(self.arrangement),
            "channels": self.channels,
            "swapped": int(self.spec.order == "bgr"),
            "video": int(self.spec.luma == "video"),
            "padding": self.spec.pad,
            "scale": scale,
            "shift": shift,
        }


#: Function of the C runtime (native/standalone/cpu.c) that replaces the kernel on a CPU.
CPU_PICTURE = "tvmflow_picture"


def make_picture(
    number: int, info: TensorInfo, scope: str | None, text: str, *, images: bool
) -> tuple[Picture, dict[str, str]]:
    """Return the picture of an input, and OpenCL C of its kernels by name.

    ``images`` says that the device supports images, so that pictures may be OpenCL images.
    """
    spec = ImageInput.parse(info.name, text)
    found = arrangement(info)
    assert found is not None, info
    picture = Picture(number, spec, *found, kernel=f"tvmflow_picture{number}_kernel")
    output, store = _store(spec, info, scope)
    sources = {
        picture.kernel: _GEOMETRY
        + _KERNEL.format(
            name=picture.kernel,
            output=output,
            picture="__global const uchar* restrict picture",
            planes=_planes(spec),
            pad=_f(spec.pad),
            pixel=_pixel(spec),
            store=store,
        )
    }
    if images and spec.format in ("rgba8", "bgra8"):
        picture = replace(picture, image_kernel=f"tvmflow_picture{number}_image_kernel")
        sources[picture.image_kernel] = _GEOMETRY + _KERNEL.format(
            name=picture.image_kernel,
            output=output,
            picture="__read_only image2d_t picture",
            planes="",
            pad=_f(spec.pad),
            pixel=_IMAGE_PIXEL,
            store=store,
        )
    return picture, sources
