//! The memory of one step as a picture: over the step by kind and layer, and at its peak by layer.

use std::collections::BTreeMap;

use millpond::HumanBytes;
use millpond_mlp::{Kind, Purpose, StepMemory};
use plotters::coord::Shift;
use plotters::prelude::*;

/// Width and height of the picture, and the width of its left part.
const SIZE: (u32, u32) = (1100, 460);
const OVER_THE_STEP: u32 = 700;

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
type Failure = Box<dyn std::error::Error>;
type Live = BTreeMap<Purpose, u64>;

/// The picture as SVG.
pub(super) fn svg(step: &StepMemory) -> Result<String, String> {
    let mut text = String::new();
    draw(&mut text, step).map_err(|error| error.to_string())?;
    Ok(text)
}

fn draw(text: &mut String, step: &StepMemory) -> Result<(), Failure> {
    let root = SVGBackend::with_string(text, SIZE).into_drawing_area();
    root.fill(&WHITE)?;
    let (left, right) = root.split_horizontally(OVER_THE_STEP);
    over_the_step(&left, step)?;
    at_the_peak(&right, &step.peak().iter().copied().collect())?;
    root.present()?;
    Ok(())
}

/// What is live, from one allocation or free to the next, on top of each other.
fn over_the_step(area: &Area<'_>, step: &StepMemory) -> Result<(), Failure> {
    let moments: Vec<Live> = step.live.iter().map(|live| live.iter().copied().collect()).collect();
    let peak: Live = step.peak().iter().copied().collect();
    let highest = mib(peak.values().sum()) * 1.12;
    let mut chart = ChartBuilder::on(area)
        .caption("memory over one step", ("sans-serif", 18))
        .margin(12)
        .x_label_area_size(34)
        .y_label_area_size(48)
        .build_cartesian_2d(0.0..moments.len() as f64, 0.0..highest.max(f64::MIN_POSITIVE))?;
    let whole = |value: &f64| format!("{value:.0}");
    chart
        .configure_mesh()
        .x_desc("allocations and frees")
        .y_desc("MiB")
        .x_label_formatter(&whole)
        .light_line_style(TRANSPARENT)
        .draw()?;
    let mut purposes: Vec<Purpose> = moments.iter().flat_map(BTreeMap::keys).copied().collect();
    purposes.sort_unstable();
    purposes.dedup();
    for kind in Kind::ALL {
        for purpose in purposes.iter().filter(|(of, _)| *of == kind) {
            let colour = shade(*purpose).filled();
            chart.draw_series(bands(&moments, *purpose).map(|points| Polygon::new(points, colour)))?;
        }
        let most = moments.iter().map(|live| of_kind(live, kind)).max().unwrap_or(0);
        if most > 0 {
            let colour = shade((kind, 0)).filled();
            chart
                .draw_series(std::iter::empty::<Rectangle<(f64, f64)>>())?
                .label(format!("{}: {} at most", kind.name(), HumanBytes(most)))
                .legend(move |(x, y)| Rectangle::new([(x, y - 5), (x + 14, y + 5)], colour));
        }
    }
    for (at, name) in &step.phases {
        let at = *at as f64;
        chart.draw_series([PathElement::new([(at, 0.0), (at, highest)], BLACK)])?;
        chart.draw_series([Text::new(*name, (at + 0.3, highest * 0.99), ("sans-serif", 13))])?;
    }
    let position = SeriesLabelPosition::LowerLeft;
    chart
        .configure_series_labels()
        .position(position)
        .border_style(BLACK)
        .background_style(WHITE.mix(0.85))
        .draw()?;
    Ok(())
}

/// Where what is for this purpose lies over the step: a rectangle for as long as nothing changes.
fn bands(moments: &[Live], purpose: Purpose) -> impl Iterator<Item = Vec<(f64, f64)>> {
    let mut rows: Vec<(usize, usize, u64, u64)> = Vec::new();
    for (at, live) in moments.iter().enumerate() {
        let bytes = live.get(&purpose).copied().unwrap_or(0);
        let below = live.range(..purpose).map(|(_, bytes)| bytes).sum();
        match rows.last_mut() {
            Some((_, end, from, of)) if (*from, *of) == (below, bytes) => *end = at + 1,
            _ => rows.push((at, at + 1, below, bytes)),
        }
    }
    rows.into_iter().filter(|(.., bytes)| *bytes > 0).map(|(from, to, below, bytes)| {
        let [left, right] = [from as f64, to as f64];
        let [low, high] = [mib(below), mib(below + bytes)];
        vec![(left, low), (left, high), (right, high), (right, low)]
    })
}

/// What is live at the peak: a bar for each layer.
fn at_the_peak(area: &Area<'_>, peak: &Live) -> Result<(), Failure> {
    let layers = peak.keys().map(|(_, layer)| layer + 1).max().unwrap_or(1);
    let of_layer = |layer: usize| peak.iter().filter(move |((_, of), _)| *of == layer);
    let widest = (0..layers).map(|layer| of_layer(layer).map(|(_, bytes)| bytes).sum()).max().unwrap_or(0);
    let mut chart = ChartBuilder::on(area)
        .caption("at its peak, by layer", ("sans-serif", 18))
        .margin(12)
        .x_label_area_size(34)
        .y_label_area_size(48)
        .build_cartesian_2d(0.0..mib(widest).max(f64::MIN_POSITIVE) * 1.05, layers as f64..0.0)?;
    // The middle of a bar has its name.
    let name = |at: &f64| match *at as usize {
        _ if at.fract() == 0.0 => String::new(),
        0 => "input".to_owned(),
        layer if layer + 1 == layers => "head".to_owned(),
        layer => layer.to_string(),
    };
    chart
        .configure_mesh()
        .x_desc("MiB")
        .y_labels(2 * layers.min(16) + 1)
        .y_label_formatter(&name)
        .disable_y_mesh()
        .light_line_style(TRANSPARENT)
        .draw()?;
    for layer in 0..layers {
        let mut from = 0;
        for (purpose, bytes) in of_layer(layer) {
            let corners = [(mib(from), layer as f64 + 0.15), (mib(from + bytes), layer as f64 + 0.85)];
            chart.draw_series([Rectangle::new(corners, shade((purpose.0, 0)).filled())])?;
            from += bytes;
        }
    }
    Ok(())
}

fn of_kind(live: &Live, kind: Kind) -> u64 {
    live.iter().filter(|((of, _), _)| *of == kind).map(|(_, bytes)| bytes).sum()
}

fn mib(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}

/// A colour for each kind, paler for every other layer.
fn shade((kind, layer): Purpose) -> RGBAColor {
    let colour = match kind {
        Kind::Weights => RGBColor(31, 119, 180),
        Kind::Optimizer => RGBColor(148, 103, 189),
        Kind::Batch => RGBColor(127, 127, 127),
        Kind::Activations => RGBColor(44, 160, 44),
        Kind::Gradients => RGBColor(255, 127, 14),
        Kind::Workspace => RGBColor(214, 39, 40),
    };
    colour.mix(if layer % 2 == 0 { 1.0 } else { 0.72 })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_picture_names_kinds_phases_and_layers() {
        let weights = |layer| ((Kind::Weights, layer), 3 << 20);
        let before = vec![weights(1), weights(2)];
        let during = [&before[..], &[((Kind::Activations, 1), 1 << 20)]].concat();
        let live = vec![before.clone(), during, before];
        let text = svg(&StepMemory { live, phases: vec![(0, "forward"), (1, "backward")] }).unwrap();
        for part in [
            "forward",
            "backward",
            "weights: 6.00 MiB at most",
            "activations: 1.00 MiB at most",
            "input",
            "head",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
    }

    #[test]
    fn a_band_lies_on_what_comes_before_it() {
        let [low, high] = [(Kind::Weights, 1), (Kind::Gradients, 1)];
        let moments = [Live::from([(low, 1 << 20)]), Live::from([(low, 1 << 20), (high, 2 << 20)])];
        let points: Vec<_> = bands(&moments, high).collect();
        assert_eq!(points, [vec![(1.0, 1.0), (1.0, 3.0), (2.0, 3.0), (2.0, 1.0)]]);
        assert_eq!(bands(&moments, low).count(), 1, "what does not change is one");
    }
}
