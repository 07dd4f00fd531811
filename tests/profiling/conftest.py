"""A browser for all tests of pages, and a page of it for each."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from browser import Browser, Page


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
