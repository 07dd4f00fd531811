"""A browser for all tests of pages, and a page of it for each."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.browser import Browser, Page

from tvmflow.explain.profiling.page.write import write_page


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """One for the whole session: it takes seconds to start."""
    started = Browser(tmp_path_factory.mktemp("browser"))
    yield started
    started.close()


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    """An empty page; a test fails if the console has an error or something else was loaded."""
    opened = browser.page()
    yield opened
    complaints, requests = opened.complaints(), opened.requests()
    opened.close()
    assert complaints == []
    assert len(requests) == len([url for url in requests if url.endswith(".html")])


@pytest.fixture
def show(page: Page, tmp_path: Path) -> Callable[..., Page]:
    """A function that opens the page of a profile, or of two, and returns the browser's page."""

    def opened(profile, before=None, codes=(), **how):
        path = tmp_path / "profile.html"
        write_page(path, profile, before, codes)
        page.open(path, **how)
        return page

    return opened
