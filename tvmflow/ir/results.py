"""The option `results`: forms in which an application gets outputs.

`tvmflow.frontend.results` appends the nodes; this file is imported with the options, so it needs
neither TVM nor ONNX.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from ..errors import CompileError

_STEP = re.compile(r"(softmax|argmax|topk:(-?\d{1,9}))(?:@(-?\d{1,9}))?")
#: Forms of boxes, in the order of `tf_box_form` (native/standalone/plan.h).
BOX_FORMS = ("xyxy", "yxyx", "xywh", "cxcywh")
_BOXES = re.compile(rf"boxes:({'|'.join(BOX_FORMS)})(:unit)?")
_NUMBER = r"-?(?:\d+\.?\d*|\.\d+)(?:e-?\d+)?"
_NMS_PART = re.compile(
    rf"(iou|score)=({_NUMBER})|(max)=([1-9]\d{{,8}})|(form)=({'|'.join(BOX_FORMS)})"
)
#: Prefixes of result names, after the equals sign of a flag.
RESULT_KINDS = ("softmax", "argmax", "topk", "boxes:", "nms")
_CHAINS = ("softmax", "argmax", "topk", "softmax+argmax", "softmax+topk")


@dataclass(frozen=True)
class Step:
    """A ``softmax``, ``argmax`` or ``topk`` along an axis."""

    kind: str
    #: Number of elements that ``topk`` keeps.
    k: int
    #: ``None`` is the axis of the classes.
    axis: int | None


@dataclass(frozen=True)
class Selection:
    """Selection of boxes of one output by the scores of another."""

    most: int  #: Largest number of boxes kept.
    #: Overlap at which a box with a higher score suppresses another of its class; ``None``
    #: suppresses none.
    iou: float | None = None
    score: float | None = None  #: Threshold that scores of kept boxes exceed.
    form: str | None = None  #: One of `BOX_FORMS`.


def parse_selection(name: str, what: str) -> Selection | None:
    """Read ``nms:iou=0.5,max=100`` or ``topk:100``; ``None`` if it is something else.

    Raises `CompileError` for a key or value that does not exist.
    """
    if match := re.fullmatch(r"topk:(\d{1,9})", str(what)):
        return Selection(int(match[1]))
    if not str(what).startswith("nms"):
        return None
    parts = [_NMS_PART.fullmatch(part) for part in what[4:].split(",")] if what != "nms" else []
    given = dict(tuple(filter(None, part.groups())) for part in parts if part)
    iou = float(given.get("iou", 0.5))
    if what[3:4] not in ("", ":") or len(given) < len(parts) or not 0 <= iou <= 1:
        raise CompileError(
            f"The result {what!r} was asked for of {name!r}; expected nms with any of "
            f"iou=0..1, max=1.., score=NUMBER and form={'|'.join(BOX_FORMS)} after a colon, each "
            "once.",
            remedy="Ask with `results` for nms:iou=0.5,max=100, for example.",
        )
    score = float(given["score"]) if "score" in given else None
    return Selection(int(given.get("max", 100)), iou, score, given.get("form"))


def pairs(name: str) -> list[tuple[str, str]]:
    """Return all ways to split ``boxes+scores`` into two names, which may contain a plus sign."""
    ends = [match.start() for match in re.finditer(r"\+", name)]
    return [(name[:end], name[end + 1 :]) for end in ends if 0 < end < len(name) - 1]


def classes_name(scores: str) -> str:
    """Return the name of the output with the classes of the kept boxes."""
    return f"{scores}_classes"


def indices_name(output: str) -> str:
    """Return the name of the output with the indices that ``topk`` keeps."""
    return f"{output}_indices"


def outputs_of_indices(results: Mapping[str, str]) -> set[str]:
    """Return the outputs that are indices, or were chosen by indices of scores."""
    steps = {name: parse_result(name, what) for name, what in results.items()}
    chosen: set[str] = set()
    for boxes, scores in (pair for name in results for pair in pairs(name)):
        chosen |= {boxes, classes_name(scores), indices_name(scores)}
    last = {name: found[-1].kind for name, found in steps.items() if found}
    names = {name for name, kind in last.items() if kind == "argmax"}
    return names | chosen | {indices_name(name) for name, kind in last.items() if kind == "topk"}


def parse_boxes(what: str) -> tuple[str, bool] | None:
    """Read ``boxes:FORM[:unit]``: the form, and whether coordinates are relative; else ``None``.

    The runtime maps boxes back to the picture when an application reads them; no nodes are added.
    """
    match = _BOXES.fullmatch(what)
    return (match[1], match[2] is not None) if match else None


def parse_result(name: str, what: str) -> tuple[Step, ...]:
    """Read the steps for the output ``name``, such as ``softmax+topk:5@-1``; empty for boxes.

    ``topk`` of `parse_selection` is a step, ``nms`` is not.

    Raises `CompileError` if it is not of that form.
    """
    if parse_boxes(what) or (str(what).startswith("nms") and parse_selection(name, what)):
        return ()
    matches = [_STEP.fullmatch(part) for part in str(what).split("+")]
    steps = tuple(
        Step(match[1].partition(":")[0], int(match[2] or 0), int(match[3]) if match[3] else None)
        for match in matches
        if match
    )
    if len(steps) < len(matches) or "+".join(step.kind for step in steps) not in _CHAINS:
        raise CompileError(
            f"The result {what!r} was asked for of the output {name!r}; expected softmax, argmax, "
            "topk:K, softmax+argmax or softmax+topk:K, each with @AXIS behind it where that is not "
            f"the axis of the classes, or boxes:FORM or boxes:FORM:unit, where FORM is one of "
            f"{', '.join(BOX_FORMS)}, or of BOXES+SCORES nms:iou=0.5,max=100 or topk:K.",
            remedy="Ask with `results` for softmax+topk:5, for example.",
        )
    if steps[-1].kind == "topk" and steps[-1].k < 1:
        raise CompileError(
            f"The {steps[-1].k} largest elements were asked for of the output {name!r}; expected 1 "
            "or more.",
            remedy="Ask with `results` for topk:5, for example.",
        )
    return steps
