//! The charts, as plotly's JSON.

use plotly::common::{Fill, Line, LineShape, Mode, Orientation};
use plotly::layout::{Axis, AxisType};
use plotly::{Bar, HeatMap, Layout, Plot, Scatter};

use super::Shown;
use super::sites::Sites;
use crate::replay::Map;

const GIB: f64 = (1u64 << 30) as f64;

/// Cells of the memory map.
const ROWS: usize = 40;
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

pub(super) fn over_time(allocators: &[Shown]) -> String {
    let mut plot = Plot::new();
    if let Some(first) = allocators.first() {
        let (x, y) = points(first, |point| point.requested);
        plot.add_trace(
            Scatter::new(x, y).name("requested").mode(Mode::Lines).fill(Fill::ToZeroY).line(step()),
        );
    }
    for shown in allocators {
        let (x, y) = points(shown, |point| point.reserved);
        plot.add_trace(Scatter::new(x, y).name(&shown.outcome.allocator).mode(Mode::Lines).line(step()));
    }
    plot.set_layout(layout("seconds", "GiB"));
    json(&plot)
}

fn points(shown: &Shown, bytes: fn(&super::Point) -> u64) -> (Vec<f64>, Vec<f64>) {
    shown.points.iter().map(|point| (point.time_us as f64 / 1e6, bytes(point) as f64 / GIB)).unzip()
}

fn step() -> Line {
    Line::new().shape(LineShape::Hv)
}

fn layout(x: &str, y: &str) -> Layout {
    Layout::new().x_axis(Axis::new().title(x.to_owned())).y_axis(Axis::new().title(y.to_owned()))
}

/// All pages and segments one behind the other, by rising address, in cells: the share of each that is live.
pub(super) fn map(map: &Map) -> String {
    let total: u64 = map.backing.iter().map(|(_, bytes)| bytes).sum();
    let cell = total.div_ceil((ROWS * COLUMNS) as u64).max(1);
    let mut live = vec![vec![0.0; COLUMNS]; ROWS];
    let mut before = 0;
    for &(address, bytes) in &map.backing {
        let end = address + bytes;
        let first = map.live.partition_point(|(at, size)| at + size <= address);
        for &(at, size) in map.live[first..].iter().take_while(|(at, _)| *at < end) {
            let (from, to) = (at.max(address), (at + size).min(end));
            add(&mut live, cell, before + from - address, before + to - address);
        }
        before += bytes;
    }
    let mut plot = Plot::new();
    plot.add_trace(HeatMap::new_z(live).zmin(0.0).zmax(1.0));
    let axis = || Axis::new().show_tick_labels(false);
    let first_row_on_top = axis().range(vec![ROWS as f64 - 0.5, -0.5]);
    let each = format!("{} a cell; by rising address, row by row", millpond::HumanBytes(cell));
    plot.set_layout(Layout::new().x_axis(axis().title(each)).y_axis(first_row_on_top));
    json(&plot)
}

/// Adds live bytes to the cells that they lie in.
fn add(live: &mut [Vec<f64>], cell: u64, from: u64, to: u64) {
    let mut at = from;
    while at < to {
        let number = (at / cell) as usize;
        let end = to.min((at / cell + 1) * cell);
        live[number / COLUMNS][number % COLUMNS] += (end - at) as f64 / cell as f64;
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
        largest_last.map(|(name, bytes)| (name.clone(), *bytes as f64 / GIB)).unzip();
    let mut plot = Plot::new();
    plot.add_trace(Bar::new(bytes, names).orientation(Orientation::Horizontal));
    plot.set_layout(layout("GiB", ""));
    Some(json(&plot))
}

pub(super) fn by_size(sites: &Sites) -> String {
    let name = |&(power, _): &(u32, u64)| format!("≥ {}", millpond::HumanBytes(1 << power));
    let names: Vec<_> = sites.by_size.iter().map(name).collect();
    let bytes: Vec<_> = sites.by_size.iter().map(|(_, bytes)| *bytes as f64 / GIB).collect();
    let mut plot = Plot::new();
    plot.add_trace(Bar::new(names, bytes));
    let x = Axis::new().title("block size".to_owned()).type_(AxisType::Category);
    plot.set_layout(Layout::new().x_axis(x).y_axis(Axis::new().title("GiB".to_owned())));
    json(&plot)
}
