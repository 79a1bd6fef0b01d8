//! The chart of memory over time, as [plotly's JSON](https://plotly.com/javascript/reference/).

use millpond_baselines::MILLPOND;
use serde_json::json;

use super::holders::Holders;
use super::section::Shown;
use super::timeline::Point;

/// A unit, and how many of what is counted are one.
type Unit = (&'static str, f64);

/// The largest unit of which there is at least one.
fn unit(units: &[Unit], most: f64) -> Unit {
    units.iter().copied().rev().find(|(_, each)| most >= *each).unwrap_or(units[0])
}

/// For bytes.
const BYTES: [Unit; 5] = [
    ("B", 1.0),
    ("KiB", (1u64 << 10) as f64),
    ("MiB", (1u64 << 20) as f64),
    ("GiB", (1u64 << 30) as f64),
    ("TiB", (1u64 << 40) as f64),
];

/// For microseconds.
const TIMES: [Unit; 5] =
    [("microseconds", 1.0), ("milliseconds", 1e3), ("seconds", 1e6), ("minutes", 60e6), ("hours", 3600e6)];

/// The arguments of the page's `draw`: the lines over time, the events at which their points are, the title of the
/// axis of time, and whether events are shown first. Later lines are drawn over earlier ones: first all allocators that are
/// there to compare with, then what was requested, then what ran and the pool.
pub(super) fn over_time(allocators: &[Shown], wall_us: u64, is_idle: bool, ran: &str) -> String {
    let most = allocators.iter().flat_map(|shown| &shown.points).map(|point| point.reserved).max();
    let (bytes, each) = unit(&BYTES, most.unwrap_or_default() as f64);
    let (time, tick) = unit(&TIMES, wall_us as f64);
    let (mut lines, mut events) = (Vec::new(), Vec::new());
    let mut add = |name: &str, shown: &Shown, role: &str, value: fn(&Point) -> u64| {
        let points = turns(&shown.points, value);
        let x: Vec<_> = points.iter().map(|point| rounded(point.time_us as f64 / tick)).collect();
        let y: Vec<_> = points.iter().map(|point| rounded(value(point) as f64 / each)).collect();
        lines.push(json!({
            "type": "scatter", "name": name, "mode": "lines", "line": { "shape": "hv" }, "meta": role, "x": x, "y": y
        }));
        events.push(points.iter().map(|point| point.event).collect::<Vec<_>>());
    };
    let is_main = |name: &str| name == MILLPOND || name == ran;
    for shown in allocators.iter().filter(|shown| !is_main(&shown.outcome.allocator)) {
        add(&shown.outcome.allocator, shown, "other", |point| point.reserved);
    }
    if let Some(first) = allocators.first() {
        add("requested", first, "requested", |point| point.requested);
    }
    for shown in allocators.iter().rev().filter(|shown| is_main(&shown.outcome.allocator)) {
        add(&shown.outcome.allocator, shown, "main", |point| point.reserved);
    }
    let layout = json!({ "yaxis": { "title": { "text": bytes }, "rangemode": "tozero" } });
    // No text in it can end the script.
    let plot = json!({ "data": lines, "layout": layout }).to_string().replace('<', "\\u003c");
    format!("{plot}, {events:?}, \"{time}\", {is_idle}")
}

/// Letters of a name in a legend.
const LONGEST_NAME: usize = 40;

/// The arguments of the page's `draw` for areas one upon the other, that of whoever holds most at the bottom.
pub(super) fn stacked(holders: &Holders, wall_us: u64, is_idle: bool) -> String {
    let most = holders.points.iter().map(|point| point.bytes.iter().sum::<u64>()).max().unwrap_or_default();
    let (bytes, each) = unit(&BYTES, most as f64);
    let (time, tick) = unit(&TIMES, wall_us as f64);
    let x: Vec<_> = holders.points.iter().map(|point| rounded(point.time_us as f64 / tick)).collect();
    let events: Vec<_> = holders.points.iter().map(|point| point.event).collect();
    let areas = holders.names.iter().enumerate().map(|(number, name)| {
        let y: Vec<_> =
            holders.points.iter().map(|point| rounded(point.bytes[number] as f64 / each)).collect();
        let mut short: String = name.chars().take(LONGEST_NAME).collect();
        if short.len() < name.len() {
            short.push('…');
        }
        json!({
            "type": "scatter", "name": short, "mode": "lines", "line": { "shape": "hv" }, "meta": "area", "x": x,
            "y": y, "stackgroup": "one"
        })
    });
    let areas: Vec<_> = areas.collect();
    let events = vec![events; areas.len()];
    let layout = json!({ "yaxis": { "title": { "text": bytes }, "rangemode": "tozero" } });
    let plot = json!({ "data": areas, "layout": layout, "most": rounded(most as f64 / each) });
    // No text in it can end the script.
    format!("{}, {events:?}, \"{time}\", {is_idle}", plot.to_string().replace('<', "\\u003c"))
}

/// The points at which a line of steps changes, and the last one.
fn turns(points: &[Point], value: fn(&Point) -> u64) -> Vec<Point> {
    let runs = points.chunk_by(|one, other| value(one) == value(other));
    runs.filter_map(|run| run.first()).chain(points.last()).copied().collect()
}

/// Finer than a chart shows, so that the file has no digits for nothing.
fn rounded(value: f64) -> f64 {
    (value * 1e4).round() / 1e4
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_are_the_largest_of_which_there_is_one() {
        let named = |units, most| unit(units, most).0;
        assert_eq!(
            [0.0, 1023.0, 1024.0, 3e9, 9e15].map(|most| named(&BYTES, most)),
            ["B", "B", "KiB", "GiB", "TiB"]
        );
        assert_eq!(
            [10.0, 5e3, 599e6, 8e9].map(|most| named(&TIMES, most)),
            ["microseconds", "milliseconds", "minutes", "hours"]
        );
    }
}
