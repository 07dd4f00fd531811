"""What an application gets of an output, as the option `results` says it.

Apart from what appends the nodes (`tvmflow.frontend.results`), as options need neither TVM nor
ONNX.
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
_CHAINS = ("softmax", "argmax", "topk", "softmax+argmax", "softmax+topk")


@dataclass(frozen=True)
class Step:
    """One of ``softmax``, ``argmax`` and ``topk``, along an axis."""

    kind: str
    #: How many elements ``topk`` keeps.
    k: int
    #: ``None`` is the axis of the classes.
    axis: int | None


def indices_name(output: str) -> str:
    """The output that has the indices of the elements that ``topk`` keeps."""
    return f"{output}_indices"


def outputs_of_indices(results: Mapping[str, str]) -> set[str]:
    """The outputs that are indices."""
    steps = {name: parse_result(name, what) for name, what in results.items()}
    last = {name: found[-1].kind for name, found in steps.items() if found}
    names = {name for name, kind in last.items() if kind == "argmax"}
    return names | {indices_name(name) for name, kind in last.items() if kind == "topk"}


def parse_boxes(what: str) -> tuple[str, bool] | None:
    """The form of boxes, and whether 1 is a side of the input; ``None``: something else is wanted.

    They are brought back to the picture when an application gets them, not by nodes.
    """
    match = _BOXES.fullmatch(what)
    return (match[1], match[2] is not None) if match else None


def parse_result(name: str, what: str) -> tuple[Step, ...]:
    """Read what is wanted of the output ``name``, such as ``softmax+topk:5@-1``; of boxes nothing.

    Raises `CompileError` if it is not of that form.
    """
    if parse_boxes(what):
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
            f"{', '.join(BOX_FORMS)}.",
            remedy="Ask with `results` for softmax+topk:5, for example.",
        )
    if steps[-1].kind == "topk" and steps[-1].k < 1:
        raise CompileError(
            f"The {steps[-1].k} largest elements were asked for of the output {name!r}; expected 1 "
            "or more.",
            remedy="Ask with `results` for topk:5, for example.",
        )
    return steps
