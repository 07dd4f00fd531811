"""Deliberate bugs, slips that could be made, and the tests nearest to them that must notice.

Each is one edit of one file: a text that occurs there exactly once, and another one.  Tests are
those of the folder that mirrors the file's, as few as are needed: files, or single tests of files
that take long.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Mutant:
    """A deliberate bug."""

    name: str
    #: What is edited, from the root of the tree.
    file: str
    old: str
    new: str
    #: What the edit breaks.
    breaks: str
    #: What pytest is to run.
    tests: tuple[str, ...]

    def applied(self, text: str) -> str:
        """The file's text with the edit.

        Raises
        ------
        ValueError
            If the old text does not occur exactly once.
        """
        count = text.count(self.old)
        if count != 1:
            raise ValueError(f"{self.name}: {self.file} has {count} times, not once: {self.old}")
        return text.replace(self.old, self.new)


_DEFINITIONS = ("tests/schedules/test_definitions.py",)
_LEDGER = ("tests/farm/test_ledger.py",)
_MEMORY = ("tests/graph/test_memory.py::test_no_two_tensors_that_live_at_one_time_share_a_block",)
_PLANS = ("tests/graph/test_memory.py::test_plans_of_networks",)
_UNITS = ("tests/native/test_units.py",)
_SIZES = (
    "tests/frontend/test_run_time_sizes.py::test_operators",
    "tests/frontend/test_run_time_sizes.py::test_operators_of_at_least_one_row",
)
_NMS = "tests/schedules/test_selection.py::test_boxes_that_do_not_overlap"
_DAMAGE = "tests/module/standalone/test_runtime_damage.py"
_PICTURES = "tests/module/standalone/test_pictures.py"

MUTANTS = (
    # -- schedules ------------------------------------------------------------------------------
    Mutant(
        "conv2d-stride",
        "schedules/definitions.py",
        "v * strides[1] + q * dilation[1]",
        "v * strides[0] + q * dilation[1]",
        "the stride along the width is taken for that along the height, or the other way round",
        _DEFINITIONS,
    ),
    Mutant(
        "recurrent-lengths",
        "schedules/recurrent.py",
        "c = c if c is None else tirx.Select(counts, c, values.c)",
        "c = c if c is None else c",
        "an LSTM's cell state goes on beyond the end of a sequence",
        ("tests/frontend/test_recurrent.py::test_some",),
    ),
    Mutant(
        "recurrent-peephole",
        "schedules/cells.py",
        'PEEPHOLES = "iof"',
        'PEEPHOLES = "ifo"',
        "the peepholes of the output and the forget gate are exchanged",
        ("tests/frontend/test_recurrent.py::test_some",),
    ),
    Mutant(
        "exponential-scale",
        "tvmflow/codegen/llvm_passes.py",
        "power_of_2(half) * power_of_2(whole - half)",
        "power_of_2(whole)",
        "exponentials that are subnormal or near the largest number are wrong",
        ("tests/codegen/test_exponentials.py",),
    ),
    Mutant(
        "int8-zero-point",
        "schedules/integers.py",
        "zero = tirx.const(self.zero, self.sums)",
        "zero = tirx.const(self.zero + 1, self.sums)",
        "the zero point of products of 8-bit numbers is off by one",
        _DEFINITIONS,
    ),
    Mutant(
        "int8-padding",
        "schedules/integers.py",
        "_word_of(self.zero))",
        "_word_of(self.zero + 1))",
        "padding of dot products is a step beside the zero point",
        _DEFINITIONS,
    ),
    Mutant(
        "gpu-tile",
        "schedules/conv2d.py",
        "def _gpu_tile(shape: Shape, device: Device, vectors: int) -> Extents:",
        "def _gpu_tile(*_arguments: object) -> Extents:\n    return 1, 1, 1\n",
        "a work-item of a GPU computes one vector, and reads weights for each product",
        ("tests/schedules/test_register_tiles.py",),
    ),
    Mutant(
        "narrow-copies",
        "schedules/common.py",
        "if wide and not gathers_bytes(",
        "if wide and gathers_bytes(",
        "what is kept in registers is read number by number",
        ("tests/explain/test_gpu_budget.py::test_schedules_for_adreno",),
    ),
    Mutant(
        "depthwise-dilation",
        "schedules/depthwise.py",
        "v * strides[1] + q * dilation[1]",
        "v * strides[1] + q * dilation[0]",
        "the dilation along the height is that along the width, too",
        _DEFINITIONS,
    ),
    Mutant(
        "grouped-run",
        "schedules/grouped.py",
        "run = run + tirx.floordiv(o, shared)",
        "run = run + tirx.floormod(o, shared)",
        "lanes of a block that belong to different groups read the wrong one's inputs",
        _DEFINITIONS,
    ),
    Mutant(
        "pool-count",
        "schedules/pooling.py",
        "return last - first + 1",
        "return last - first",
        "averages at the border are over one element too few",
        _DEFINITIONS,
    ),
    Mutant(
        "dot-product-sign",
        "tvmflow/codegen/dot_products.py",
        "(w << constant(24 - 8 * byte)) >> constant(24)",
        "(w >> constant(8 * byte)) & constant(255)",
        "negative weights of dot products lose their sign where a CPU has no instruction",
        _DEFINITIONS,
    ),
    Mutant(
        "lab-offset",
        "schedules/lab/quantized.py",
        "sums[i, j] - zero[0] * columns[j]",
        "sums[i, j] - zero[0] * columns[i]",
        "the lab's 8-bit product is corrected by the sum of another column",
        ("tests/schedules/test_lab.py::test_one_function_serves_all_scales_and_zero_points",),
    ),
    # -- passes over TIR, rules and storage -----------------------------------------------------
    Mutant(
        "regroup-order",
        "schedules/data_parallel.py",
        "for i in reversed(group[1:]):",
        "for i in group[1:]:",
        "digits of a fused axis are taken in the wrong order",
        ("tests/codegen/test_carries.py",),
    ),
    Mutant(
        "lost-carry",
        "tvmflow/codegen/index_divisions.py",
        "isinstance(value, (tirx.Add, tirx.Sub))",
        "isinstance(value, tirx.Sub)",
        "divisions of sums lose their carry where buffers are flattened",
        ("tests/codegen/test_carries.py",),
    ),
    Mutant(
        "cuda-stale-load",
        "tvmflow/codegen/cuda_passes.py",
        "        return tirx.SeqStmt([*bindings, last]) if bindings else statement",
        "        return statement",
        "a load of what was stored to since has its old value on CUDA",
        ("tests/codegen/test_cuda_passes.py",),
    ),
    Mutant(
        "gate-for-each-pixel",
        "tvmflow/graph/gates.py",
        "if not alone and any(",
        "if alone and any(",
        "a gate is computed for each pixel that it multiplies",
        ("tests/graph/test_fuse.py::test_a_gate_is_not_computed_for_each_pixel",),
    ),
    Mutant(
        "float-sum",
        "tvmflow/graph/legalize.py",
        "return a - b if whole else a + b * tirx.const(-1, call.ty.dtype)",
        "return a - b",
        "a number added and taken off again is not rounded",
        ("tests/frontend/test_roundings.py",),
    ),
    Mutant(
        "small-tanh",
        "tvmflow/codegen/llvm_passes.py",
        "_SMALL = 0.5",
        "_SMALL = 0.0",
        "hyperbolic functions of small numbers lose their digits",
        ("tests/frontend/test_roundings.py",),
    ),
    Mutant(
        "inner-half",
        "tvmflow/graph/storage/storage.py",
        "tensor.can_be_half and name not in self.inner",
        "tensor.can_be_half",
        "sums of squares are infinite in 16 bits",
        ("tests/codegen/test_half.py::test_what_an_operator_has_within_it_stays_whole",),
    ),
    Mutant(
        "mask-number",
        "tvmflow/codegen/masks.py",
        "(tirx.const(value, cast.ty.dtype) for value in (1, 0))",
        "(tirx.const(value, cast.ty.dtype) for value in (-1, 0))",
        "a true lane of a vector becomes -1",
        ("tests/codegen/test_masks.py",),
    ),
    Mutant(
        "nan-limit",
        "tvmflow/codegen/nan_propagation.py",
        "(node.b, node.a) if swapped else (node.a, node.b)",
        "(node.a, node.b) if swapped else (node.b, node.a)",
        "a number's limit takes the place of NaN, as in TVM's own maxima",
        ("tests/codegen/test_extremes.py",),
    ),
    Mutant(
        "border-reach",
        "tvmflow/codegen/loop_peeling.py",
        "IntervalSet(loop.min, loop.min + loop.extent - 1)",
        "IntervalSet(loop.min, loop.min + loop.extent - 2)",
        "work-groups at the last border are taken for inner ones, and read behind the input",
        ("tests/codegen/test_loop_peeling.py",),
    ),
    Mutant(
        "tolerance-scale",
        "tvmflow/verify/tolerance.py",
        "tolerance.relative * magnitude + tolerance.absolute * scale",
        "tolerance.relative * scale + tolerance.absolute * scale",
        "small elements are allowed the error of the largest one",
        ("tests/verify/test_tolerance.py",),
    ),
    Mutant(
        "texture-traffic",
        "tvmflow/graph/storage/uses.py",
        "total += prod(int(v.dom.extent) for v in block.iter_vars)",
        "total += prod(int(d) for d in block.reads[0].source.shape)",
        "an input is counted as read once, however often windows slide over it",
        ("tests/graph/test_cost.py",),
    ),
    # -- graph and front end --------------------------------------------------------------------
    Mutant(
        "shared-block",
        "tvmflow/graph/memory.py",
        "tensor.last < t.first or t.last < tensor.first",
        "tensor.last <= t.first or t.last < tensor.first",
        "a kernel's result may lie where it still reads an input",
        _MEMORY,
    ),
    Mutant(
        "scan-distance",
        "tvmflow/graph/legalize.py",
        "while distance < shape[axis]:",
        "while 2 * distance < shape[axis]:",
        "running sums lack their last step",
        ("tests/graph/test_scans.py",),
    ),
    Mutant(
        "bias-factor",
        "tvmflow/frontend/rewrite.py",
        'attributes.get("beta", 1.0)',
        'attributes.get("alpha", 1.0)',
        "a folded Gemm's bias is multiplied by the factor of its product",
        ("tests/frontend/test_batchnorm.py::test_gemm",),
    ),
    Mutant(
        "slice-axis",
        "tvmflow/frontend/ops/shaping.py",
        "ranges[axis % len(shape)] =",
        "ranges[abs(axis) % len(shape)] =",
        "a negative axis of a Slice is counted from the front",
        ("tests/frontend/test_slices.py",),
    ),
    Mutant(
        "einsum-axes-of-the-product",
        "tvmflow/frontend/ops/linear.py",
        "    order = [*batch, *rows, *columns]",
        "    order = [*batch, *columns, *rows]",
        "rows of an Einstein sum are taken for columns",
        ("tests/frontend/test_einsum.py::test_einsum",),
    ),
    Mutant(
        "same-padding",
        "tvmflow/frontend/ops/convolution.py",
        'begin.append(smaller if mode == "SAME_UPPER" else larger)',
        'begin.append(larger if mode == "SAME_UPPER" else smaller)',
        "an odd element of auto_pad goes to both sides, or to none",
        ("tests/frontend/test_windows.py",),
    ),
    Mutant(
        "branch",
        "tvmflow/frontend/expansion.py",
        'self.make("Where", [condition, then, otherwise])',
        'self.make("Where", [condition, otherwise, then])',
        "the branch that is not run is selected",
        ("tests/frontend/test_control_flow.py::test_as_onnx_runtime",),
    ),
    Mutant(
        "loop-condition",
        "tvmflow/frontend/control_flow.py",
        "going = yield from conjunction(c, going, told)",
        "going = told",
        "a loop goes on once its condition is true again",
        ("tests/frontend/test_control_flow.py::test_a_loop_that_ended_does_not_go_on",),
    ),
    Mutant(
        "loop-count",
        "tvmflow/frontend/machine_loops.py",
        '"Less", [after, trips]',
        '"LessOrEqual", [after, trips]',
        "a loop has one iteration more than its trip count",
        ("tests/compiler/test_loops.py::test_as_onnx_runtime",),
    ),
    Mutant(
        "loop-not-run",
        "tvmflow/frontend/machine_loops.py",
        "conditions = [*c.values.conditions, *",
        "conditions = [*",
        "a loop runs though its branch does not",
        ("tests/compiler/test_loops.py::test_a_loop_in_a_branch_that_is_not_run",),
    ),
    Mutant(
        "loop-backward",
        "tvmflow/frontend/machine_loops.py",
        "np.arange(extent)[::-1] if rows.backward",
        "np.arange(extent)[::-1] if not rows.backward",
        "rows of a loop are in the other order",
        ("tests/compiler/test_loops.py::test_as_onnx_runtime",),
    ),
    Mutant(
        "loop-weights",
        "tvmflow/compiler/loops.py",
        "            weights += own",
        "            weights = own + weights",
        "the loops of a model get each other's weights",
        ("tests/compiler/test_loops.py::test_two_loops_have_their_own_weights",),
    ),
    Mutant(
        "unsafe-operand",
        "tvmflow/frontend/expansion.py",
        "for condition in values.conditions:",
        "for condition in values.conditions[:0]:",
        "a branch that is not run divides by zero",
        ("tests/frontend/test_control_flow.py::test_operands_of_what_is_not_run_are_replaced",),
    ),
    Mutant(
        "lifted-weight",
        "tvmflow/frontend/lift.py",
        "known[name] = unique(name, self.taken)",
        "known[name] = name",
        "branches share a weight whose name they share",
        ("tests/frontend/test_control_flow.py::test_weights_within_branches",),
    ),
    # -- operators, modules, standalone libraries ------------------------------------------------
    Mutant(
        "box-gradient",
        "tvmflow/ops/box_decode.py",
        "moved = size * (grad(*box, low) + grad(*box, high))",
        "moved = size * (grad(*box, high) - grad(*box, low))",
        "the gradient of a box's centre has the sign of one corner wrong",
        ("tests/ops/test_box_decode.py::test_gradient",),
    ),
    Mutant(
        "weights-order",
        "tvmflow/module/weights.py",
        "% ALIGN_BYTES != 0)",
        "% ALIGN_BYTES == 0)",
        "weights that could be mapped lie behind others, at any address",
        ("tests/module/test_weights.py",),
    ),
    Mutant(
        "elf-offset",
        "tvmflow/module/elf.py",
        "return end + padding",
        "return end",
        "sections begin in the padding before them",
        ("tests/module/test_elf.py",),
    ),
    Mutant(
        "device-limit",
        "tvmflow/runtime/devices.py",
        '"max_work_group_size": "max_work_group"',
        '"max_work_group_size": "compute_units"',
        "a device's compute units are told as its largest work-group",
        ("tests/runtime/test_devices.py",),
    ),
    Mutant(
        "plan-overlap",
        "tvmflow/compiler/standalone/check.py",
        "(operand.written or other.written)",
        "(operand.written and other.written)",
        "a plan whose kernel writes where it reads another tensor is taken for right",
        ("tests/module/standalone/test_plan_check.py",),
    ),
    Mutant(
        "source-size",
        "tvmflow/module/standalone/format.py",
        'header["source_bytes"], header["weight_bytes"] = len(source), weight_bytes',
        'header["source_bytes"], header["weight_bytes"] = len(found), weight_bytes',
        "a plan tells the size of its last section as that of its sources",
        ("tests/module/standalone/test_format.py",),
    ),
    Mutant(
        "picture-edge",
        "tvmflow/module/standalone/pictures.py",
        "level = sum / (weights.x * weights.y);",
        "level = sum / (reach.x * reach.y);",
        "pictures are dark at their edges, where a part of the filter lies outside",
        (f"{_PICTURES}::test_sizes_and_rotations",),
    ),
    Mutant(
        "rounded-anyway",
        "tvmflow/module/standalone/small_weights.py",
        "_ROUNDING[array.dtype.name] * np.abs(numbers)",
        "steps",
        "weights that are no multiples of a step are stored as if they were",
        ("tests/module/standalone/test_small_weights.py",),
    ),
    Mutant(
        "softmax-axes",
        "tvmflow/frontend/results.py",
        "perm=[order.index(i) for i in range(last + 1)]",
        "perm=order",
        "a softmax of an older operator set leaves its axes where they were not",
        ("tests/compiler/test_results.py::test_each_operator_set_has_its_forms",),
    ),
    Mutant(
        "incomplete-package",
        "tvmflow/module/standalone/package/libraries.py",
        "sorted(names - found.keys())",
        "sorted(found.keys() - names)",
        "a package that lacks a library for one of its ABIs is written",
        ("tests/module/standalone/test_package.py",),
    ),
    # -- C and C++ ------------------------------------------------------------------------------
    Mutant(
        "half-ties",
        "native/opencl/half.h",
        "rest > tie || (rest == tie && (kept & 1))",
        "rest >= tie",
        "numbers halfway between two of half precision are rounded up, not to even",
        _UNITS,
    ),
    Mutant(
        "json-bytes",
        "native/opencl/json_writer.h",
        "static_cast<unsigned char>(c) >= 0x7F",
        "static_cast<unsigned char>(c) >= 0xFF",
        "bytes of other encodings make reports that are no JSON",
        _UNITS,
    ),
    Mutant(
        "text-bytes",
        "native/opencl/text_model.h",
        "for (; used < 4; ++used) number",
        "for (; used < 3; ++used) number",
        "a packed text is read a byte behind what was written",
        ("tests/module/standalone/test_recording.py",),
    ),
    Mutant(
        "unchecked-region",
        "native/standalone/plan.c",
        "is_range(r->element, product(texels, 4, 1), elements)",
        "is_range(r->element, texels, elements)",
        "regions of a damaged plan reach behind the application's data",
        (f"{_DAMAGE}::test_what_is_wrong_in_a_record_is_named",),
    ),
    Mutant(
        "recording-limit",
        "native/standalone/recording.c",
        "i < launches && i - first < limit",
        "i < launches && i - first <= limit",
        "a recording takes a launch more than the driver allows, and the next one takes it again",
        ("tests/module/standalone/test_recording.py",),
    ),
    Mutant(
        "dropped-retain",
        "native/standalone/memory.c",
        "const cl_int code = m->device.api.clRetainMemObject(memory);",
        "const cl_int code = CL_SUCCESS;",
        "an application's memory may be gone while kernels use it",
        ("tests/module/standalone/test_retained_memory.py",),
    ),
    Mutant(
        "chroma-order",
        "native/standalone/picture_cpu.c",
        "from_luma(p[0], pair[first], pair[!first]",
        "from_luma(p[0], pair[!first], pair[first]",
        "red and blue of nv12 and nv21 change places",
        (f"{_PICTURES}::test_sizes_and_rotations",),
    ),
    Mutant(
        "moved-size",
        "native/standalone/picture.c",
        "is_size ? 0 : offset[axis]",
        "offset[axis]",
        "widths and heights of boxes are moved as their corners are",
        (f"{_PICTURES}::test_boxes_are_brought_back_to_the_picture",),
    ),
    Mutant(
        "two-threads",
        "native/standalone/entry.c",
        "if (!enter(m)) return TVMFLOW_ERROR_BUSY;",
        "(void)enter(m);",
        "two threads are in calls of one model",
        ("tests/module/standalone/test_interface.py",),
    ),
    Mutant(
        "cancelled-as-done",
        "native/standalone/async.c",
        "const bool cancelled = m && tf_is_stopped(&m->stop);",
        "const bool cancelled = m && false;",
        "an application is told that a cancelled run has results",
        ("tests/module/standalone/test_interface.py",),
    ),
    Mutant(
        "lost-inputs",
        "native/standalone/backend.c",
        "memset(m->missing, 1, inputs);",
        "memset(m->missing, 0, inputs);",
        "after a device failed the CPU runs on inputs that nobody gave it",
        ("tests/module/standalone/test_cpu.py",),
    ),
    # -- tuning and the farm ---------------------------------------------------------------------
    Mutant(
        "lost-trial",
        "tvmflow/farm/scheduler.py",
        "self.devices[address].trials -= 1\n        self._waiting.appendleft(trial)",
        "self.devices[address].trials -= 1",
        "a trial that was given back is lost, and whoever waits for it hangs",
        _LEDGER,
    ),
    Mutant(
        "endless-pardon",
        "tvmflow/farm/scheduler.py",
        "final |= bool(state.reason)",
        "final &= bool(state.reason)",
        "a device that computed wrong results once gets trials again",
        _LEDGER,
    ),
    Mutant(
        "open-secret",
        "tvmflow/farm/network.py",
        "if mode & (stat.S_IRWXG | stat.S_IRWXO):",
        "if mode & stat.S_IRWXG:",
        "a farm's secret may be read by any user of the machine",
        ("tests/farm/test_secret.py::test_a_secret_that_others_can_reach_is_refused",),
    ),
    Mutant(
        "lucky-candidate",
        "tvmflow/tuning/timing.py",
        "len(ratios) / 2 + 1.5 * math.sqrt(len(ratios))",
        "len(ratios) / 2 + 0.5 * math.sqrt(len(ratios))",
        "kernels replace others that are as fast, by chance",
        ("tests/tuning/test_timing.py",),
    ),
    Mutant(
        "keeps-slowest",
        "tvmflow/tuning/maintenance.py",
        "heapq.nsmallest(best, g",
        "heapq.nlargest(best, g",
        "a compacted journal keeps the slowest trials",
        ("tests/journal/test_maintenance.py",),
    ),
    # -- profiles, analyses, predictions, the lab, commands --------------------------------------
    Mutant(
        "roofline-side",
        "tvmflow/explain/profiling/ceilings.py",
        "min(1.0, max(computing, moving))",
        "min(1.0, computing, moving)",
        "a kernel is measured against the ceiling that does not hold it back",
        ("tests/explain/profiling/test_roofline.py",),
    ),
    Mutant(
        "wrong-call",
        "tvmflow/explain/profiling/measure.py",
        "calls[function] * seen[function] // launches[function]",
        "seen[function]",
        "kernels of a function that launches several belong to later layers' nodes",
        ("tests/explain/profiling/test_attribution.py",),
    ),
    Mutant(
        "last-line",
        "tvmflow/explain/analysis/global_memory.py",
        "(rows + element - 1) // line",
        "(rows + element) // line",
        "an element that ends with a line is counted in the next one, too",
        ("tests/explain/analysis/test_coalescing.py",),
    ),
    Mutant(
        "partial-wave",
        "tvmflow/explain/analysis/occupancy.py",
        "waves = ceil(size / hardware.wave)",
        "waves = max(1, size // hardware.wave)",
        "a group's last wave, which is not full, is not counted",
        ("tests/explain/analysis/test_occupancy.py",),
    ),
    Mutant(
        "pairs-of-itself",
        "tvmflow/explain/scaling/predict.py",
        "self.coherency * n * (n - 1)",
        "self.coherency * n * n",
        "one device pays for agreeing with itself",
        ("tests/explain/scaling/test_fit.py",),
    ),
    Mutant(
        "lab-unit",
        "tvmflow/runtime/timing.py",
        "(time.perf_counter() - started) * 1e3",
        "(time.perf_counter() - started) * 1e6",
        "the lab's times are in microseconds and called milliseconds",
        ("tests/schedules/test_lab_running.py",),
    ),
    Mutant(
        "shape-name",
        "tvmflow/cli/options.py",
        'name, equals, value = text.rpartition("=")',
        'name, equals, value = text.partition("=")',
        "inputs whose names have an equals sign cannot be given a shape",
        ("tests/cli/test_cli_options.py",),
    ),
    # -- sizes known at run time -----------------------------------------------------------------
    Mutant(
        "padding-mixed-in",
        "tvmflow/frontend/bounded/rewriter.py",
        'return self.emit("Where", [mask, name, self.constant(np.array(fill, kind.dtype))])',
        "return name",
        "what is behind the elements that count is summed up, and returned",
        _SIZES,
    ),
    Mutant(
        "joined-in-place",
        "tvmflow/frontend/bounded/parts.py",
        "    if not any(name in r.bounded for name in names[:-1]):",
        "    if True:",
        "elements that do not count stay between those of two joined values",
        _SIZES,
    ),
    Mutant(
        "last-row",
        "tvmflow/frontend/bounded/indices.py",
        "        indices = r.from_front(indices, there.size)\n        there = None",
        "        there = None",
        "the last row is that of the bound, not of those that were found",
        _SIZES,
    ),
    Mutant(
        "padding-written",
        "tvmflow/frontend/bounded/indices.py",
        "] = shape[axis]",
        "] = 0",
        "indices behind those that count write to the first place",
        _SIZES,
    ),
    Mutant(
        "first-of-equals",
        "schedules/nms.py",
        "tirx.any(self.best[0] < 0, score > self.best_score[0])",
        "tirx.any(self.best[0] < 0, score >= self.best_score[0])",
        "of boxes with equal scores the last is taken",
        ("tests/schedules/test_selection.py::test_of_equal_scores_the_first_is_taken",),
    ),
    Mutant(
        "first-of-equals-in-heaps",
        "schedules/nms.py",
        "scores[0] == scores[1], a < b",
        "scores[0] == scores[1], a > b",
        "on a CPU, of boxes with equal scores the last is taken",
        (_NMS,),
    ),
    Mutant(
        "at-the-threshold",
        "schedules/nms.py",
        "ratio > self.what.overlap[()]",
        "ratio >= self.what.overlap[()]",
        "boxes that overlap by just as much as is allowed are dropped",
        (_NMS,),
    ),
    Mutant(
        "mixed-up-powers",
        "tvmflow/codegen/opencl_source.py",
        "dtype.bits != 64 or dtype.lanes == 1",
        "dtype.bits != 64 or dtype.lanes > 0",
        "powers of vectors of doubles are PoCL's own, which mix up lanes",
        ("tests/codegen/test_powers.py",),
    ),
    Mutant(
        "gaps-left-open",
        "tvmflow/ir/blocked.py",
        "channels, padded = groups * outputs, blocks // groups * block",
        "channels, padded = groups * outputs, outputs",
        "channels of groups that have vectors of their own are read from the group before",
        ("tests/schedules/test_operators.py::test_uneven_groups",),
    ),
    Mutant(
        "power-of-quarters",
        "tvmflow/frontend/ops/elementwise.py",
        "3: [root, R.sqrt(root)]",
        "3: [R.sqrt(root), R.sqrt(root)]",
        "powers of three quarters, as in LRN, are roots",
        ("tests/frontend/test_special_values.py::test_every_operator",),
    ),
)
