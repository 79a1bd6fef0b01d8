//! Images and their labels, bundled or of a folder.

use std::io::Read;
use std::path::{Path, PathBuf};

use super::idx::{self, SIDE};
use crate::{Error, Result};

/// Images to train on and images to validate with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Dataset {
    /// Where it came from, for people.
    pub source: String,
    /// What is trained on.
    pub train: Split,
    /// What is validated with.
    pub validation: Split,
}

/// Images and their labels; as many of the one as of the other, and at least one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Split {
    /// One byte a pixel, row by row, image after image.
    pub images: Vec<u8>,
    /// The class of each image, 0 to 9.
    pub labels: Vec<u8>,
}

/// The names of a split's two files, as MNIST has them; `.gz` may follow, and `-idx` may be `.idx`.
const TRAIN: [&str; 2] = ["train-images-idx3-ubyte", "train-labels-idx1-ubyte"];
const VALIDATION: [&str; 2] = ["t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"];

macro_rules! digits {
    ($name:literal) => {
        include_bytes!(concat!(env!("CARGO_MANIFEST_DIR"), "/digits/", $name, ".gz"))
    };
}

impl Dataset {
    /// The digits in the program itself: 8,000 to train on and 2,000 to validate with
    /// (`digits/README.md` of this crate says where they are from).
    ///
    /// # Errors
    /// None, unless the program was built from damaged files.
    pub fn bundled() -> Result<Self> {
        let split = |names: [&str; 2], images: &[u8], labels: &[u8]| {
            Split::read((format!("bundled {}", names[0]), images), (format!("bundled {}", names[1]), labels))
        };
        Ok(Self {
            source: "bundled digits".to_owned(),
            train: split(TRAIN, digits!("train-images-idx3-ubyte"), digits!("train-labels-idx1-ubyte"))?,
            validation: split(
                VALIDATION,
                digits!("t10k-images-idx3-ubyte"),
                digits!("t10k-labels-idx1-ubyte"),
            )?,
        })
    }

    /// The four IDX files of MNIST, Fashion-MNIST or what has their shape, gzipped or not.
    ///
    /// # Errors
    /// [`Error::Io`] where a file is missing or cannot be read, [`Error::Data`] where it is not what it should
    /// be.
    pub fn from_dir(dir: &Path) -> Result<Self> {
        let split = |names: [&str; 2]| {
            let (images, labels) = (find(dir, names[0])?, find(dir, names[1])?);
            Split::read(
                (images.display().to_string(), open(&images)?),
                (labels.display().to_string(), open(&labels)?),
            )
        };
        Ok(Self { source: dir.display().to_string(), train: split(TRAIN)?, validation: split(VALIDATION)? })
    }

    /// Which files [`from_dir`](Self::from_dir) would read, as far as they are there.
    pub fn files(dir: &Path) -> Vec<PathBuf> {
        [TRAIN, VALIDATION].as_flattened().iter().filter_map(|name| find(dir, name).ok()).collect()
    }

    /// A checksum of the images and labels to train on.
    pub(crate) fn checksum(&self) -> u32 {
        let mut sum = flate2::Crc::new();
        sum.update(&self.train.images);
        sum.update(&self.train.labels);
        sum.sum()
    }

    /// Pixels of an image.
    pub fn pixels(&self) -> usize {
        SIDE * SIDE
    }
}

impl Split {
    /// Images.
    pub fn len(&self) -> usize {
        self.labels.len()
    }

    /// Whether there are none, which no data set has.
    pub fn is_empty(&self) -> bool {
        self.labels.is_empty()
    }

    /// Bytes of an image with its label behind it.
    pub fn row(&self) -> usize {
        self.images.len() / self.len().max(1) + 1
    }

    /// Writes these images into the first [rows](Self::row) of `to`, in this order, each with its label behind it.
    ///
    /// # Panics
    /// Where there is no such image. `to` may be too short for all of them: then it is filled.
    pub fn gather(&self, order: &[u32], to: &mut [u8]) {
        let pixels = self.row() - 1;
        for (to, &image) in to.chunks_exact_mut(pixels + 1).zip(order) {
            let image = image as usize;
            to[..pixels].copy_from_slice(&self.images[image * pixels..][..pixels]);
            to[pixels] = self.labels[image];
        }
    }

    /// Keeps the first `count` images, at least one.
    pub fn truncate(&mut self, count: usize) {
        let count = count.max(1);
        self.images.truncate(count * SIDE * SIDE);
        self.labels.truncate(count);
    }

    /// Reads a split from its images and its labels, each with the name to use in errors.
    fn read<I: Read, L: Read>(images: (String, I), labels: (String, L)) -> Result<Self> {
        let (images_file, labels_file) = (images.0.clone(), labels.0.clone());
        let images = idx::images(&images.0, images.1)?;
        let labels = idx::labels(&labels.0, labels.1)?;
        let count = images.len() / (SIDE * SIDE);
        if count != labels.len() {
            return Err(Error::Data {
                file: labels_file,
                what: "number of labels",
                found: labels.len().to_string(),
                expected: format!("{count}, one for each image of {images_file}"),
            });
        }
        Ok(Self { images, labels })
    }
}

/// The file of this name in `dir`, in any of the spellings that are about.
fn find(dir: &Path, name: &str) -> Result<PathBuf> {
    let dotted = name.replace("-idx", ".idx");
    let names = [name.to_owned(), format!("{name}.gz"), dotted.clone(), format!("{dotted}.gz")];
    if let Some(found) = names.iter().map(|name| dir.join(name)).find(|path| path.is_file()) {
        return Ok(found);
    }
    let why = match (dir.is_dir(), dir.exists()) {
        (true, _) => "no such file, nor one ending in .gz",
        (_, true) => "it is not a folder",
        _ => "no such folder",
    };
    Err(Error::Io {
        path: if dir.is_dir() { dir.join(name) } else { dir.to_owned() },
        action: "find the data",
        source: std::io::Error::new(
            std::io::ErrorKind::NotFound,
            format!(
                "{why}; a data folder holds {}, {}, {} and {}",
                TRAIN[0], TRAIN[1], VALIDATION[0], VALIDATION[1]
            ),
        ),
    })
}

fn open(path: &Path) -> Result<std::fs::File> {
    std::fs::File::open(path).map_err(|source| Error::Io { path: path.to_owned(), action: "open it", source })
}
