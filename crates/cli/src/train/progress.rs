//! A training as people watch it: a bar on a terminal, and a line for each epoch everywhere.

use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};
use millpond_mlp::{Epoch, Step};

use crate::terminal::{is_quiet, say, thousands};

/// How often the bar moves. Each time waits for the device, so rarely; and smoothly enough to the eye.
const LEAST_PAUSE: Duration = Duration::from_millis(100);

/// Shows the trainings of a command, whose epochs take turns.
#[derive(Debug)]
pub(crate) struct EpochProgress {
    epochs: usize,
    /// Of each epoch.
    trainings: usize,
    /// Images of the epochs that are done here.
    images: usize,
    /// What stands before the bar.
    name: String,
    bar: ProgressBar,
    /// Steps between two readings of the loss, kept such that they are about [`LEAST_PAUSE`] apart: steps are
    /// only queued here, so that a clock says nothing about them between two readings.
    stride: usize,
    steps: usize,
    began: Instant,
    last_reading: Instant,
}

impl EpochProgress {
    /// Shows a bar.
    pub(crate) fn new(epochs: usize, trainings: usize) -> Self {
        let bar = if is_quiet() { ProgressBar::hidden() } else { ProgressBar::new(0) };
        let template = "{prefix} {wide_bar} {percent:>3} %  {msg}";
        bar.set_style(
            ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar()),
        );
        let (now, name) = (Instant::now(), String::new());
        let (images, stride, steps) = (0, 1, 0);
        Self { epochs, trainings, images, name, bar, stride, steps, began: now, last_reading: now }
    }

    /// The epochs from here on are of the training of this name, where there are several.
    pub(crate) fn turn(&mut self, name: Option<&str>) {
        self.name = name.map(|name| format!("{name}, ")).unwrap_or_default();
    }

    /// The titles of what [`epoch`](Self::epoch) prints.
    pub(crate) fn say_titles(&self) {
        let width = self.width();
        say(&format!(
            "{:>width$}   training loss   validation loss   accuracy       time   device calls",
            "epoch"
        ));
    }

    /// Whether it is time to read the loss. Also without a bar: the host must not run far ahead of the device, or
    /// Ctrl-C would be answered late.
    pub(crate) fn wants_loss(&mut self, step: Step) -> bool {
        if self.steps == 0 {
            self.bar.set_length(step.of as u64);
            self.bar.set_prefix(format!("{}epoch {}/{}", self.name, step.epoch, self.epochs));
        }
        self.steps += 1;
        self.steps.is_multiple_of(self.stride)
    }

    pub(crate) fn loss(&mut self, step: Step, mean: f64) {
        let rate = (self.images + step.images) as f64 / self.began.elapsed().as_secs_f64();
        let later = (self.epochs - step.epoch) * self.trainings * step.of;
        let of_this = (self.trainings - self.images / step.of % self.trainings) * step.of - step.images;
        let left = (later + of_this) as f64 / rate.max(1e-9);
        let (rate, left) = (thousands(rate as u64), remaining(left));
        self.bar.set_message(format!("loss {mean:.4}  {rate} images/s  {left} left"));
        self.bar.set_position(step.images as u64);
        let pause = self.last_reading.elapsed();
        self.last_reading = Instant::now();
        if pause < LEAST_PAUSE / 2 {
            self.stride *= 2;
        } else if pause > LEAST_PAUSE * 2 {
            self.stride = (self.stride / 2).max(1);
        }
    }

    /// An epoch over so many images is done.
    pub(crate) fn end_epoch(&mut self) {
        self.images += self.bar.length().unwrap_or(0) as usize;
        self.steps = 0;
    }

    /// Prints the line of an epoch.
    pub(crate) fn epoch(&self, epoch: &Epoch) {
        let width = self.width();
        let line = format!(
            "{:>width$}   {:13.4}   {:15.4}   {:6.2} %   {:>8}   {:>12}",
            format!("{}/{}", epoch.epoch, self.epochs),
            epoch.train_loss,
            epoch.val_loss,
            epoch.val_accuracy * 100.0,
            duration(epoch.wall_ms),
            thousands(epoch.device_calls),
        );
        self.bar.suspend(|| say(&line));
    }

    /// Columns of the epoch.
    fn width(&self) -> usize {
        format!("{0}/{0}", self.epochs).len().max(5)
    }
}

impl Drop for EpochProgress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}

/// A time for people, in at most 7 columns up to a day.
pub(crate) fn duration(ms: f64) -> String {
    if ms < 999.5 { format!("{ms:.0} ms") } else { format!("{:.2} s", ms / 1e3) }
}

/// Seconds as a clock shows them: `8 s`, `2:05`, `1:02:05`.
fn remaining(seconds: f64) -> String {
    let whole = seconds.ceil() as u64;
    let (hours, minutes, seconds) = (whole / 3600, whole / 60 % 60, whole % 60);
    match (hours, minutes) {
        (0, 0) => format!("{seconds} s"),
        (0, _) => format!("{minutes}:{seconds:02}"),
        _ => format!("{hours}:{minutes:02}:{seconds:02}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_left_is_shown_as_a_clock_shows_it() {
        assert_eq!([7.2, 125.0, 3725.0].map(remaining), ["8 s", "2:05", "1:02:05"]);
    }

    #[test]
    fn times_are_in_the_unit_that_fits() {
        assert_eq!([0.4, 142.0, 999.6, 13_100.0].map(duration), ["0 ms", "142 ms", "1.00 s", "13.10 s"]);
    }
}
