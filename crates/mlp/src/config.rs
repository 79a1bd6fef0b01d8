//! The settings of a run: defaults, a TOML file, and flags over both.

use std::fmt::Display;
use std::path::{Path, PathBuf};

use millpond::bindings::read_short_text;
use millpond::device::DeviceChoice;
use millpond_baselines::{MILLPOND, NAMES};
use serde::de::{Deserialize, Deserializer, Error as _};

use crate::{Error, Hyper, Machine, Precision, Result, Steps};

/// The settings of a run, as a TOML file has them. Every key may be left out.
#[derive(Debug, Clone, PartialEq, serde::Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// Hidden layers, 1 to [`MOST_LAYERS`](Self::MOST_LAYERS).
    #[serde(deserialize_with = "whole::<_, { Config::MOST_LAYERS }>")]
    pub num_layers: usize,
    /// Outputs of each hidden layer, 1 to [`MOST_FEATURES`](Self::MOST_FEATURES).
    #[serde(deserialize_with = "whole::<_, { Config::MOST_FEATURES }>")]
    pub feat_dim: usize,
    /// SGD's step, above 0.
    #[serde(deserialize_with = "rate")]
    pub learning_rate: f32,
    /// SGD's momentum, 0 to below 1.
    #[serde(deserialize_with = "momentum")]
    pub momentum: f32,
    /// Images in a step, 1 to [`MOST_IN_A_BATCH`](Self::MOST_IN_A_BATCH).
    #[serde(deserialize_with = "whole::<_, { Config::MOST_IN_A_BATCH }>")]
    pub batch_size: usize,
    /// Parts that a rank computes a batch's gradients in, 1 to [`MOST_IN_A_BATCH`](Self::MOST_IN_A_BATCH).
    #[serde(deserialize_with = "whole::<_, { Config::MOST_IN_A_BATCH }>")]
    pub micro_batches: usize,
    /// Passes over the training set, 1 to [`MOST_EPOCHS`](Self::MOST_EPOCHS).
    #[serde(deserialize_with = "whole::<_, { Config::MOST_EPOCHS }>")]
    pub epochs: usize,
    /// Where the weights and the order of the images come from.
    #[serde(deserialize_with = "seed")]
    pub seed: u64,
    /// `auto`, `cuda`, `cuda:N` or `host`.
    #[serde(deserialize_with = "device")]
    pub device: DeviceChoice,
    /// An allocator's name, or `all`.
    #[serde(deserialize_with = "allocator")]
    pub allocator: String,
    /// A folder with four IDX files; without it, the bundled digits.
    pub data: Option<PathBuf>,
    /// A folder to write the curves to; without it, they are not written.
    pub log_dir: Option<PathBuf>,
    /// How a GPU may round the factors of products: faster, less exact.
    #[serde(deserialize_with = "precision")]
    pub precision: Precision,
    /// How steps get to the device.
    #[serde(deserialize_with = "steps")]
    pub steps: Steps,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            num_layers: 4,
            feat_dim: 784,
            learning_rate: 0.1,
            momentum: 0.0,
            batch_size: 64,
            micro_batches: 1,
            epochs: 10,
            seed: 1,
            device: DeviceChoice::Auto,
            allocator: MILLPOND.to_owned(),
            data: None,
            log_dir: None,
            precision: Precision::Float32,
            steps: Steps::Auto,
        }
    }
}

impl Config {
    /// Hidden layers at most.
    pub const MOST_LAYERS: usize = 256;
    /// Outputs of a hidden layer at most.
    pub const MOST_FEATURES: usize = 65_536;
    /// Images in a step at most.
    pub const MOST_IN_A_BATCH: usize = 65_536;
    /// Steps between two checkpoints at most.
    pub const MOST_STEPS: usize = 1_000_000;
    /// Epochs at most.
    pub const MOST_EPOCHS: usize = 100_000;

    /// Reads a TOML file.
    ///
    /// # Errors
    /// [`Error::Io`] where it cannot be read, [`Error::ConfigFile`] where it is no TOML, has an unknown key, or a value
    /// that makes no sense.
    pub fn read(file: &Path) -> Result<Self> {
        let text = read_short_text(file, 1).map_err(|source| Error::Io {
            path: file.to_owned(),
            action: "read the settings",
            source,
        })?;
        toml::from_str(&text)
            .map_err(|error| Error::ConfigFile { file: file.to_owned(), what: one_line(&error, &text) })
    }

    /// What to train.
    pub fn hyper(&self) -> Hyper {
        let &Self { num_layers, feat_dim, learning_rate, momentum, batch_size, micro_batches, .. } = self;
        let &Self { epochs, seed, .. } = self;
        Hyper { num_layers, feat_dim, learning_rate, momentum, batch_size, micro_batches, epochs, seed }
    }

    /// Reads a whole number from 1 to `most`, as a flag has it.
    ///
    /// # Errors
    /// What it may be, in words.
    pub fn whole(text: &str, most: usize) -> std::result::Result<usize, String> {
        match text.parse::<i128>() {
            Ok(number) => in_range(number, most),
            Err(_) => Err(format!("'{text}' is not a whole number from 1 to {}", thousands(most))),
        }
    }

    /// Reads a learning rate, as a flag has it.
    ///
    /// # Errors
    /// What it may be, in words.
    pub fn rate(text: &str) -> std::result::Result<f32, String> {
        real(text, &RATE)
    }

    /// Reads how steps get to the device, as a flag has it.
    ///
    /// # Errors
    /// What it may be, in words.
    pub fn steps(text: &str) -> std::result::Result<Steps, String> {
        match text {
            "auto" => Ok(Steps::Auto),
            "eager" => Ok(Steps::Eager),
            "captured" => Ok(Steps::Captured),
            _ => Err(format!("'{text}' is not auto, eager or captured")),
        }
    }

    /// Reads a precision, as a flag has it.
    ///
    /// # Errors
    /// What it may be, in words.
    pub fn precision(text: &str) -> std::result::Result<Precision, String> {
        let found = Precision::ALL.into_iter().find(|precision| precision.name() == text);
        found.ok_or_else(|| format!("'{text}' is not float32, tf32 or bfloat16"))
    }

    /// Reads a momentum, as a flag has it.
    ///
    /// # Errors
    /// What it may be, in words.
    pub fn momentum(text: &str) -> std::result::Result<f32, String> {
        real(text, &MOMENTUM)
    }
}

/// What a number is to be, in words, and whether one is.
type Real = (&'static str, fn(f32) -> bool);

const RATE: Real = ("a number above 0", |rate| rate.is_finite() && rate > 0.0);
const MOMENTUM: Real = ("a number from 0 to below 1", |momentum| (0.0..1.0).contains(&momentum));

fn real(text: &str, of: &Real) -> std::result::Result<f32, String> {
    text.parse().map_err(|_| format!("'{text}' is not {}", of.0)).and_then(|number| checked(number, of))
}

fn checked(number: f32, (words, holds): &Real) -> std::result::Result<f32, String> {
    if holds(number) { Ok(number) } else { Err(format!("{number} is not {words}")) }
}

fn in_range(number: i128, most: usize) -> std::result::Result<usize, String> {
    let number_in_range = usize::try_from(number).ok().filter(|number| (1..=most).contains(number));
    number_in_range.ok_or_else(|| format!("{number} is outside 1 to {}", thousands(most)))
}

fn whole<'de, D: Deserializer<'de>, const MOST: usize>(from: D) -> std::result::Result<usize, D::Error> {
    in_range(i64::deserialize(from)?.into(), MOST).map_err(D::Error::custom)
}

fn momentum<'de, D: Deserializer<'de>>(from: D) -> std::result::Result<f32, D::Error> {
    checked(f32::deserialize(from)?, &MOMENTUM).map_err(D::Error::custom)
}

fn rate<'de, D: Deserializer<'de>>(from: D) -> std::result::Result<f32, D::Error> {
    checked(f32::deserialize(from)?, &RATE).map_err(D::Error::custom)
}

fn seed<'de, D: Deserializer<'de>>(from: D) -> std::result::Result<u64, D::Error> {
    let seed = i64::deserialize(from)?;
    u64::try_from(seed).map_err(|_| D::Error::custom(format!("{seed} is below 0")))
}

fn device<'de, D: Deserializer<'de>>(from: D) -> std::result::Result<DeviceChoice, D::Error> {
    Machine::choice(&String::deserialize(from)?).map_err(D::Error::custom)
}

fn steps<'de, D: Deserializer<'de>>(from: D) -> std::result::Result<Steps, D::Error> {
    Config::steps(&String::deserialize(from)?).map_err(D::Error::custom)
}

fn precision<'de, D: Deserializer<'de>>(from: D) -> std::result::Result<Precision, D::Error> {
    Config::precision(&String::deserialize(from)?).map_err(D::Error::custom)
}

fn allocator<'de, D: Deserializer<'de>>(from: D) -> std::result::Result<String, D::Error> {
    let name = String::deserialize(from)?;
    if name == "all" || NAMES.contains(&name.as_str()) {
        return Ok(name);
    }
    Err(D::Error::custom(format!("'{name}' is not one of {}, all", NAMES.join(", "))))
}

/// `100,000`.
fn thousands(number: usize) -> impl Display {
    let digits = number.to_string();
    let groups: Vec<_> = digits.as_bytes().rchunks(3).rev().map(String::from_utf8_lossy).collect();
    groups.join(",")
}

/// The parser's message without its drawing, with the line and the key it is about.
fn one_line(error: &toml::de::Error, text: &str) -> String {
    let mut message = error.message().trim().replace('\n', "; ");
    for (type_name, words) in [
        ("i64", "a whole number"),
        ("f32", "a number"),
        ("path string", "a string"),
        ("a boolean", "true or false"),
    ] {
        message = message.replace(&format!("expected {type_name}"), &format!("expected {words}"));
    }
    let Some(before) = error.span().and_then(|span| text.get(..span.start)) else {
        return message;
    };
    let line = before.lines().count().max(1) + usize::from(before.ends_with('\n'));
    let written = text.lines().nth(line - 1).unwrap_or_default();
    match written.split_once('=') {
        Some((key, _)) if !message.contains("unknown field") => {
            format!("line {line}: {}: {message}", key.trim())
        }
        _ => format!("line {line}: {}", message.replace("unknown field", "unknown key")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> String {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), text).unwrap();
        Config::read(file.path()).unwrap_err().to_string().replace(&file.path().display().to_string(), "FILE")
    }

    #[test]
    fn a_device_is_not_read_without_end() {
        let error = Config::read(Path::new("/dev/zero")).unwrap_err().to_string();
        assert!(error.starts_with("/dev/zero: cannot read the settings: it has more than 1 MiB"), "{error}");
    }

    #[test]
    fn an_unknown_key_is_named_with_line_and_known_ones() {
        let error = read("epochs = 3\n\nbatchsize = 64\n");
        assert!(
            error.starts_with("FILE: line 3: unknown key `batchsize`, expected one of `num_layers`"),
            "{error}"
        );
        assert!(error.contains("`batch_size`") && !error.contains('\n'), "{error}");
    }

    #[test]
    fn a_wrong_value_is_named_with_its_line() {
        for (text, expected) in [
            (
                "seed = 1\nepochs = \"ten\"\n",
                "2: epochs: invalid type: string \"ten\", expected a whole number",
            ),
            ("epochs = 0", "1: epochs: 0 is outside 1 to 100,000"),
            ("epochs = -1", "1: epochs: -1 is outside 1 to 100,000"),
            ("\n\nbatch_size = 65537", "3: batch_size: 65537 is outside 1 to 65,536"),
            ("num_layers = 257", "1: num_layers: 257 is outside 1 to 256"),
            ("feat_dim = 1099511627776", "1: feat_dim: 1099511627776 is outside 1 to 65,536"),
            ("learning_rate = nan", "1: learning_rate: NaN is not a number above 0"),
            ("learning_rate = -0.5", "1: learning_rate: -0.5 is not a number above 0"),
            ("seed = -1", "1: seed: -1 is below 0"),
            ("precision = \"half\"", "1: precision: 'half' is not float32, tf32 or bfloat16"),
            ("device = \"gpu\"", "1: device: 'gpu' is not auto, host, cuda or cuda:N with the GPU's number"),
            ("device = \"sim\"", "1: device: 'sim' is not auto, host, cuda or cuda:N with the GPU's number"),
            ("steps = \"graph\"", "1: steps: 'graph' is not auto, eager or captured"),
            ("data = 3", "1: data: invalid type: integer `3`, expected a string"),
        ] {
            let error = read(text);
            assert!(error.starts_with(&format!("FILE: line {expected}")), "{error}");
        }
        let error = read("allocator = \"jemalloc\"");
        assert!(error.starts_with("FILE: line 1: allocator: 'jemalloc' is not one of millpond, "), "{error}");
    }

    #[test]
    fn what_is_no_toml_is_an_error_with_its_line() {
        let error = read("epochs = 3\nbatch_size 64\n");
        assert!(error.starts_with("FILE: line 2: "), "{error}");
        assert!(read("epochs = 3\nepochs = 4\n").starts_with("FILE: line 2: epochs: duplicate key"));
    }

    #[test]
    fn numbers_of_flags_have_the_same_ranges() {
        assert_eq!(Config::whole("7", 10), Ok(7));
        assert_eq!(Config::whole("0", 100_000), Err("0 is outside 1 to 100,000".to_owned()));
        assert_eq!(Config::whole("-3", 256), Err("-3 is outside 1 to 256".to_owned()));
        let most = usize::MAX;
        assert!(
            Config::whole("18446744073709551616", most)
                .unwrap_err()
                .starts_with("18446744073709551616 is out")
        );
        assert_eq!(Config::whole("many", 256), Err("'many' is not a whole number from 1 to 256".to_owned()));
        assert_eq!(Config::rate("0.5"), Ok(0.5));
        assert_eq!(Config::rate("inf"), Err("inf is not a number above 0".to_owned()));
        assert_eq!(Config::momentum("0.9"), Ok(0.9));
        assert_eq!(Config::momentum("1"), Err("1 is not a number from 0 to below 1".to_owned()));
        assert_eq!(Config::rate("fast"), Err("'fast' is not a number above 0".to_owned()));
    }

    #[test]
    fn an_empty_file_gives_the_defaults_of_the_model() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let config = Config::read(file.path()).unwrap();
        assert_eq!((&config, config.device), (&Config::default(), DeviceChoice::Auto));
        let hyper = config.hyper();
        assert_eq!((hyper.num_layers, hyper.feat_dim, hyper.batch_size, hyper.epochs), (4, 784, 64, 10));
    }

    #[test]
    fn every_setting_is_read() {
        let text = "num_layers = 1\nfeat_dim = 2\nlearning_rate = 3\nmomentum = 0.5\nbatch_size = 4\nmicro_batches = 7\nepochs = 5\nseed = 6\n\
                    device = \"cuda:7\"\nallocator = \"all\"\ndata = \"d\"\nlog_dir = \"l\"\nprecision = \"tf32\"\nsteps = \"eager\"\n";
        let expected = Config {
            num_layers: 1,
            feat_dim: 2,
            learning_rate: 3.0,
            momentum: 0.5,
            batch_size: 4,
            micro_batches: 7,
            epochs: 5,
            seed: 6,
            device: "cuda:7".parse().unwrap(),
            allocator: "all".to_owned(),
            data: Some("d".into()),
            log_dir: Some("l".into()),
            precision: Precision::Tf32,
            steps: Steps::Eager,
        };
        assert_eq!(toml::from_str::<Config>(text), Ok(expected));
    }
}
