"""Pools, recordings and replays as Jupyter shows them."""

from __future__ import annotations

import os
from html.parser import HTMLParser
from pathlib import Path

import millpond
import pytest

MIB = 1 << 20


class Page(HTMLParser):
    """The texts of a page, which is made of what a notebook may show, and closed."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.texts: list[str] = []
        self.open: list[str] = []
        self.feed(html)
        self.close()
        assert self.open == [], "every tag is closed"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag in ("div", "span", "table", "thead", "tbody", "tr", "th", "td")
        assert {name for name, _ in attrs} <= {"style", "role", "aria-label", "title"}
        assert all("url" not in (value or "") for _, value in attrs), "nothing is fetched"
        self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def shown(what: millpond.Pool | millpond.RecordingStatus | millpond.Replays) -> list[str]:
    return Page(what._repr_html_()).texts


def test_a_pool_shows_what_it_holds_and_did(tmp_path: Path) -> None:
    pool = millpond.Pool("sim", name="<b>weights & 'more'", record=tmp_path / "a.mprec")
    block = pool.allocate(4 * MIB)
    del block
    kept = pool.allocate(1000)
    texts = shown(pool)
    assert texts[0] == "Pool <b>weights & 'more', of sim"
    after = {text: texts[at + 1] for at, text in enumerate(texts[:-1])}
    assert after["requested"] == "1000 B" and after["live blocks"] == "1"
    assert any(text.startswith("2 allocations: ") for text in texts)
    assert any(text.startswith("recorded to ") and "a.mprec" in text for text in texts)
    del kept


def test_a_pool_that_was_destroyed_or_forked_shows_itself() -> None:
    pool = millpond.Pool("sim", name="gone")
    pool.destroy()
    assert shown(pool)[0] == "Pool gone, of sim"
    pool = millpond.Pool("host", name="parent")
    block = pool.allocate(1000)
    child = os.fork()
    if child == 0:
        try:
            os._exit(0 if "Pool parent, of host" in pool._repr_html_() else 1)
        finally:
            os._exit(2)
    assert os.waitpid(child, 0)[1] == 0
    del block


def test_a_recording_shows_its_file_and_events(tmp_path: Path) -> None:
    pool = millpond.Pool("sim", name="recorded", record=tmp_path / "<run>.mprec")
    pool.allocate(1000)
    status = pool.stop_recording()
    assert status is not None
    texts = shown(status)
    assert texts[0] == f"Recording {tmp_path / '<run>.mprec'}"
    assert texts[1:3] == ["events", f"{status.events:,}"]


def test_replays_show_the_allocators_and_the_peak(tmp_path: Path) -> None:
    path = tmp_path / "job.mprec"
    pool = millpond.Pool("sim", name="recorded", record=path)
    with millpond.tag("<step>"):
        blocks = [pool.allocate(size * MIB) for size in (4, 8, 16)]
    pool.stop_recording()
    del blocks
    replays = millpond.replay(path, allocator=["millpond", "caching"])
    texts = shown(replays)
    assert texts[0] == "job.mprec: 3 blocks, requested at most 28.00 MiB"
    assert {"allocator", "needs", "millpond", "caching", "Held at the peak", "28.00 MiB"} <= set(texts)
    assert any(text.startswith("<step>") for text in texts)
    assert replays == list(replays) and replays[0]["trace"] == "job.mprec", "it is a list as before"
    # A device that is too small.
    texts = shown(millpond.replay(path, allocator="millpond", capacity=16 * MIB, context=0))
    assert "out of memory" in texts and "more than there is" in texts
    assert shown(millpond.Replays()) == ["Nothing was replayed"]


@pytest.mark.parametrize("failure", [None, "no space left on <disk>"])
def test_what_went_wrong_is_said(failure: str | None) -> None:
    class Status:
        path, events, dropped, bytes = Path("a.mprec"), 7, 3, 2000

    Status.failure = failure  # type: ignore[attr-defined]
    texts = Page(millpond._html.of_recording(Status())).texts  # type: ignore[arg-type]
    assert "dropped" in texts and any("<disk>" in text for text in texts) == (failure is not None)
