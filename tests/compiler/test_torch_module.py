"""PyTorch modules as models: exported by PyTorch, compiled like any other, with their names."""

from __future__ import annotations

from importlib.util import find_spec

import numpy as np
import pytest

import tvmflow
from tvmflow.errors import ModelError

pytestmark = pytest.mark.skipif(
    not (find_spec("torch") and find_spec("onnxscript")),
    reason="PyTorch, or onnxscript for its exporter, is not installed",
)
if find_spec("torch"):
    import torch
    from torch import nn

    class Small(nn.Module):
        """A convolution of 7 channels, a norm, a branch and a classifier."""

        def __init__(self):
            super().__init__()
            self.stem = nn.Conv2d(3, 7, 3, padding=1)
            self.norm = nn.BatchNorm2d(7)
            self.drop = nn.Dropout(0.5)
            self.head = nn.Linear(7, 5)

        def forward(self, picture, offset):
            x = self.drop(torch.relu(self.norm(self.stem(picture))))
            return self.head(x.mean((2, 3))) + offset, x

    class Branching(nn.Module):
        """A module that cannot be traced: its control flow depends on numbers."""

        def forward(self, x):
            return x + 1 if x.sum().item() > 0 else x - 1


def small():
    torch.manual_seed(7)
    net = Small()
    with torch.no_grad():
        for statistic in (net.norm.running_mean, net.norm.running_var, net.norm.weight):
            statistic.copy_(torch.rand(7) + 0.5)
    return net, (torch.rand(2, 3, 9, 11), torch.rand(5))


def compared(module, net, examples):
    net.eval()
    with torch.no_grad():
        expected = [part.numpy() for part in net(*examples)]
    for found, right in zip(module(*(e.numpy() for e in examples)), expected, strict=True):
        np.testing.assert_allclose(found, right, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("by_name", [False, True])
def test_a_module_is_compiled_with_the_names_of_its_parameters(by_name):
    net, examples = small()
    net.drop.eval()  # Each part has its own mode, and keeps it.
    given = dict(zip(("picture", "offset"), examples, strict=True)) if by_name else examples
    module = tvmflow.compile(net, given, target="llvm")
    assert [part.training for part in (net, net.norm, net.drop)] == [True, True, False]
    assert [info.name for info in module.inputs] == ["picture", "offset"]
    assert module.metadata["name"] == "Small"
    made_of = {name for names in module.metadata["initializers"].values() for name in names}
    # The exporter itself folds the norm into the convolution.
    assert {"stem.weight", "stem.bias", "head.weight", "head.bias"} <= made_of
    compared(module, net, examples)


def test_one_tensor_is_enough_for_one_input():
    net = nn.Sequential(nn.Conv2d(3, 4, 1), nn.ReLU())
    example = torch.rand(1, 3, 5, 5)
    module = tvmflow.compile(net, example, target="llvm")
    with torch.no_grad():
        np.testing.assert_allclose(module(example.numpy())[0], net(example).numpy(), atol=1e-5)


def test_what_cannot_be_exported_is_refused():
    net, examples = small()
    with pytest.raises(ModelError, match="Small needs inputs to trace it with"):
        tvmflow.compile(net, target="llvm")
    with pytest.raises(ModelError, match="could not export the module Small"):
        tvmflow.compile(net, examples[:1], target="llvm")
    with pytest.raises(ModelError, match="could not export the module Branching"):
        tvmflow.compile(Branching(), torch.rand(3), target="llvm")
    with pytest.raises(ModelError, match="only PyTorch modules are traced"):
        tvmflow.compile("net.onnx", examples, target="llvm")
