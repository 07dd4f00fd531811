"""Choices of compiled networks compute the same, and tuning picks the faster ones."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper
from support.onnx_models import expected
from support.operators import build
from support.standalone_api import Model

import tvmflow
from tvmflow.compiler.standalone.derive_weights import derive_weights
from tvmflow.errors import DeviceError, InputError, JournalError, TargetError
from tvmflow.ir import blocked
from tvmflow.journal.journal import Journal
from tvmflow.module.standalone.format import AlternativeKind, Section
from tvmflow.module.standalone.plan import Plan
from tvmflow.module.standalone.read import describe, find_plans, find_weights
from tvmflow.schedules.winograd import transformed_weight
from tvmflow.tuning.tuned_libraries import import_report

pytestmark = pytest.mark.opencl

CONFIGURATIONS = {
    "textures": {"device": "adreno"},
    "half": {"device": "adreno", "dtype": "fp16", "accumulate": "fp32"},
    "mali": {"device": "mali"},
    "nvidia": {"device": "nvidia", "storage": "buffer"},
    "cpu": {"device": "cpu"},
}
#: Knobs of convolutions that no device likes.
BAD = {"tile_o": 1, "tile_h": 1, "tile_w": 1}


@pytest.fixture(autouse=True, scope="module")
def cache(tmp_path_factory) -> Iterator[None]:
    """An earlier run of the tests must not have tuned the libraries."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TVMFLOW_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="module")
def network(tmp_path_factory) -> Path:
    """Return a network with odd numbers of channels, whose convolutions may be Winograd's."""
    rng = np.random.default_rng(7)

    def weights(*shape: int) -> np.ndarray:
        return (rng.standard_normal(shape) * 0.2).astype(np.float32)

    nodes = [
        helper.make_node("Conv", ["image", "w1"], ["a"], "stem", pads=[1] * 4, strides=[2, 2]),
        helper.make_node("Relu", ["a"], ["b"], "relu"),
        helper.make_node("Conv", ["b", "w2"], ["c"], "middle", pads=[1] * 4),
        helper.make_node("Relu", ["c"], ["d"], "relu2"),
        helper.make_node("Conv", ["d", "w3"], ["e"], "depthwise", group=30, pads=[1] * 4),
        helper.make_node("Add", ["e", "b"], ["f"], "add"),
        helper.make_node("Conv", ["f", "w4"], ["g"], "pointwise"),
        helper.make_node("GlobalAveragePool", ["g"], ["scores"], "pool"),
    ]
    tensors = {
        "w1": weights(30, 3, 3, 3),
        "w2": weights(30, 30, 3, 3),
        "w3": weights(30, 1, 3, 3),
        "w4": weights(21, 30, 1, 1),
    }
    path = tmp_path_factory.mktemp("network") / "net.onnx"
    onnx.save(build(nodes, {"image": (1, 3, 57, 62)}, ["scores"], tensors), path)
    return path


@pytest.fixture(scope="module")
def compiled(compiled_once):
    """Return a function that compiles a library, with three choices if no other number is asked."""
    return partial(compiled_once, choices=3)


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_no_choice_is_wrong(compiled, network, name):
    path = compiled(**CONFIGURATIONS[name])
    rng = np.random.default_rng(3)
    image = rng.standard_normal((1, 3, 57, 62)).astype(np.float32)
    with tvmflow.load(path) as module:
        tuned = module.tune(600_000)
        assert tuned.is_complete
        assert len(tuned.report["times"]) == tuned.report["choices"] >= 4
        assert {time["standing"] for time in tuned.report["times"]} <= {"used", "slower"}
        (got,) = module(image)
        assert module.self_test(runs=2).findings() == []
    (want,) = expected(onnx.load(network), {"image": image})
    tolerance = 2e-2 if name == "half" else 1e-4
    np.testing.assert_allclose(got, want, rtol=tolerance, atol=tolerance * np.abs(want).max())


def test_bad_knobs_are_replaced(compiled, tmp_path):
    """The library's kernels are bad on purpose; its first choice has the heuristic's knobs."""
    with tvmflow.load(compiled(device="cpu", choices=1)) as module:
        tiled = {n: c for n, c in module.metadata["choices"].items() if "tile_w" in c["knobs"][0]}
    bad = {name: {**choices["knobs"][0], **BAD} for name, choices in tiled.items()}
    path = compiled(device="cpu", knobs=bad, choices=4)
    shares: list[float] = []
    with tvmflow.load(path) as module:
        tuned = module.tune(600_000, shares.append)
    assert tuned.used >= 1
    assert shares[-1] == 1
    before, after = tuned.report["network_us"]
    assert after < before
    assert "are used; a run took" in tuned.summary()
    report, journal = tmp_path / "tuned.json", tmp_path / "phones.journal"
    tuned.save(report)
    with Journal.open(journal, "a") as opened:
        assert import_report(opened, report, path).records >= 4
        with pytest.raises(JournalError, match="a report of another library"):
            import_report(opened, report, compiled(device="cpu", choices=1))
        report.write_text("{}")
        with pytest.raises(JournalError, match="no report of tvmflow_tune"):
            import_report(opened, report, path)
    with Journal.open(journal) as opened:
        best = [opened.trial_of(entry) for entry in opened.entries()]
        assert any(trial.knobs not in bad.values() for trial in best)
        assert {trial.device.name for trial in best} == {tuned.report["device"]["name"]}


def test_choices_replace_what_is_wrong_before_plain_kernels(compiled):
    """With both, a wrong kernel costs no more than another choice."""
    path = compiled(device="cpu", alternatives="safe")
    (plan,) = find_plans(path)
    found = plan[Section.ALTERNATIVES]
    both = {int(row["first"]) for row in found if row["kind"] == AlternativeKind.CHOICE}
    assert both & {int(row["first"]) for row in found if row["kind"] == AlternativeKind.PLAIN}
    with Model(path) as model:
        report = model.self_test_with()
    assert report["functions"] == []
    assert report["choices"] >= 4
    assert report["alternatives"] >= 4


def test_weights_are_stored_once(compiled):
    sizes = []
    for choices in (0, 3):
        path = compiled(device="nvidia", storage="buffer", choices=choices)
        plans = find_plans(path)
        about = describe(path, plans, find_weights(path, plans[0]))
        sizes.append(about["sizes"]["weights"])
        assert (about["alternatives"]["choices"] > 0) == (choices > 0)
    assert sizes[0] == sizes[1]


@pytest.mark.parametrize("is_default", [False, True])
def test_winograds_weights_are_derived_from_direct_ones(is_default):
    """Whichever of them only a choice reads: the windows are smaller."""
    windows = np.random.default_rng(1).standard_normal((2, 8, 3, 3, 4)).astype(np.float32)
    plain = np.moveaxis(windows, -1, 1).reshape(8, 8, 3, 3)
    winograd = blocked.winograd_weight(transformed_weight(plain, 4), 4)
    both = {"direct": windows, "winograd": winograd.astype(np.float32)}
    plan = Plan(weights=both, alternative_weights={"direct" if is_default else "winograd"})
    (stored,) = derive_weights(plan, None, None).values()
    assert stored is windows
    assert plan.derived["winograd"].transform is not None
    assert plan.stored_names["winograd"] == plan.stored_names.get("direct", "direct")


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"target": "llvm", "format": "standalone"}, "a standalone library for opencl can have"),
        ({"target": "opencl", "device": "cpu"}, "a standalone library for opencl can have"),
        ({"target": "opencl", "format": "standalone", "choices": 9}, "from 0 to 8, got 9"),
        ({"target": "opencl", "format": "standalone", "choices": "4"}, "from 0 to 8, got '4'"),
    ],
)
def test_options_that_cannot_be(network, options, text):
    with pytest.raises(TargetError, match=text):
        tvmflow.compile(network, **{"choices": 4, **options})


def test_bad_calls(compiled):
    with tvmflow.load(compiled(device="cpu", choices=0)) as module:
        with pytest.raises(InputError, match="budget_ms=0"):
            module.tune(0)
        with pytest.raises(DeviceError, match="has no choices") as error:
            module.tune(100)
        assert "--choices 4" in str(error.value.remedy)
