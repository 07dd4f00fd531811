"""Networks that come with the ``onnx`` package, with seeded weights instead of constant ones.

The package's ``light`` test models are whole networks whose weights are constants that the model
spreads over tensors, so that their files are small.  Results of constant weights say little of
right and wrong, and engines may fold them: every one becomes a drawn initializer here.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx import helper, numpy_helper

FOLDER = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"
NETWORKS = ("alexnet", "densenet121", "inception_v1", "inception_v2", "shufflenet", "vgg19")


def make(name: str, seed: int = 0) -> onnx.ModelProto:
    """Return a network of `NETWORKS`: a picture of 1x3x224x224 in, 1000 classes out.

    The last Softmax is left out: with drawn weights it would give a one among zeros.  Weights of
    convolutions and products are normal with the variance that keeps that of their input (He et
    al. 2015), scales lie about 1, all else about 0.
    """
    (file,) = FOLDER.glob(f"light_*{name}.onnx")
    model = onnx.load(file)
    graph = model.graph
    rng = np.random.default_rng(seed)
    shapes = {each.name: numpy_helper.to_array(each) for each in graph.initializer}
    spread = {n.output[0]: shapes[n.input[0]] for n in graph.node if n.op_type == "ConstantOfShape"}
    kept = [node for node in graph.node if node.op_type != "ConstantOfShape"]
    uses = {value: (node, i) for node in reversed(kept) for i, value in enumerate(node.input)}
    drawn = []
    for value, shape in spread.items():
        node, place = uses[value]
        while node.op_type == "Unsqueeze":
            node, place = uses[node.output[0]]
        values = rng.standard_normal(shape)
        if node.op_type in ("Conv", "Gemm") and place == 1:
            # Products have their weights' axes as outputs by inputs in all of these networks.
            values *= np.sqrt(2 / np.prod(shape[1:]))
        elif node.op_type == "Mul" or (node.op_type == "BatchNormalization" and place in (1, 4)):
            values = 1 + 0.1 * np.abs(values)
        else:
            values *= 0.1
        drawn.append(numpy_helper.from_array(values.astype(np.float32), value))
    outputs = list(graph.output)
    if kept[-1].op_type == "Softmax":
        outputs[0].name = kept.pop().input[0]
    read = {value for node in kept for value in node.input}
    others = [each for each in graph.initializer if each.name in read]
    given = {each.name for each in [*others, *drawn]}
    inputs = [each for each in graph.input if each.name in read - given]
    made = helper.make_graph(kept, name, inputs, outputs, [*others, *drawn])
    # Initializers were inputs as well before version 4 of the format.
    result = helper.make_model(made, opset_imports=model.opset_import, ir_version=8)
    onnx.checker.check_model(result)
    return result
