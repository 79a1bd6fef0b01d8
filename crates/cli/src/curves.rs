//! The curves of a run, as CSV and as a picture.

use std::fmt::Write;

use millpond_mlp::Epoch;
use plotters::coord::types::{RangedCoordf64, RangedCoordusize};
use plotters::prelude::*;

use crate::account::Outcome;

/// Width and height of the picture.
const SIZE: (u32, u32) = (1000, 420);

type Area<'a> = DrawingArea<SVGBackend<'a>, plotters::coord::Shift>;
type Chart<'a, 'b> = ChartContext<'a, SVGBackend<'b>, Cartesian2d<RangedCoordusize, RangedCoordf64>>;

/// A line of the picture: its label, its colour, and its value in each epoch.
type Line<'a> = (String, RGBColor, Box<dyn Fn(&Epoch) -> f64>, &'a [Epoch]);

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

/// Loss and accuracy of the first allocator's run (the others' are the same, or nearly), and the time of each
/// epoch with every allocator.
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
    let learnt = &first.epochs[..];
    let losses: [Line<'_>; 2] = [
        ("training".to_owned(), BLUE, Box::new(|epoch| epoch.train_loss), learnt),
        ("validation".to_owned(), RED, Box::new(|epoch| epoch.val_loss), learnt),
    ];
    let accuracy: [Line<'_>; 1] =
        [("validation".to_owned(), RED, Box::new(|epoch| epoch.val_accuracy * 100.0), learnt)];
    let colours = [BLUE, RED, GREEN, MAGENTA, BLACK];
    let times: Vec<Line<'_>> = outcomes
        .iter()
        .zip(colours.into_iter().cycle())
        .map(|(outcome, colour)| {
            let time: Box<dyn Fn(&Epoch) -> f64> = Box::new(|epoch| epoch.wall_ms);
            (outcome.allocator.clone(), colour, time, &outcome.epochs[..])
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
    let values = |(_, _, value, epochs): &Line<'_>| epochs.iter().map(value).collect::<Vec<_>>();
    let highest = lines.iter().flat_map(values).fold(f64::MIN_POSITIVE, f64::max) * 1.05;
    let last = lines.iter().map(|line| line.3.len()).max().unwrap_or(1);
    let mut chart: Chart<'_, '_> = ChartBuilder::on(area)
        .caption(title, ("sans-serif", 18))
        .margin(12)
        .x_label_area_size(34)
        .y_label_area_size(48)
        .build_cartesian_2d(1..last.max(2), 0.0..highest)?;
    chart.configure_mesh().x_desc("epoch").x_labels(10).light_line_style(TRANSPARENT).draw()?;
    for (label, colour, value, epochs) in lines {
        let points: Vec<_> = epochs.iter().map(|epoch| (epoch.epoch, value(epoch))).collect();
        let colour = *colour;
        chart.draw_series(points.iter().map(|&point| Circle::new(point, 2, colour.filled())))?;
        chart
            .draw_series(LineSeries::new(points, colour))?
            .label(label)
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 16, y)], colour));
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
    fn any_number_of_epochs_is_drawn() {
        // plotters 0.3.7 never ends the search for grid lines of some integer ranges and settings.
        for epochs in (1..130).chain([1000, 12_345]) {
            let last = Epoch { epoch: epochs, ..outcome("x").epochs[0].clone() };
            let run = Outcome { epochs: vec![last; epochs], ..outcome("x") };
            assert!(svg(&[run]).unwrap().trim_end().ends_with("</svg>"), "{epochs}");
        }
    }
}
