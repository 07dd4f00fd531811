"""The last stage of ``--format standalone``: from a compiled network to a library.

Each step is one function of one file::

    build_plan       launches and memory, checked              .build_plan
    make_self_test   seeded inputs and the results for them    .self_test
    add_inner_tensors
                     values that find wrong kernels            .inner_tensors
    add_choices, add_parts, add_plain_kernels
                     kernels that may replace others           .choices, .other_options,
                                                               .alternatives
    plan_metadata    facts of the network for tools            .metadata
    derive_weights   arrays that weights are derived from      .derive_weights
    write_weights    a file of these arrays                    module.standalone.weights_file
    encode           the bytes of the plan                     module.standalone.encode
    link_library     a library of runtime, plan and weights    module.standalone.link
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

from ...devices.choices import SAFE
from ...devices.host import Host
from ...module.standalone.encode import encode
from ...module.standalone.link import Functions, link_library
from ...module.standalone.plan import Plan
from ...module.standalone.weights_file import write_weights
from ..compilation import Compilation
from ..options import CompileOptions
from .alternatives import Alternatives, add_plain_kernels, sort_alternatives
from .build_plan import build_plan
from .check import check_alternatives
from .choices import add_choices
from .derive_weights import derive_weights
from .metadata import plan_metadata
from .other_options import add_parts, other_options
from .self_test import Compiler, add_inner_tensors, make_self_test

#: Compiles the same network with other options, up to its kernels.
Builder = Callable[[CompileOptions], Compilation]


def make_plan(job: Compilation, compiler: Compiler, build: Builder) -> Plan:
    """Return the complete plan of a network whose kernels are generated.

    ``compiler`` compiles a reference for the self-test, and ``build`` alternatives of the network.
    """
    plan = build_plan(job)
    reference = make_self_test(job, plan, compiler)
    options, choices = job.options, {}
    is_safe = options.alternatives == SAFE
    if (is_safe or options.choices) and not plan.code:
        add_inner_tensors(job, plan)
        made = Alternatives(job, plan)
        choices = add_choices(made, options.choices, least=int(is_safe))
        if options.choices:
            for name, changed in other_options(job, plan).items():
                add_parts(plan, build_plan(build(changed)), name)
        if is_safe:
            add_plain_kernels(made)
        sort_alternatives(plan)
        check_alternatives(plan)
    plan.metadata = plan_metadata(job, plan, reference)
    if choices:
        plan.metadata["choices"] = choices
    return plan


def write_library(
    job: Compilation, processor: Compilation | None, compiler: Compiler, build: Builder
) -> None:
    """Write the library, and its weights to a file of their own if they are large.

    ``processor`` is the compilation of the fallback on processors, if one is asked for.
    """
    plan = make_plan(job, compiler, build)
    fallback = None if processor is None else make_plan(processor, compiler, build)
    arrays = derive_weights(plan, fallback, job.options.weights)
    with tempfile.TemporaryDirectory(prefix="weights-", dir=job.output.parent) as folder:
        file = Path(folder) / "weights"
        written = write_weights(file, arrays)
        content, functions = encode(plan, written), None
        if fallback is not None:
            functions = Functions(encode(fallback, written), fallback)
        elif plan.code:
            content, functions = b"", Functions(content, plan)
        link_library(
            content,
            file if arrays else None,
            Host.parse(job.target.host),
            job.output,
            embed=written.bytes <= job.options.embed_limit_bytes,
            functions=functions,
        )
