//! Losses and times of the epochs, as CSV and as a picture.

use std::fmt::Write;

use millpond_mlp::Epoch;
use plotters::coord::types::{RangedCoordf64, RangedCoordusize};
use plotters::prelude::*;

use super::outcome::Outcome;

/// Width and height of the picture.
const SIZE: (u32, u32) = (1000, 420);

/// Of trainings, and paler for what is beside their validation.
const COLOURS: [RGBColor; 5] = [BLUE, RED, GREEN, MAGENTA, BLACK];
const PALE: [RGBColor; 5] = [
    RGBColor(140, 170, 255),
    RGBColor(255, 150, 150),
    RGBColor(130, 210, 130),
    RGBColor(255, 160, 255),
    RGBColor(150, 150, 150),
];

type Area<'a> = DrawingArea<SVGBackend<'a>, plotters::coord::Shift>;
type Chart<'a, 'b> = ChartContext<'a, SVGBackend<'b>, Cartesian2d<RangedCoordusize, RangedCoordf64>>;

/// A line of the picture: its label, its colour, and its value in each epoch.
/// How wide it is drawn says which lies below which.
type Line<'a> = (String, RGBColor, Box<dyn Fn(&Epoch) -> f64>, &'a [Epoch], u32);

/// One row an epoch and allocator.
pub(crate) fn csv(outcomes: &[Outcome]) -> String {
    let mut text = "allocator,epoch,train_loss,val_loss,val_accuracy,wall_ms,device_calls\n".to_owned();
    for outcome in outcomes {
        for Epoch { epoch, train_loss, val_loss, val_accuracy, wall_ms, device_calls } in &outcome.epochs {
            // Writing to a string cannot fail.
            let _ = writeln!(
                text,
                "{},{epoch},{train_loss},{val_loss},{val_accuracy},{wall_ms:.3},{device_calls}",
                outcome.allocator
            );
        }
    }
    text
}

/// Loss and accuracy, and the time of each epoch of every training. Trainings with the same losses, as those of one command
/// with several allocators are, have one line.
pub(crate) fn svg(outcomes: &[Outcome]) -> Result<String, String> {
    let mut text = String::new();
    draw(&mut text, outcomes).map_err(|error| error.to_string())?;
    Ok(text)
}

fn draw(text: &mut String, outcomes: &[Outcome]) -> Result<(), Box<dyn std::error::Error>> {
    let Some(first) = outcomes.first() else { return Ok(()) };
    let root = SVGBackend::with_string(text, SIZE).into_drawing_area();
    root.fill(&WHITE)?;
    let areas = root.split_evenly((1, 3));
    let losses_of = |of: &Outcome| -> Vec<_> {
        of.epochs.iter().map(|epoch| [epoch.train_loss, epoch.val_loss].map(f64::to_bits)).collect()
    };
    let others = outcomes[1..].iter().filter(|of| !losses_of(first).starts_with(&losses_of(of)));
    let distinct: Vec<&Outcome> = std::iter::once(first).chain(others).collect();
    let several = distinct.len() > 1;
    let (mut losses, mut accuracy) = (Vec::<Line<'_>>::new(), Vec::<Line<'_>>::new());
    // The first is the widest, so that it is seen beside those that lie on it.
    for (at, of) in distinct.into_iter().enumerate() {
        let width = if several { 2 * (4_u32.saturating_sub(at as u32)).max(1) - 1 } else { 1 };
        let colour = if several { COLOURS[at % COLOURS.len()] } else { RED };
        let named = |what: &str| if several { format!("{}, {what}", of.allocator) } else { what.to_owned() };
        let (epochs, below) = (&of.epochs[..], if several { PALE[at % PALE.len()] } else { BLUE });
        losses.push((named("training"), below, Box::new(|epoch| epoch.train_loss), epochs, width));
        losses.push((named("validation"), colour, Box::new(|epoch| epoch.val_loss), epochs, width));
        accuracy.push((
            named("validation"),
            colour,
            Box::new(|epoch| epoch.val_accuracy * 100.0),
            epochs,
            width,
        ));
    }
    let times: Vec<Line<'_>> = outcomes
        .iter()
        .zip(COLOURS.into_iter().cycle())
        .map(|(outcome, colour)| {
            let time: Box<dyn Fn(&Epoch) -> f64> = Box::new(|epoch| epoch.wall_ms);
            (outcome.allocator.clone(), colour, time, &outcome.epochs[..], 1)
        })
        .collect();
    // Losses fall and accuracies rise: each legend is where the lines are not.
    plot(&areas[0], "loss", &losses, SeriesLabelPosition::UpperRight)?;
    plot(&areas[1], "accuracy (%)", &accuracy, SeriesLabelPosition::LowerRight)?;
    plot(&areas[2], "time of an epoch (ms)", &times, SeriesLabelPosition::UpperRight)?;
    root.present()?;
    Ok(())
}

/// Draws the lines over the epochs, each point marked.
fn plot(
    area: &Area<'_>,
    title: &str,
    lines: &[Line<'_>],
    legend: SeriesLabelPosition,
) -> Result<(), Box<dyn std::error::Error>> {
    let values = |(_, _, value, epochs, _): &Line<'_>| epochs.iter().map(value).collect::<Vec<_>>();
    let highest = lines.iter().flat_map(values).fold(f64::MIN_POSITIVE, f64::max) * 1.05;
    let last = lines.iter().map(|line| line.3.len()).max().unwrap_or(1);
    let mut chart: Chart<'_, '_> = ChartBuilder::on(area)
        .caption(title, ("sans-serif", 18))
        .margin(12)
        .x_label_area_size(34)
        .y_label_area_size(48)
        .build_cartesian_2d(1..last.max(2), 0.0..highest)?;
    chart.configure_mesh().x_desc("epoch").x_labels(10).light_line_style(TRANSPARENT).draw()?;
    for (label, colour, value, epochs, width) in lines {
        let points: Vec<_> = epochs.iter().map(|epoch| (epoch.epoch, value(epoch))).collect();
        let style = colour.stroke_width(*width);
        chart.draw_series(
            points.iter().map(|&point| Circle::new(point, width.div_ceil(2) + 1, colour.filled())),
        )?;
        chart
            .draw_series(LineSeries::new(points, style))?
            .label(label)
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 16, y)], style));
    }
    chart
        .configure_series_labels()
        .position(legend)
        .border_style(BLACK)
        .background_style(WHITE.mix(0.8))
        .draw()?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome(allocator: &str) -> Outcome {
        let epoch = |epoch| Epoch {
            epoch,
            train_loss: 1.0 / epoch as f64,
            val_loss: 0.5,
            val_accuracy: 0.25,
            wall_ms: 12.0,
            device_calls: 3,
        };
        Outcome {
            device: "host".to_owned(),
            allocator: allocator.to_owned(),
            epochs: vec![epoch(1), epoch(2)],
            peak_reserved: 2,
            peak_requested: 1,
            ranks: Vec::new(),
        }
    }

    #[test]
    fn the_csv_has_a_row_an_epoch_and_allocator() {
        let text = csv(&[outcome("millpond"), outcome("driver")]);
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(lines[0], "allocator,epoch,train_loss,val_loss,val_accuracy,wall_ms,device_calls");
        assert_eq!(lines[2], "millpond,2,0.5,0.5,0.25,12.000,3");
        assert_eq!(lines.len(), 5);
    }

    #[test]
    fn the_picture_is_svg_with_every_line_named() {
        let text = svg(&[outcome("millpond"), outcome("driver")]).unwrap();
        assert!(text.starts_with("<svg") && text.trim_end().ends_with("</svg>"));
        for label in ["loss", "accuracy (%)", "training", "validation", "millpond", "driver"] {
            assert!(text.contains(label), "{label}");
        }
    }

    #[test]
    fn trainings_with_other_losses_have_lines_of_their_own() {
        let mut other = outcome("PyTorch eager");
        other.epochs.iter_mut().for_each(|epoch| epoch.val_loss += 1e-6);
        let text = svg(&[outcome("millpond"), outcome("driver"), other]).unwrap();
        for label in ["millpond, training", "PyTorch eager, validation"] {
            assert!(text.contains(label), "{label}");
        }
        assert!(!text.contains("driver, training"), "its losses are those of the first");
    }

    #[test]
    fn any_number_of_epochs_is_drawn() {
        // plotters 0.3.7 never ends the search for grid lines of some integer ranges and settings.
        for epochs in (1..130).chain([1000, 12_345]) {
            let last = Epoch { epoch: epochs, ..outcome("x").epochs[0].clone() };
            let run = Outcome { epochs: vec![last; epochs], ..outcome("x") };
            assert!(svg(&[run]).unwrap().trim_end().ends_with("</svg>"), "{epochs}");
        }
    }
}
