//! `--compare pytorch`: the same training in PyTorch, and both side by side.
//!
//! A script of ours trains there, in a process for each way. It gets the data, the initial weights and the order of the
//! images by files, and answers with a line of JSON an epoch.

use std::fs::File;
use std::io::{BufRead, BufReader, BufWriter, Read, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

use millpond::HumanBytes;
use millpond::device::DeviceName;
use millpond_mlp::data::{Dataset, Split};
use millpond_mlp::{Epoch, Hyper, Model, Precision, order};
use serde_json::{Value, json};

use super::outcome::{Outcome, Times};
use super::progress::duration;
use crate::error::{Error, Result};
use crate::temporary::OwnFolder;
use crate::terminal::say;

const SCRIPT: &str = include_str!("pytorch.py");

/// The ways to train with PyTorch. The last is for GPUs.
const WAYS: [&str; 3] = ["eager", "compiled", "graph"];

/// The order of the images is written for all epochs at once: at most so many bytes.
const MOST_ORDERED: u64 = 1 << 30;

/// What is trained by both.
pub(super) struct Compared<'a> {
    pub(super) device: DeviceName,
    pub(super) hyper: &'a Hyper,
    pub(super) precision: Precision,
    pub(super) data: &'a Dataset,
}

/// PyTorch, where it is installed.
pub(super) struct PyTorch {
    version: String,
}

impl PyTorch {
    /// Finds it.
    ///
    /// # Errors
    /// [`Error::Usage`] where there is none.
    pub(super) fn find(hyper: &Hyper, data: &Dataset) -> Result<Self> {
        let bytes = (hyper.epochs as u64).saturating_mul(4 * data.train.len() as u64);
        if bytes > MOST_ORDERED {
            let most = MOST_ORDERED / (4 * data.train.len() as u64);
            return Err(Error::Usage(format!(
                "--compare pytorch is for at most {most} epochs of this data: lower --epochs"
            )));
        }
        let asked = python().args(["-c", "import torch; print(torch.__version__)"]).output();
        let version = asked.ok().filter(|output| output.status.success());
        let version = version.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned());
        let version = version.ok_or_else(|| {
            Error::Usage(
                "--compare pytorch: python3 has no PyTorch: `pip install torch`, or activate the environment that has it"
                    .to_owned(),
            )
        })?;
        Ok(Self { version })
    }

    /// Trains in each way that there is on this device, until `stops` says so.
    pub(super) fn train(&self, of: &Compared<'_>, stops: impl Fn() -> bool) -> Result<Vec<Outcome>> {
        let folder = OwnFolder::below(&std::env::temp_dir())?;
        write(folder.path(), of).map_err(|source| failed(folder.path(), source))?;
        let is_gpu = of.device != DeviceName::HOST;
        let mut outcomes = Vec::new();
        for way in WAYS.into_iter().filter(|way| is_gpu || *way != "graph") {
            say(&format!("trains with PyTorch {}, {way}", self.version));
            match Self::way(way, folder.path(), of, &stops) {
                Ok(outcome) if outcome.epochs.is_empty() => {}
                Ok(outcome) => outcomes.push(outcome),
                Err(why) => say(&format!("  left out: {why}")),
            }
            if stops() {
                break;
            }
        }
        Ok(outcomes)
    }

    /// Trains in one way, or says why not. Stopped, it has the epochs that are done.
    fn way(
        way: &str,
        folder: &Path,
        of: &Compared<'_>,
        stops: &impl Fn() -> bool,
    ) -> std::result::Result<Outcome, String> {
        /// How soon it is stopped.
        const PART: Duration = Duration::from_millis(50);
        let mut outcome = Outcome::new(&of.device.to_string(), &format!("PyTorch {way}"));
        let script = python().args([Path::new("-c"), Path::new(SCRIPT), folder, Path::new(way)]).spawn();
        let mut child = script.map_err(|error| error.to_string())?;
        let (Some(out), Some(mut err)) = (child.stdout.take(), child.stderr.take()) else {
            return Err("it has no output".to_owned());
        };
        // On a thread of its own, so that neither pipe is full for ever.
        let said = std::thread::spawn(move || {
            let mut text = Vec::new();
            err.read_to_end(&mut text).ok();
            String::from_utf8_lossy(&text)
                .trim_end()
                .lines()
                .next_back()
                .unwrap_or("it said nothing")
                .to_owned()
        });
        let (tells, told) = channel();
        std::thread::spawn(move || {
            BufReader::new(out).lines().map_while(|line| line.ok()).try_for_each(|line| tells.send(line))
        });
        loop {
            if stops() {
                // Processes of its own may hold its output for longer, so nothing more is read. What was read counts.
                child.kill().and_then(|()| child.wait()).map_err(|error| error.to_string())?;
                told.try_iter().for_each(|line| note(&line, &mut outcome));
                return Ok(outcome);
            }
            match told.recv_timeout(PART) {
                Ok(line) => note(&line, &mut outcome),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => break,
            }
        }
        let ended = child.wait().map_err(|error| error.to_string())?;
        let said = said.join().unwrap_or_default();
        if ended.success() || stops() { Ok(outcome) } else { Err(said) }
    }
}

/// Notes a line that PyTorch said: an epoch, or its memory.
fn note(line: &str, outcome: &mut Outcome) {
    let line: Value = serde_json::from_str(line).unwrap_or_default();
    match serde_json::from_value::<Epoch>(line.clone()) {
        Ok(epoch) => outcome.epochs.push(epoch),
        Err(_) => {
            let bytes = |key: &str| line[key].as_u64().unwrap_or(0);
            outcome.peak_requested = bytes("peak_requested");
            outcome.peak_reserved = bytes("peak_reserved");
        }
    }
}

/// Python, with what it says piped.
fn python() -> Command {
    let mut command = Command::new("python3");
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// Writes what is trained, for the script.
fn write(folder: &Path, of: &Compared<'_>) -> std::io::Result<()> {
    let Compared { device, hyper, precision, data } = of;
    let file = |name: &str| Ok::<_, std::io::Error>(BufWriter::new(File::create(folder.join(name))?));
    let layers = Model::initial_weights(data.pixels(), hyper.num_layers, hyper.feat_dim, hyper.seed);
    let (mut weights, mut sizes) = (file("weights")?, vec![data.pixels()]);
    for ([_, outputs], values) in layers {
        sizes.push(outputs);
        values.iter().try_for_each(|value| weights.write_all(&value.to_le_bytes()))?;
    }
    weights.flush()?;
    let mut orders = file("orders")?;
    for epoch in 1..=hyper.epochs {
        let order = order(data.train.len(), hyper.seed, epoch);
        order.iter().try_for_each(|image| orders.write_all(&image.to_le_bytes()))?;
    }
    orders.flush()?;
    for (name, Split { images, labels }) in [("train", &data.train), ("validation", &data.validation)] {
        std::fs::write(folder.join(format!("{name}-images")), images)?;
        std::fs::write(folder.join(format!("{name}-labels")), labels)?;
    }
    let device = if *device == DeviceName::HOST { "cpu".to_owned() } else { device.to_string() };
    let Hyper { learning_rate, momentum, batch_size, epochs, .. } = hyper;
    let task = json!({
        "device": device, "sizes": sizes, "learning_rate": learning_rate, "momentum": momentum,
        "batch_size": batch_size, "epochs": epochs, "precision": precision.name(),
    });
    std::fs::write(folder.join("task"), task.to_string())
}

fn failed(path: &Path, source: std::io::Error) -> Error {
    Error::Io { path: path.to_owned(), action: "write what PyTorch is to train", source }
}

/// Both side by side.
pub(super) fn table(outcomes: &[Outcome]) -> String {
    let titles = format!(
        "{:16} {:>27} {:>12} {:>18}\n{}",
        "",
        "time of an epoch",
        "memory",
        "validation",
        cells(["", "least", "median", "most", "at most", "loss", "accuracy"])
    );
    let lines = outcomes.iter().filter_map(|outcome| {
        let (times, last) = (Times::of(&outcome.epochs)?, outcome.epochs.last()?);
        let [least, median, most] = [times.least, times.median, times.most].map(duration);
        let memory = HumanBytes(outcome.peak_reserved).to_string();
        let (loss, accuracy) =
            (format!("{:.4}", last.val_loss), format!("{:.2} %", last.val_accuracy * 100.0));
        Some(cells([&outcome.allocator, &least, &median, &most, &memory, &loss, &accuracy]))
    });
    let memory = if outcomes.iter().all(|outcome| outcome.device == DeviceName::HOST.to_string()) {
        "\n\nOn the CPU, the memory of PyTorch is what its process grew by: code that is loaded\nlate counts, too."
    } else {
        ""
    };
    format!("\n{titles}\n{}{memory}", lines.collect::<Vec<_>>().join("\n"))
}

/// In 80 columns.
fn cells([name, least, median, most, memory, loss, accuracy]: [&str; 7]) -> String {
    format!("{name:16} {least:>8} {median:>9} {most:>8} {memory:>12} {loss:>8} {accuracy:>9}")
}
