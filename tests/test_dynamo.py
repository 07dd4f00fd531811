"""``torch.compile(net, backend="tvmflow")``: PyTorch's results, or PyTorch where it must be."""

from __future__ import annotations

import logging
from importlib.metadata import entry_points
from importlib.util import find_spec

import pytest

pytestmark = [
    pytest.mark.skipif(not find_spec("torch"), reason="PyTorch is not installed"),
    pytest.mark.skipif(not find_spec("onnxscript"), reason="onnxscript is not installed"),
]
if find_spec("torch") and find_spec("onnxscript"):
    import torch
    from torch import nn

    from tvmflow import dynamo


class Net:
    """A convolution of five channels, batch norm, a buffer, and results that are no tensors."""

    def __new__(cls):
        class Module(nn.Module):
            def __init__(self):
                super().__init__()
                self.conv = nn.Conv2d(3, 5, 3, padding=1)
                self.norm = nn.BatchNorm2d(5)
                self.register_buffer("scale", torch.linspace(0.5, 2, 5)[:, None, None])

            def forward(self, x):
                y = self.norm(self.conv(x)) * self.scale
                return y.relu(), x.shape[0], y.mean(), None, x

        torch.manual_seed(0)
        return Module().eval()


@pytest.fixture(autouse=True)
def afresh(tmp_path, monkeypatch):
    monkeypatch.setenv("TVMFLOW_CACHE_DIR", str(tmp_path))
    torch._dynamo.reset()


@pytest.fixture
def exported(monkeypatch):
    """Return a list that gets an entry for each graph that is exported."""
    found, original = [], dynamo._exported

    def noted(module, tensors):
        found.append(tuple(map(tuple, (t.shape for t in tensors))))
        return original(module, tensors)

    monkeypatch.setattr(dynamo, "_exported", noted)
    return found


def compiled(function, **options):
    return torch.compile(function, backend=dynamo.compile_graph, options=options or None)


def check(found, expected):
    assert len(found) == len(expected)
    for a, b in zip(found, expected, strict=True):
        if isinstance(b, torch.Tensor):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)
        else:
            assert a == b


def test_results_are_those_of_pytorch(exported):
    net = Net()
    ours = compiled(net)
    with torch.no_grad():
        for shape in ((2, 3, 8, 8), (3, 3, 8, 8), (2, 3, 8, 7), (3, 3, 8, 8)):
            x = torch.rand(shape)
            check(ours(x), net(x))
        x = torch.rand(2, 8, 8, 3).permute(0, 3, 1, 2)  # It is not contiguous.
        check(ours(x), net(x))
    assert exported


def test_the_entry_point_is_known():
    (point,) = entry_points(group="torch_dynamo_backends", name="tvmflow")
    assert point.load() is dynamo.compile_graph
    net = nn.Linear(6, 3).eval()
    x = torch.rand(2, 6)
    with torch.inference_mode():
        torch.testing.assert_close(torch.compile(net, backend="tvmflow")(x), net(x))


@pytest.mark.opencl
def test_the_target_is_an_option(monkeypatch):
    seen = []
    original = dynamo.InferenceSession

    def noted(*args, **kwargs):
        seen.append(original(*args, **kwargs))
        return seen[-1]

    monkeypatch.setattr(dynamo, "InferenceSession", noted)
    net = Net()
    x = torch.rand(1, 3, 8, 8)
    with torch.no_grad():
        check(compiled(net, target="opencl")(x), net(x))
    assert seen[0].get_providers()[0] == "tvmflow-opencl"


def test_changed_weights_are_seen(exported):
    net = Net()
    ours = compiled(net)
    x = torch.rand(2, 3, 8, 8)
    with torch.no_grad():
        check(ours(x), net(x))
        net.conv.weight.mul_(2)
        check(ours(x), net(x))
        net.scale.add_(1)
        check(ours(x), net(x))
        net.load_state_dict(Net().state_dict())
        check(ours(x), net(x))
    assert len(exported) == 4


def in_pytorch(caplog):
    """Return the reasons in the log why PyTorch runs a graph itself."""
    return [r.getMessage() for r in caplog.records if "PyTorch runs a graph" in r.getMessage()]


def test_training_runs_in_pytorch(caplog, exported):
    net = Net().train()
    ours = compiled(net)
    x = torch.rand(2, 3, 8, 8)
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            ours(x)[2].backward()
    assert net.conv.weight.grad is not None
    (reason,) = in_pytorch(caplog)
    assert "no_grad" in reason
    assert exported == []


def test_changed_buffers_run_in_pytorch(caplog):
    net = Net().train()  # The norm updates its statistics.
    twin = Net().train()
    x = torch.rand(2, 3, 8, 8)
    ours = compiled(net)
    with torch.no_grad(), caplog.at_level(logging.WARNING):
        for _ in range(2):
            check(ours(x), twin(x))
    torch.testing.assert_close(net.norm.running_mean, twin.norm.running_mean)
    (reason,) = in_pytorch(caplog)
    assert "changes 3 of its inputs or buffers" in reason


def test_a_changed_input_runs_in_pytorch(caplog):
    ours = compiled(lambda x: x.add_(1) * 2)
    x = torch.zeros(3)
    with caplog.at_level(logging.WARNING):
        assert ours(x).tolist() == [2, 2, 2]
    assert x.tolist() == [1, 1, 1]
    assert len(in_pytorch(caplog)) == 1


def test_changes_within_a_graph_are_compiled(caplog, exported):
    def work(x):
        y = x * 3
        y[:, 1:] += 1
        return y.relu_()

    x = torch.linspace(-1, 1, 12).view(3, 4)
    with caplog.at_level(logging.WARNING):
        torch.testing.assert_close(compiled(work)(x), work(x))
    assert in_pytorch(caplog) == []
    assert len(exported) == 1


def test_random_numbers_run_in_pytorch(caplog):
    ours = compiled(lambda x: nn.functional.dropout(x, 0.5, True))
    with caplog.at_level(logging.WARNING):
        found = torch.stack([ours(torch.ones(1000)) for _ in range(2)])
    assert not torch.equal(found[0], found[1])
    (reason,) = in_pytorch(caplog)
    assert "random" in reason


def test_what_cannot_be_compiled_runs_in_pytorch(caplog):
    ours = compiled(lambda x: torch.linalg.svdvals(x) + 1)
    x = torch.rand(4, 4)
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            torch.testing.assert_close(ours(x), torch.linalg.svdvals(x) + 1)
    assert len(in_pytorch(caplog)) == 1


def test_results_share_memory_with_what_was_computed():
    ours = compiled(lambda x: x * 2)
    found = ours(torch.ones(1024))
    again = ours(torch.ones(1024) * 2)
    assert found.data_ptr() != again.data_ptr()
    assert found.sum() == 2048
    found.add_(1)  # It may be written.


def test_custom_operators_are_compiled(caplog):
    from tvmflow.ops.torch import giou, torch_operator

    decode = torch_operator("BoxDecode")

    def boxes(deltas, anchors):
        (found,) = decode(deltas, anchors)
        return giou(found[0], found[1])

    torch.manual_seed(1)
    low = torch.rand(5, 2)
    anchors, deltas = torch.cat([low, low + 1 + torch.rand(5, 2)], 1), torch.rand(2, 5, 4) * 0.1
    with torch.no_grad(), caplog.at_level(logging.WARNING):
        found = compiled(boxes)(deltas, anchors)
    torch.testing.assert_close(found, boxes(deltas, anchors), rtol=1e-4, atol=1e-5)
    assert in_pytorch(caplog) == []


def test_unknown_options_are_refused():
    x = torch.ones(3)
    with pytest.raises(Exception, match="opencll"):
        compiled(lambda x: x + 1, target="opencll")(x)
    with pytest.raises(Exception, match=r"(?s)dtyp.*dtype"):
        compiled(lambda x: x + 2, dtyp="fp16")(x)
