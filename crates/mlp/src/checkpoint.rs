//! Checkpoints: a training as far as it has come, in one file that is replaced whole.
//!
//! The file is a [safetensors] file. The weights lie in it as PyTorch's `nn.Linear` has them, under the names that
//! `nn.Sequential` gives them. How far the training is stands in the file's metadata, as JSON. The velocities of SGD lie
//! beside the weights, if there are any. So what follows a checkpoint is what would have followed without it, bit for bit.
//!
//! [safetensors]: https://github.com/huggingface/safetensors

use std::collections::HashMap;
use std::fs::{self, File, TryLockError};
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use safetensors::SafeTensors;
use safetensors::tensor::{Dtype, TensorView};
use serde::{Deserialize, Serialize};

use crate::data::Dataset;
use crate::ranks::Team;
use crate::whole_file::WholeFile;
use crate::{Epoch, Error, Hyper, Model, Result, TOTALS, Tensor};

/// The file's name in its folder.
const NAME: &str = "checkpoint.safetensors";
/// The key of the metadata that has the [`Progress`].
const KEY: &str = "millpond";

/// Where checkpoints are kept, and how often one is written.
#[derive(Debug, Clone)]
pub struct Saving {
    /// As its folder was named.
    file: PathBuf,
    replaced: WholeFile,
    every: Option<usize>,
    from: Option<Checkpoint>,
}

/// A training as far as it has come.
#[derive(Debug, Clone, PartialEq)]
pub struct Checkpoint {
    progress: Progress,
    /// Of each layer, `[inputs, outputs]`.
    weights: Vec<Vec<f32>>,
    /// As the weights, or none without momentum.
    velocities: Vec<Vec<f32>>,
}

/// How far a training is.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Progress {
    hyper: Hyper,
    /// A checksum of what is trained on.
    data: u32,
    /// Those that are done.
    pub(crate) epochs: Vec<Epoch>,
    pub(crate) begun: Begun,
}

/// How far the epoch after those that are done is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Begun {
    /// Images that it was trained on.
    pub(crate) images: usize,
    /// Their totals.
    pub(crate) totals: [f64; TOTALS],
    pub(crate) wall_ms: f64,
}

impl Progress {
    /// Refuses a checkpoint of another training. The number of epochs may differ.
    fn refuse_other_training(&self, hyper: &Hyper, data: &Dataset) -> std::result::Result<(), String> {
        let was = &self.hyper;
        let settings = [
            ("num_layers", was.num_layers as f64, hyper.num_layers as f64),
            ("feat_dim", was.feat_dim as f64, hyper.feat_dim as f64),
            ("learning_rate", was.learning_rate.into(), hyper.learning_rate.into()),
            ("momentum", was.momentum.into(), hyper.momentum.into()),
            ("batch_size", was.batch_size as f64, hyper.batch_size as f64),
            ("seed", was.seed as f64, hyper.seed as f64),
        ];
        if let Some((name, was, is)) = settings.into_iter().find(|(_, was, is)| was != is) {
            return Err(format!("it is of a training with {name} {was}, not {is}"));
        }
        if self.data != data.checksum() {
            return Err("it is of a training with other data".to_owned());
        }
        let Begun { images, .. } = self.begun;
        if images > data.train.len() || (images < data.train.len() && images % hyper.batch_size != 0) {
            return Err(format!("{images} images are not whole batches"));
        }
        Ok(())
    }
}

impl Saving {
    /// Keeps a checkpoint in this folder, which is made if need be. It is written after each epoch, and after every so many
    /// steps of an epoch.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn new(dir: &Path, every: Option<usize>) -> Result<Self> {
        let failed = |source| Error::Io { path: dir.to_owned(), action: "create the folder", source };
        fs::create_dir_all(dir).map_err(failed)?;
        let file = Self::file_in(dir);
        let replaced = WholeFile::at(&file).map_err(|source| cannot_write(&file, source))?;
        Ok(Self { file, replaced, every, from: None })
    }

    /// The file that a folder's checkpoint is in.
    pub fn file_in(dir: &Path) -> PathBuf {
        dir.join(NAME)
    }

    /// The file.
    pub fn file(&self) -> &Path {
        &self.file
    }

    /// Goes on from the checkpoint that is there, if there is one.
    ///
    /// # Errors
    /// [`Error::Checkpoint`] where the file is no checkpoint, or one of another training. [`Error::Io`].
    pub fn resume(mut self, hyper: &Hyper, data: &Dataset) -> Result<Self> {
        // A pipe would be waited for, and a device is read without end.
        if fs::metadata(&self.file).is_ok_and(|there| !there.is_file() && !there.is_dir()) {
            return Err(self.failed("it is no file".to_owned()));
        }
        match fs::read(&self.file) {
            Ok(bytes) => {
                let checkpoint = Checkpoint::read(&bytes, hyper, data);
                self.from = Some(checkpoint.map_err(|what| self.failed(what))?);
                Ok(self)
            }
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(self),
            Err(source) => Err(Error::Io { path: self.file, action: "read the checkpoint", source }),
        }
    }

    /// The checkpoint to go on from.
    pub fn resumed_from(&self) -> Option<&Checkpoint> {
        self.from.as_ref()
    }

    /// Writes a checkpoint in place of the one before. Whenever the program is ended, one of the two is there. Of a team that
    /// has lost a rank, it writes none: what was on its way then may be wrong.
    fn write(
        &self,
        model: &Model,
        velocities: &[Vec<f32>],
        progress: &Progress,
        team: Option<&Team>,
    ) -> Result<()> {
        let weights: Vec<_> = model.weights().iter().map(|weight| weight.to_vec()).collect::<Result<_>>()?;
        let bytes =
            Checkpoint::bytes(model, (&weights, velocities), progress).map_err(|what| self.failed(what))?;
        team.map_or(Ok(()), Team::check)?;
        self.replaced.replace(&bytes).map_err(|source| cannot_write(&self.file, source))
    }

    /// Has the folder for one training, as long as the file that is returned is open. Not every file system can do that.
    /// Finds out whether checkpoints can be written there, before the first is.
    fn lock(&self) -> Result<File> {
        let dir = self.file.parent().unwrap_or(Path::new("."));
        let failed = |source| Error::Io { path: dir.to_owned(), action: "save to it", source };
        let folder = File::open(dir).map_err(failed)?;
        match folder.try_lock() {
            Err(TryLockError::WouldBlock) => Err(failed(io::Error::new(
                ErrorKind::ResourceBusy,
                "another training does; name another folder",
            ))),
            Ok(()) | Err(TryLockError::Error(_)) => {
                self.replaced.check().map_err(|source| cannot_write(&self.file, source))?;
                Ok(folder)
            }
        }
    }

    fn failed(&self, what: String) -> Error {
        Error::Checkpoint { file: self.file.clone(), what }
    }
}

impl Checkpoint {
    /// The epochs that were done.
    pub fn epochs(&self) -> &[Epoch] {
        &self.progress.epochs
    }

    /// Images that the next epoch was trained on.
    pub fn images(&self) -> usize {
        self.progress.begun.images
    }

    /// The weights of each layer, from the first to the head, `[inputs, outputs]`.
    pub fn weights(&self) -> &[Vec<f32>] {
        &self.weights
    }

    fn read(bytes: &[u8], hyper: &Hyper, data: &Dataset) -> std::result::Result<Self, String> {
        let described =
            |error: safetensors::SafeTensorError| format!("not a whole safetensors file: {error}");
        let (_, header) = SafeTensors::read_metadata(bytes).map_err(described)?;
        let tensors = SafeTensors::deserialize(bytes).map_err(described)?;
        let text = header.metadata().as_ref().and_then(|metadata| metadata.get(KEY));
        let text = text.ok_or("it has weights, but was not written by millpond train --save")?;
        let progress: Progress = serde_json::from_str(text).map_err(|error| error.to_string())?;
        // Only what this training has, too, says how much memory is asked for.
        progress.refuse_other_training(hyper, data)?;
        let sizes = Model::sizes(data.pixels(), hyper.num_layers, hyper.feat_dim);
        let values = |name: String, [inputs, outputs]: [usize; 2]| {
            let tensor = tensors.tensor(&name).map_err(|error| format!("{name}: {error}"))?;
            if tensor.dtype() != Dtype::F32 || tensor.shape() != [outputs, inputs] {
                let (dtype, shape) = (tensor.dtype(), tensor.shape());
                return Err(format!("{name} is {dtype:?} {shape:?}, not F32 [{outputs}, {inputs}]"));
            }
            let (bytes, _) = tensor.data().as_chunks();
            let values: Vec<f32> = bytes.iter().copied().map(f32::from_le_bytes).collect();
            Ok(transposed(&values, outputs))
        };
        let all = |name: fn(usize) -> String| {
            let layers = sizes.iter().enumerate();
            layers.map(|(layer, size)| values(name(layer), *size)).collect::<std::result::Result<Vec<_>, _>>()
        };
        let weights = all(name_of)?;
        let velocities = if progress.hyper.momentum > 0.0 { all(velocity_of)? } else { Vec::new() };
        Ok(Self { progress, weights, velocities })
    }

    fn bytes(
        model: &Model,
        (weights, velocities): (&[Vec<f32>], &[Vec<f32>]),
        progress: &Progress,
    ) -> std::result::Result<Vec<u8>, String> {
        let transposed = |(name, (weight, values)): (String, (&Tensor, &Vec<f32>))| {
            (name, [weight.cols(), weight.rows()], transposed(values, weight.rows()))
        };
        let named = |name: fn(usize) -> String, values| {
            (0..).map(name).zip(model.weights().iter().zip(values)).map(transposed)
        };
        let all: Vec<_> = named(name_of, weights).chain(named(velocity_of, velocities)).collect();
        let views: std::result::Result<Vec<_>, _> = all
            .iter()
            .map(|(name, shape, values)| {
                let view = TensorView::new(Dtype::F32, shape.to_vec(), bytemuck::cast_slice(values))?;
                Ok((name, view))
            })
            .collect();
        let text = serde_json::to_string(progress).map_err(|error| error.to_string())?;
        let metadata = HashMap::from([("format".to_owned(), "pt".to_owned()), (KEY.to_owned(), text)]);
        let written = views.and_then(|views| safetensors::serialize(views, Some(metadata)));
        written.map_err(|error: safetensors::SafeTensorError| error.to_string())
    }
}

fn cannot_write(file: &Path, source: io::Error) -> Error {
    Error::Io { path: file.to_owned(), action: "write the checkpoint", source }
}

/// As `nn.Sequential` names the weights of linear layers with a ReLU between each two.
fn name_of(layer: usize) -> String {
    format!("{}.weight", 2 * layer)
}

/// Beside them, the velocities.
fn velocity_of(layer: usize) -> String {
    format!("velocity.{}", name_of(layer))
}

/// The columns of a matrix with so many rows, one after another.
fn transposed(values: &[f32], rows: usize) -> Vec<f32> {
    let cols = values.len() / rows.max(1);
    (0..cols).flat_map(|col| values.iter().skip(col).step_by(cols)).copied().collect()
}

/// Writes the checkpoints of a training.
#[derive(Debug)]
pub(crate) struct Saver<'a> {
    saving: Option<&'a Saving>,
    team: Option<&'a Team>,
    /// Steps of an epoch between two checkpoints.
    pub(crate) every: Option<usize>,
    /// Whether this rank or another writes checkpoints.
    pub(crate) saves: bool,
    pub(crate) progress: Progress,
    _locked: Option<File>,
}

impl<'a> Saver<'a> {
    /// Of a training from its beginning, or from the checkpoint to go on from: with a team, rank 0's.
    ///
    /// # Errors
    /// [`Error::Launcher`] where a rank has other settings or data, [`Error::RankLost`], and [`Error::Io`] where another training saves to
    /// the folder.
    pub(crate) fn new(
        saving: Option<&'a Saving>,
        team: Option<&'a Team>,
        hyper: &Hyper,
        data: &Dataset,
    ) -> Result<Self> {
        let locked = saving.map(Saving::lock).transpose()?;
        let progress = match saving {
            Some(Saving { from: Some(from), .. }) => Progress { hyper: *hyper, ..from.progress.clone() },
            _ => {
                let data = if saving.is_some() || team.is_some() { data.checksum() } else { 0 };
                Progress { hyper: *hyper, data, epochs: Vec::new(), begun: Begun::default() }
            }
        };
        let every = saving.and_then(|saving| saving.every);
        let saves = saving.is_some();
        let Some(ranks) = team else {
            return Ok(Self { saving, team, every, saves, progress, _locked: locked });
        };
        let said = ranks.gather(&(progress, every, saves, ranks.shard))?;
        let (first, every, saves, shard) = &said[0];
        for (rank, (progress, _, _, sharded)) in said.iter().enumerate() {
            let what = match () {
                () if progress.hyper != first.hyper || sharded != shard => "settings",
                () if progress.data != first.data => "data",
                () => continue,
            };
            let what =
                format!("rank {rank} has other {what} than rank 0: start all ranks with the same arguments");
            return Err(Error::Launcher { what });
        }
        Ok(Self { saving, team, every: *every, saves: *saves, progress: first.clone(), _locked: locked })
    }

    /// The weights to begin with, where the training goes on.
    pub(crate) fn weights(&self) -> Option<&'a [Vec<f32>]> {
        Some(self.saving?.resumed_from()?.weights())
    }

    /// Whether the training goes on from a checkpoint, that of this rank or of another.
    pub(crate) fn is_resumed(&self) -> bool {
        !self.progress.epochs.is_empty() || self.progress.begun.images > 0
    }

    /// The velocities to begin with.
    pub(crate) fn velocities(&self) -> &'a [Vec<f32>] {
        self.saving.and_then(Saving::resumed_from).map_or(&[], |from| &from.velocities)
    }

    /// Writes one in the middle of an epoch.
    pub(crate) fn step(&mut self, model: &Model, velocities: &[Vec<f32>], begun: Begun) -> Result<()> {
        self.progress.begun = begun;
        self.write(model, velocities)
    }

    /// Writes one after an epoch.
    pub(crate) fn epoch(&mut self, model: &Model, velocities: &[Vec<f32>], epoch: Epoch) -> Result<()> {
        self.progress.epochs.push(epoch);
        self.progress.begun = Begun::default();
        self.write(model, velocities)
    }

    /// A training that diverges keeps the last checkpoint before that.
    fn write(&self, model: &Model, velocities: &[Vec<f32>]) -> Result<()> {
        let Progress { epochs, begun, .. } = &self.progress;
        let losses = epochs.iter().flat_map(|epoch| [epoch.train_loss, epoch.val_loss]);
        let is_finite = losses.chain(begun.totals).all(f64::is_finite);
        match self.saving.filter(|_| is_finite) {
            Some(saving) => saving.write(model, velocities, &self.progress, self.team),
            None => Ok(()),
        }
    }
}
