"""The page of `benchmarks/gpu_code.py`: rows with earlier numbers, sorted and filtered."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest
from support.browser import Browser

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


@pytest.fixture
def gpu_code(monkeypatch):
    """Return the benchmark as a module."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    spec = importlib.util.spec_from_file_location("gpu_code", BENCHMARKS / "gpu_code.py")
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "gpu_code", module)
    spec.loader.exec_module(module)
    return module


def counted(columns, **kernels: tuple[int, int]):
    """Return results of a network: share and spills of each kernel."""
    sums = {"kernels": len(kernels), "spills": sum(spills for _, spills in kernels.values())}
    rows = {
        name: [{"share %": share, "spills": spills}.get(column) for column in columns]
        for name, (share, spills) in kernels.items()
    }
    return {**sums, "by kernel": rows}


@pytest.mark.browser
def test_the_page_sorts_and_filters(gpu_code, tmp_path):
    columns = gpu_code.COLUMNS
    results = {
        "net <1>, buffer, adreno-660": counted(columns, small=(0.4, 0), large=(60, 7), new=(9, 1)),
        "net <1>, buffer, adreno-740": counted(columns, large=(60, 2)),
        "other, buffer, adreno-740": counted(columns, large=(60, 2)),
    }
    before = {"net <1>, buffer, adreno-660": counted(columns, small=(0.4, 0), large=(60, 90))}
    path = tmp_path / "page.html"
    path.write_text(gpu_code.page(results, before))
    browser = Browser(tmp_path / "browser")
    page = browser.page()
    page.open(path)

    def kernels(number: int) -> list[str]:
        return page.texts(f"#kernels td:nth-child({number})")

    spills = 5 + list(columns).index("spills")
    # The first network alone, the largest share first.
    assert kernels(4) == ["large", "large", "new", "small"]
    assert kernels(spills) == ["90 → 7", "2", "1", "0"]
    assert page.texts("#kernels .better") == ["90 → 7"]
    assert page.texts("#networks .worse") == ["2 → 3"]
    page.click(f"#kernels th:nth-child({spills})")
    assert kernels(4) == ["large", "large", "new", "small"]
    page.click(f"#kernels th:nth-child({spills})")
    assert kernels(4) == ["small", "new", "large", "large"]
    page.click("#choices label:nth-child(4) input")
    assert kernels(4) == ["new", "large", "large"]
    page.run("document.querySelectorAll('select')[2].value = 'adreno-740'")
    page.run("document.querySelectorAll('select')[2].dispatchEvent(new Event('change'))")
    assert kernels(3) == ["adreno-740"]
    assert page.complaints() == []
    browser.close()
