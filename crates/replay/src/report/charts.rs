//! The charts, as [plotly's JSON](https://plotly.com/javascript/reference/).

use std::ops::Range;

use serde_json::{Value, json};

use super::Shown;
use crate::replay::Map;
use crate::sites::Sites;

const GIB: f64 = (1u64 << 30) as f64;

/// Cells of the memory map.
const ROWS: usize = 24;
const COLUMNS: usize = 160;

/// A plot as JSON that may stand in a script: no text in it can end the script.
fn plot(data: &[Value], layout: &Value) -> String {
    json!({ "data": data, "layout": layout }).to_string().replace('<', "\\u003c")
}

/// A chart, and for each of its lines the events at which its points are, to draw it over events as well.
pub(super) fn over_time(allocators: &[Shown]) -> (String, String) {
    let (mut lines, mut events) = (Vec::new(), Vec::new());
    if let Some(first) = allocators.first() {
        let mut requested = line("requested", first, |point| point.requested);
        requested["fill"] = json!("tozeroy");
        lines.push(requested);
        events.push(first);
    }
    for shown in allocators {
        lines.push(line(&shown.outcome.allocator, shown, |point| point.reserved));
        events.push(shown);
    }
    let events: Vec<Vec<usize>> =
        events.iter().map(|shown| shown.points.iter().map(|point| point.event).collect()).collect();
    (plot(&lines, &axes("seconds", "GiB")), format!("{events:?}"))
}

/// Bytes over time, in steps.
fn line(name: &str, shown: &Shown, bytes: fn(&super::Point) -> u64) -> Value {
    let points = shown.points.iter().map(|point| (point.time_us as f64 / 1e6, gib(bytes(point))));
    let (x, y): (Vec<f64>, Vec<f64>) = points.unzip();
    json!({ "type": "scatter", "name": name, "mode": "lines", "line": { "shape": "hv" }, "x": x, "y": y })
}

/// To a hundred KiB, which is finer than a chart shows, so that the file has no digits for nothing.
fn gib(bytes: u64) -> f64 {
    (bytes as f64 / GIB * 1e4).round() / 1e4
}

/// A layout with titles at its axes.
fn axes(x: &str, y: &str) -> Value {
    json!({ "xaxis": { "title": { "text": x } }, "yaxis": { "title": { "text": y } } })
}

/// One cell of the memory map, in bytes.
#[derive(Debug, Clone, Copy, Default)]
struct Cell {
    /// On any page or segment.
    held: u64,
    /// On pages and segments that have a live block.
    in_use: u64,
    /// In live blocks.
    live: u64,
}

impl Cell {
    /// From 0 to 1: the share that is live, where the rest is on free pages. From 2 to 3: 2 more, where the rest
    /// is holes. The page's script has the colours.
    fn colour(self) -> f64 {
        if self.held == 0 {
            // Behind the last page; written as null.
            return f64::NAN;
        }
        let share = (self.live as f64 / self.held as f64 * 1e3).round() / 1e3;
        if self.in_use - self.live > self.held - self.in_use { 2.0 + share } else { share }
    }
}

/// All pages and segments one behind the other, by rising address, in cells.
pub(super) fn map(map: &Map) -> String {
    let total: u64 = map.backing.iter().map(|(_, bytes)| bytes).sum();
    let each = total.div_ceil((ROWS * COLUMNS) as u64).max(1);
    let mut cells = vec![Cell::default(); ROWS * COLUMNS];
    let mut before = 0;
    for &(address, bytes) in &map.backing {
        let end = address + bytes;
        let first = map.live.partition_point(|(at, size)| at + size <= address);
        let mut in_use = false;
        for &(at, size) in map.live[first..].iter().take_while(|(at, _)| *at < end) {
            let (from, to) = (at.max(address), (at + size).min(end));
            add(&mut cells, each, before + from - address..before + to - address, |cell| &mut cell.live);
            in_use = true;
        }
        add(&mut cells, each, before..before + bytes, |cell| &mut cell.held);
        if in_use {
            add(&mut cells, each, before..before + bytes, |cell| &mut cell.in_use);
        }
        before += bytes;
    }
    let colours = cells.chunks(COLUMNS).map(|row| row.iter().map(|cell| cell.colour()).collect::<Vec<_>>());
    let caption = format!("{} a cell; by rising address, row by row", millpond::HumanBytes(each));
    let mut layout = axes(&caption, "");
    for axis in ["xaxis", "yaxis"] {
        for mark in ["showticklabels", "showgrid", "zeroline"] {
            layout[axis][mark] = json!(false);
        }
    }
    // The first row is on top.
    layout["yaxis"]["range"] = json!([ROWS as f64 - 0.5, -0.5]);
    let z: Vec<_> = colours.collect();
    plot(&[json!({ "type": "heatmap", "z": z, "zmin": 0, "zmax": 3, "showscale": false })], &layout)
}

/// Adds a stretch of bytes to the cells that it lies in.
fn add(cells: &mut [Cell], each: u64, bytes: Range<u64>, part: fn(&mut Cell) -> &mut u64) {
    let mut at = bytes.start;
    while at < bytes.end {
        let number = at / each;
        let end = bytes.end.min((number + 1) * each);
        *part(&mut cells[number as usize]) += end - at;
        at = end;
    }
}

/// `None` where no stacks were recorded.
pub(super) fn by_site(sites: &Sites) -> Option<String> {
    if sites.by_site.is_empty() {
        return None;
    }
    let largest_last = sites.by_site.iter().rev();
    let (names, bytes): (Vec<_>, Vec<_>) =
        largest_last.map(|site| (site.name.clone(), gib(site.bytes))).unzip();
    let bars = json!({ "type": "bar", "orientation": "h", "x": bytes, "y": names });
    Some(plot(&[bars], &axes("GiB", "")))
}

pub(super) fn by_size(sites: &Sites) -> String {
    let name = |&(power, _): &(u32, u64)| format!("≥ {}", millpond::HumanBytes(1 << power));
    let names: Vec<_> = sites.by_size.iter().map(name).collect();
    let bytes: Vec<_> = sites.by_size.iter().map(|(_, bytes)| gib(*bytes)).collect();
    let mut layout = axes("block size", "GiB");
    layout["xaxis"]["type"] = json!("category");
    plot(&[json!({ "type": "bar", "x": names, "y": bytes })], &layout)
}
