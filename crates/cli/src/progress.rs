//! A training run as people watch it: a bar on a terminal, and a line for each epoch everywhere.

use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};
use millpond_mlp::{Epoch, Observer, Step};

use crate::screen::{say, thousands};

/// How often the bar moves. Each time waits for the device, so rarely; and smoothly enough to the eye.
const LEAST_PAUSE: Duration = Duration::from_millis(100);

/// Watches one run.
#[derive(Debug)]
pub(crate) struct Progress {
    epochs: usize,
    bar: ProgressBar,
    /// Steps between two readings of the loss, kept such that they are about [`LEAST_PAUSE`] apart: steps are
    /// only queued here, so that a clock says nothing about them between two readings.
    stride: usize,
    steps: usize,
    epoch_began: Instant,
    last_reading: Instant,
}

impl Progress {
    pub(crate) fn new(epochs: usize) -> Self {
        let bar = ProgressBar::new(0);
        let template = "{prefix} {wide_bar} {pos}/{len} images  {msg}";
        bar.set_style(
            ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar()),
        );
        let now = Instant::now();
        Self { epochs, bar, stride: 1, steps: 0, epoch_began: now, last_reading: now }
    }
}

impl Observer for Progress {
    fn wants_loss(&mut self, step: Step) -> bool {
        if self.bar.is_hidden() {
            return false;
        }
        if self.steps == 0 {
            self.epoch_began = Instant::now();
            self.bar.set_length(step.of as u64);
            self.bar.set_prefix(format!("epoch {:>2}/{}", step.epoch, self.epochs));
        }
        self.steps += 1;
        self.steps.is_multiple_of(self.stride)
    }

    fn loss(&mut self, step: Step, mean: f64) {
        let rate = step.images as f64 / self.epoch_began.elapsed().as_secs_f64();
        self.bar.set_message(format!("{} images/s  loss {mean:.4}", thousands(rate as u64)));
        self.bar.set_position(step.images as u64);
        let pause = self.last_reading.elapsed();
        self.last_reading = Instant::now();
        if pause < LEAST_PAUSE / 2 {
            self.stride *= 2;
        } else if pause > LEAST_PAUSE * 2 {
            self.stride = (self.stride / 2).max(1);
        }
    }

    fn epoch(&mut self, epoch: &Epoch) {
        self.steps = 0;
        let line = format!(
            "epoch {:>2}/{}  train loss {:.4}  validation loss {:.4}  accuracy {:6.2} %  {:>8.0} ms  {:>6} device call{}",
            epoch.epoch,
            self.epochs,
            epoch.train_loss,
            epoch.val_loss,
            epoch.val_accuracy * 100.0,
            epoch.wall_ms,
            thousands(epoch.device_calls),
            if epoch.device_calls == 1 { "" } else { "s" },
        );
        self.bar.suspend(|| say(&line));
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}
