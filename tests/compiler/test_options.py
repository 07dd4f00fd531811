"""Options of a compilation: tables and files, JSON in and out, the same in Python and commands."""

from __future__ import annotations

import inspect
import json
import re
from dataclasses import fields, replace
from functools import partial
from pathlib import Path

import pytest

import tvmflow
from tvmflow.cli.options import _DEFAULTS, FLAGS
from tvmflow.compiler.options import CompileKeywords, CompileOptions
from tvmflow.errors import CompileError, TargetError, UnknownOptionError

FULL = CompileOptions(
    target="opencl",
    device="adreno",
    host="linux-arm64",
    shapes={"x": (1, 3, 8, 8)},
    storage="texture",
    storage_overrides={"conv1": "buffer"},
    dtype="fp16",
    accumulate="fp16",
    algorithms={"conv1": "winograd4"},
    knobs={"pool": {"tile_h": 2}},
    journals=("mine.journal",),
    keep_layout={"x": "nchw4c"},
    results={"y": "softmax+topk:5@-1"},
    format="standalone",
    embed_limit_bytes=1000,
)


@pytest.mark.parametrize("options", [CompileOptions(), FULL])
def test_options_are_the_same_after_json(options):
    assert CompileOptions.from_json(json.loads(json.dumps(options.to_json()))) == options


def test_json_has_what_is_not_the_default():
    assert CompileOptions().to_json() == {"storage": "auto", "dtype": "fp32", "accumulate": "auto"}
    assert CompileOptions(cuda_graph=True).to_json()["cuda_graph"] is True
    assert CompileOptions.from_json({"of_another_version": 1}) == CompileOptions()


@pytest.mark.parametrize(
    ("name", "table"),
    [
        ("storage_overrides", {"a": "texture"}),
        ("algorithms", {"a": "winograd2"}),
        ("knobs", {"a": {"tile_h": 2}}),
        ("keep_layout", {"a": "nchw4c"}),
    ],
)
def test_tables_may_be_files(name, table, tmp_path):
    path = tmp_path / "table.json"
    path.write_text(json.dumps(table))
    assert CompileOptions(**{name: path}) == CompileOptions(**{name: str(path)})
    assert getattr(CompileOptions(**{name: path}), name) == table


@pytest.mark.parametrize("name", ["storage_overrides", "algorithms", "knobs", "keep_layout"])
def test_what_a_table_may_not_have_is_refused(name, tmp_path):
    with pytest.raises(CompileError, match=r" '?a'? ") as caught:
        CompileOptions(**{name: {"a": "diagonal"}})
    assert caught.value.remedy
    with pytest.raises(CompileError, match=r"none\.json could not be read"):
        CompileOptions(**{name: tmp_path / "none.json"})
    (tmp_path / "deep.json").write_text("[" * 100_000)
    with pytest.raises(CompileError, match="could not be read: it is nested too deeply"):
        CompileOptions(**{name: tmp_path / "deep.json"})


def test_options_cannot_be_changed_and_are_checked_for_a_device():
    with pytest.raises(AttributeError):
        FULL.dtype = "fp32"
    assert FULL.resolve().device.channel_block == 4
    with pytest.raises(TargetError, match="only opencl and cuda"):
        replace(FULL, target="llvm", device="cpu", storage="auto", storage_overrides={},
                keep_layout={}).resolve()  # fmt: skip


def test_every_option_has_a_flag_and_a_keyword():
    names = [field.name for field in fields(CompileOptions)]
    assert sorted(FLAGS) == sorted(names)
    keywords = inspect.signature(tvmflow.compile).parameters
    assert set(names) <= set(keywords)
    assert len(set(FLAGS.values())) == len(FLAGS)


@pytest.mark.parametrize(
    ("keyword", "remedy"),
    [
        ("targt", "Did you mean `target`?"),
        ("shape", "Did you mean `shapes`?"),
        ("embed_limit", "Did you mean `embed_limit_bytes`?"),
        ("standalone", "Did you mean `format=standalone`?"),
        ("colour", "The options are target, device, "),
    ],
)
def test_a_keyword_that_is_no_option_gets_the_nearest_one(keyword, remedy):
    for call in (tvmflow.compile, partial(tvmflow.tune, journal="none.journal")):
        with pytest.raises(UnknownOptionError, match=keyword) as caught:
            call(Path("net.onnx"), **{keyword: True})
        assert isinstance(caught.value, TypeError)
        assert caught.value.remedy.startswith(remedy)


@pytest.mark.parametrize("function", [tvmflow.compile, tvmflow.tune])
def test_help_has_each_option_with_its_default_and_meaning(function):
    parameters = inspect.signature(function).parameters
    default = CompileOptions()
    for field in fields(CompileOptions):
        assert parameters[field.name].default == getattr(default, field.name)
        meaning = re.search(
            rf"^{field.name} : .*, default (.*)\n    \S", function.__doc__, re.MULTILINE
        )
        assert meaning, f"{field.name} is not in the docstring of CompileOptions"
        assert meaning[1] == repr(getattr(default, field.name))
    assert [*CompileKeywords.__annotations__] == [field.name for field in fields(CompileOptions)]


def test_the_flag_and_the_keyword_for_large_weights_have_one_default():
    assert _DEFAULTS["embed_limit_bytes"] * 10**6 == CompileOptions().embed_limit_bytes


def test_devices_may_be_gpus_by_name():
    assert CompileOptions(device="mali-g610").resolve().device.name == "mali"
    with pytest.raises(TargetError, match=r"expected one of auto, .*adreno-740, .*sm_90"):
        CompileOptions(device="adreno-741").resolve()
