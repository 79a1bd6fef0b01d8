//! The charts, as plotly's JSON.

use std::ops::Range;

use plotly::common::{Fill, Line, LineShape, Mode, Orientation};
use plotly::layout::{Axis, AxisType};
use plotly::{Bar, HeatMap, Layout, Plot, Scatter};

use super::Shown;
use super::sites::Sites;
use crate::replay::Map;

const GIB: f64 = (1u64 << 30) as f64;

/// Cells of the memory map.
const ROWS: usize = 24;
const COLUMNS: usize = 160;

/// plotly's own script. The crate hands out MathJax with it, which nothing here uses.
pub(super) fn script() -> String {
    let scripts = Plot::offline_js_sources();
    scripts.split_inclusive("</script>").next().unwrap_or_default().to_owned()
}

/// JSON that may stand in a script: no text in it can end the script.
fn json(plot: &Plot) -> String {
    plot.to_json().replace('<', "\\u003c")
}

/// A chart, and for each of its lines the events at which its points are, to draw it over events as well.
pub(super) fn over_time(allocators: &[Shown]) -> (String, String) {
    let mut plot = Plot::new();
    let mut events = Vec::new();
    if let Some(first) = allocators.first() {
        let (x, y) = points(first, |point| point.requested);
        plot.add_trace(
            Scatter::new(x, y).name("requested").mode(Mode::Lines).fill(Fill::ToZeroY).line(step()),
        );
        events.push(first);
    }
    for shown in allocators {
        let (x, y) = points(shown, |point| point.reserved);
        plot.add_trace(Scatter::new(x, y).name(&shown.outcome.allocator).mode(Mode::Lines).line(step()));
        events.push(shown);
    }
    plot.set_layout(layout("seconds", "GiB"));
    let events: Vec<Vec<usize>> =
        events.iter().map(|shown| shown.points.iter().map(|point| point.event).collect()).collect();
    (json(&plot), format!("{events:?}"))
}

fn points(shown: &Shown, bytes: fn(&super::Point) -> u64) -> (Vec<f64>, Vec<f64>) {
    shown.points.iter().map(|point| (point.time_us as f64 / 1e6, gib(bytes(point)))).unzip()
}

/// To a hundred KiB, which is finer than a chart shows, so that the file has no digits for nothing.
fn gib(bytes: u64) -> f64 {
    (bytes as f64 / GIB * 1e4).round() / 1e4
}

fn step() -> Line {
    Line::new().shape(LineShape::Hv)
}

fn layout(x: &str, y: &str) -> Layout {
    Layout::new().x_axis(Axis::new().title(x.to_owned())).y_axis(Axis::new().title(y.to_owned()))
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
    let mut plot = Plot::new();
    plot.add_trace(HeatMap::new_z(colours.collect()).zmin(0.0).zmax(3.0).show_scale(false));
    let axis = || Axis::new().show_tick_labels(false).show_grid(false).zero_line(false);
    let first_row_on_top = axis().range(vec![ROWS as f64 - 0.5, -0.5]);
    let caption = format!("{} a cell; by rising address, row by row", millpond::HumanBytes(each));
    plot.set_layout(Layout::new().x_axis(axis().title(caption)).y_axis(first_row_on_top));
    json(&plot)
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
        largest_last.map(|(name, bytes)| (name.clone(), gib(*bytes))).unzip();
    let mut plot = Plot::new();
    plot.add_trace(Bar::new(bytes, names).orientation(Orientation::Horizontal));
    plot.set_layout(layout("GiB", ""));
    Some(json(&plot))
}

pub(super) fn by_size(sites: &Sites) -> String {
    let name = |&(power, _): &(u32, u64)| format!("≥ {}", millpond::HumanBytes(1 << power));
    let names: Vec<_> = sites.by_size.iter().map(name).collect();
    let bytes: Vec<_> = sites.by_size.iter().map(|(_, bytes)| gib(*bytes)).collect();
    let mut plot = Plot::new();
    plot.add_trace(Bar::new(names, bytes));
    let x = Axis::new().title("block size".to_owned()).type_(AxisType::Category);
    plot.set_layout(Layout::new().x_axis(x).y_axis(Axis::new().title("GiB".to_owned())));
    json(&plot)
}
