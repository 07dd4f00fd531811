"""Construction of the checked execution plan of a network with one or several shapes."""

from __future__ import annotations

from dataclasses import replace

from ...errors import UnsupportedModelError
from ...frontend.load import ImportedModel
from ...ir.results import parse_boxes
from ...module.standalone.pictures import CPU_PICTURE, make_picture
from ...module.standalone.plan import Boxes, Plan
from ..compilation import Compilation
from ..metadata import extensions
from .check import check_plan
from .extract import PlanExtractor
from .shapes import merge_plans


def build_plan(job: Compilation) -> Plan:
    """Return the plan of a network without its self-test and metadata.

    Raises `CompileError` if a plan cannot express the network.
    """
    plans = []
    for each in job.variants or [job]:
        model = each.model
        _check_not_empty(model)
        extractor = PlanExtractor(each.mod, job.kernels, model.inputs, model.outputs, each.weights)
        plans.append(extractor.run())
    plan = merge_plans(plans) if job.variants else plans[0]
    check_plan(plan)
    _add_pictures(job, plan)
    _add_boxes(job, plan)
    plan.extensions = job.target.needs if plan.code else extensions(plan.sources.values())
    return plan


def _check_not_empty(model: ImportedModel) -> None:
    for kind, infos in (("input", model.inputs), ("output", model.outputs)):
        empty = next((info for info in infos if not info.elements), None)
        if empty is not None:
            raise UnsupportedModelError(
                f"The {kind} {empty.name!r} has the shape {list(empty.shape)}, without elements, "
                "which standalone libraries have no memory for.",
                remedy=f"Remove the {kind} from the model, set the extent with `shapes` where it "
                "is open, or use `format=tvm`.",
            )


def _add_pictures(job: Compilation, plan: Plan) -> None:
    """Add the kernels that write pictures to inputs."""
    count = len(job.model.inputs)
    images = job.target.kind == "opencl" and job.target.device.image_extent > 0
    for number, interface in enumerate(plan.inputs[:count]):
        text = job.options.image_inputs.get(interface.info.name)
        if text is None:
            continue
        made = [
            make_picture(number, each.info, each.tensor.scope, text, images=images)
            for each in plan.inputs[number::count]
        ]
        if any(other != made[0] for other in made):
            raise UnsupportedModelError(
                "The inputs that take pictures are textures in some of the shapes, and buffers in "
                "others, where they are larger than an image of the device.",
                remedy="Use `storage=buffer`, or leave out the largest shapes.",
            )
        picture, sources = made[0]
        if plan.code:
            picture = replace(picture, kernel=CPU_PICTURE, image_kernel="")
        else:
            plan.sources |= sources
        plan.pictures.append(picture)


def _add_boxes(job: Compilation, plan: Plan) -> None:
    """Add the outputs that are boxes in pixels of a picture."""
    for number, info in enumerate(job.model.outputs):
        boxes = parse_boxes(job.options.results.get(info.name, ""))
        if boxes is None:
            continue
        if info.dtype != "float32" or info.shape[-1:] != (4,) or info.logical_shape:
            raise UnsupportedModelError(
                f"The output {info} cannot be boxes: expected float32 with four numbers along the "
                "last axis.",
                remedy="Leave it out of `results`, and bring the boxes back by the places that "
                "tvmflow_image_place gives.",
            )
        plan.boxes.append(Boxes(number, 0, *boxes))
