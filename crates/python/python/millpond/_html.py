"""Tables for Jupyter: HTML with neither scripts nor a network, in the colours of the page around it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import TYPE_CHECKING, Any

from ._shared import human

if TYPE_CHECKING:
    from ._millpond import Level, Pool, RecordingStatus

#: Attributes and no style sheet: Jupyter leaves those of a notebook that is not trusted.
_CELL = "padding:.15em .8em .15em 0;border:0;background:none;vertical-align:top"
#: Wide enough for two sizes, narrow enough for a phone.
_BAR = "display:flex;width:18em;max-width:100%;height:.6em;margin:.3em 0;border:1px solid"


def _table(
    title: str, columns: Sequence[str], rows: Iterable[Sequence[str]], notes: Sequence[str] = (), bar: str = ""
) -> str:
    """A table whose first column is text, and whose others are figures. All but ``bar`` is escaped."""

    def line(tag: str, cells: Sequence[str]) -> str:
        aligned = ("text-align:left", *["text-align:right;white-space:nowrap"] * (len(cells) - 1))
        shown = (f'<{tag} style="{_CELL};{how}">{escape(cell)}</{tag}>' for how, cell in zip(aligned, cells))
        return f"<tr>{''.join(shown)}</tr>"

    head = f"<thead>{line('th', columns)}</thead>" if columns else ""
    body = "".join(line("td", row) for row in rows)
    return (
        '<div style="overflow-x:auto;max-width:100%;margin-bottom:.5em">'
        f'<div style="font-weight:bold;overflow-wrap:anywhere">{escape(title)}</div>{bar}'
        f'<table style="border-collapse:collapse;font-variant-numeric:tabular-nums">{head}<tbody>{body}</tbody></table>'
        + "".join(f'<div style="overflow-wrap:anywhere;max-width:60em">{escape(note)}</div>' for note in notes)
        + "</div>"
    )


def _shares(parts: Sequence[tuple[str, float, float]]) -> str:
    """A bar of parts: what each is, its share of the whole, and how dark it is."""
    text = escape(", ".join(f"{share:.0%} {name}" for name, share, _ in parts))
    drawn = (
        f'<span style="width:{100 * share:.1f}%;background:currentColor;opacity:{dark}"></span>' for _, share, dark in parts
    )
    return f'<div role="img" aria-label="{text}" title="{text}" style="{_BAR}">{"".join(drawn)}</div>'


def _level(name: str, level: Level) -> tuple[str, str, str]:
    return (name, human(level.current), human(level.high))


def _count(count: int, one: str, several: str) -> str:
    return f"{count:,} {one if count == 1 else several}"


def of_pool(pool: Pool) -> str:
    """What a pool holds and did. It asks nothing of the device, so that a pool that was destroyed or forked shows, too."""
    stats = pool.stats()
    whole = max(stats.reserved.current, 1)
    parts = [
        ("requested", min(stats.requested.current / whole, 1.0), 0.8),
        ("cached", min(stats.cached / whole, 1.0), 0.25),
    ]
    rows = [
        ("", "now", "at most"),
        _level("reserved", stats.reserved),
        _level("allocated", stats.allocated),
        _level("requested", stats.requested),
        ("cached", human(stats.cached), ""),
        ("live blocks", f"{stats.blocks.current:,}", f"{stats.blocks.high:,}"),
    ]
    notes = [
        f"{_count(stats.allocations, 'allocation', 'allocations')}: {_count(stats.hits, 'hit', 'hits')},"
        f" {_count(stats.misses, 'miss', 'misses')};"
        f" {_count(stats.pages_remapped, 'page', 'pages')} remapped,"
        f" {_count(stats.retries, 'retry', 'retries')}, {stats.out_of_memory:,} times out of memory"
    ]
    recording = pool.recording
    if recording is not None:
        notes.append(f"recorded to {recording.path}: {_count(recording.events, 'event', 'events')}")
    memory = "" if pool.memory == "device" else f"{pool.memory} memory for "
    return _table(f"Pool {pool.name}, of {memory}{pool.device}", rows[0], rows[1:], notes, _shares(parts))


def of_recording(status: RecordingStatus) -> str:
    """What a recording has done."""
    rows = [("events", f"{status.events:,}"), ("bytes", human(status.bytes))]
    if status.dropped:
        rows.append(("dropped", f"{status.dropped:,}"))
    notes = [] if status.failure is None else [f"the last write failed: {status.failure}"]
    return _table(f"Recording {status.path}", (), rows, notes)


def of_replays(replays: Sequence[dict[str, Any]]) -> str:
    """What ``millpond.replay`` returned: the allocators, and who holds memory at the peak."""
    return "".join(map(_of_replay, replays)) or _table("Nothing was replayed", (), ())


def _of_replay(told: dict[str, Any]) -> str:
    def size(bytes_: Any) -> str:
        return "" if bytes_ is None else human(bytes_)

    rows = [
        (
            row["allocator"],
            size(row["needs"]) or "more than there is",
            "" if row["retries"] is None else f"{row['retries']:,}",
            size(row["peak_reserved"]),
            "out of memory" if row["oom"] is not None else f"{row['ratio']:.3f}",
        )
        for row in told["allocators"]
    ]
    peak = told["live_at_peak"]
    title = f"{told['trace']}: {_count(told['blocks'], 'block', 'blocks')}, requested at most {human(peak['bytes'])}"
    verdict = told["verdict"] or {}
    shown = _table(title, ("allocator", "needs", "retries", "reserved", "ratio"), rows, verdict.get("lines", []))
    return shown + _at_peak(peak)


#: Rows of the table of the peak, at most.
_HOLDERS = 8


def _who(row: dict[str, Any]) -> str:
    """A tag and a call site, as far as there are any."""
    parts = [row.get("tag"), row.get("site")]
    return ": ".join(part for part in parts if part) or "(no tag)"


def _at_peak(peak: dict[str, Any]) -> str:
    holders = peak["sites"] or peak["tags"]
    if not holders:
        return ""
    rows = [(_who(row), human(row["bytes"]), f"{row['blocks']:,}") for row in holders[:_HOLDERS]]
    if len(holders) > _HOLDERS:
        rest = holders[_HOLDERS:]
        size, blocks = (sum(row[of] for row in rest) for of in ("bytes", "blocks"))
        rows.append((f"{len(rest)} others", human(size), f"{blocks:,}"))
    return _table("Held at the peak", ("who", "bytes", "blocks"), rows)
