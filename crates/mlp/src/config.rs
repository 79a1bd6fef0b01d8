//! The settings of a run: defaults, a TOML file, and flags over both.

use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};

use millpond::device::DeviceChoice;
use serde::{Deserialize, Serialize};

use crate::{Error, Hyper, Machine, Result};

/// The settings of a run, as a TOML file has them. Every key may be left out.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// Hidden layers, 1 to 256.
    pub num_layers: usize,
    /// Outputs of each hidden layer, 1 to 65,536.
    pub feat_dim: usize,
    /// SGD's step, above 0.
    pub learning_rate: f32,
    /// Images in a step, 1 to 65,536.
    pub batch_size: usize,
    /// Passes over the training set, 1 to 100,000.
    pub epochs: usize,
    /// Where the weights and the order of the images come from.
    pub seed: u64,
    /// `auto`, `cuda`, `cuda:N` or `host`.
    pub device: String,
    /// An allocator's name, or `all`.
    pub allocator: String,
    /// A folder with four IDX files; without it, the bundled digits.
    pub data: Option<PathBuf>,
    /// A folder to write the curves to; without it, they are not written.
    pub log_dir: Option<PathBuf>,
    /// Lets a GPU round factors to TF32: faster, less exact.
    pub tf32: bool,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            num_layers: 4,
            feat_dim: 784,
            learning_rate: 0.1,
            batch_size: 64,
            epochs: 10,
            seed: 1,
            device: "auto".to_owned(),
            allocator: "millpond".to_owned(),
            data: None,
            log_dir: None,
            tf32: false,
        }
    }
}

impl Config {
    /// Reads a TOML file. The values are checked by [`check`](Self::check), once flags were laid over them.
    ///
    /// # Errors
    /// [`Error::Io`] where it cannot be read, [`Error::ConfigFile`] where it is no TOML or has an unknown key
    /// or a value of the wrong type.
    pub fn read(file: &Path) -> Result<Self> {
        let text = std::fs::read_to_string(file).map_err(|source| Error::Io {
            path: file.to_owned(),
            action: "read the configuration",
            source,
        })?;
        toml::from_str(&text)
            .map_err(|error| Error::ConfigFile { file: file.to_owned(), what: one_line(&error, &text) })
    }

    /// The device asked for and what to train, where every value makes sense. `origin` names where the
    /// settings came from, for the error.
    ///
    /// # Errors
    /// [`Error::Config`] for the first value that does not.
    pub fn check(&self, origin: &str) -> Result<(DeviceChoice, Hyper)> {
        let refuse = |key: &str, found: String, expected: String| {
            Err(Error::Config { origin: origin.to_owned(), key: key.to_owned(), found, expected })
        };
        let ranges: [(&str, usize, RangeInclusive<usize>); 4] = [
            ("num_layers", self.num_layers, 1..=256),
            ("feat_dim", self.feat_dim, 1..=65_536),
            ("batch_size", self.batch_size, 1..=65_536),
            ("epochs", self.epochs, 1..=100_000),
        ];
        for (key, value, range) in ranges {
            if !range.contains(&value) {
                return refuse(key, value.to_string(), format!("{} to {}", range.start(), range.end()));
            }
        }
        if !(self.learning_rate.is_finite() && self.learning_rate > 0.0) {
            return refuse("learning_rate", self.learning_rate.to_string(), "a number above 0".to_owned());
        }
        let device = match Machine::choice(&self.device) {
            Ok(device) => device,
            Err(expected) => return refuse("device", format!("'{}'", self.device), expected.to_owned()),
        };
        let &Self { num_layers, feat_dim, learning_rate, batch_size, epochs, seed, .. } = self;
        Ok((device, Hyper { num_layers, feat_dim, learning_rate, batch_size, epochs, seed }))
    }
}

/// The parser's message without its drawing, with the line and the key it is about.
fn one_line(error: &toml::de::Error, text: &str) -> String {
    let message = error.message().trim().replace('\n', "; ");
    let Some(before) = error.span().and_then(|span| text.get(..span.start)) else {
        return message;
    };
    let line = before.lines().count().max(1) + usize::from(before.ends_with('\n'));
    let written = text.lines().nth(line - 1).unwrap_or_default();
    match written.split_once('=') {
        Some((key, _)) if !message.contains("unknown field") => {
            format!("line {line}: {}: {message}", key.trim())
        }
        _ => format!("line {line}: {message}"),
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
    fn an_unknown_key_is_named_with_line_and_known_ones() {
        let error = read("epochs = 3\n\nbatchsize = 64\n");
        assert!(
            error.starts_with("FILE: line 3: unknown field `batchsize`, expected one of `num_layers`"),
            "{error}"
        );
        assert!(error.contains("`batch_size`") && !error.contains('\n'), "{error}");
    }

    #[test]
    fn a_value_of_wrong_type_is_named_with_its_line() {
        let error = read("seed = 1\nepochs = \"ten\"\n");
        assert_eq!(error, "FILE: line 2: epochs: invalid type: string \"ten\", expected usize");
        let error = read("epochs = -1");
        assert!(
            error.starts_with("FILE: line 1: epochs: invalid value: integer `-1`, expected usize"),
            "{error}"
        );
    }

    #[test]
    fn what_is_no_toml_is_an_error_with_its_line() {
        let error = read("epochs = 3\nbatch_size 64\n");
        assert!(error.starts_with("FILE: line 2: "), "{error}");
    }

    #[test]
    fn values_out_of_range_name_the_key_found_and_expected() {
        let with = |change: fn(&mut Config)| {
            let mut config = Config::default();
            change(&mut config);
            config.check("run.toml").unwrap_err().to_string()
        };
        assert_eq!(with(|c| c.batch_size = 0), "run.toml: batch_size: found 0, expected 1 to 65536");
        assert_eq!(with(|c| c.num_layers = 0), "run.toml: num_layers: found 0, expected 1 to 256");
        assert_eq!(with(|c| c.epochs = 0), "run.toml: epochs: found 0, expected 1 to 100000");
        assert_eq!(
            with(|c| c.feat_dim = 1 << 40),
            "run.toml: feat_dim: found 1099511627776, expected 1 to 65536"
        );
        assert_eq!(
            with(|c| c.learning_rate = f32::NAN),
            "run.toml: learning_rate: found NaN, expected a number above 0"
        );
        assert_eq!(
            with(|c| c.device = "gpu".to_owned()),
            "run.toml: device: found 'gpu', expected auto, host, cuda or cuda:N with the GPU's number"
        );
    }

    #[test]
    fn an_empty_file_gives_the_defaults_of_the_model() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let config = Config::read(file.path()).unwrap();
        assert_eq!(config, Config::default());
        let (device, hyper) = config.check("empty").unwrap();
        assert_eq!(device, DeviceChoice::Auto);
        assert_eq!((hyper.num_layers, hyper.feat_dim, hyper.batch_size, hyper.epochs), (4, 784, 64, 10));
    }

    #[test]
    fn every_setting_survives_being_written_and_read() {
        let config =
            Config { data: Some("d".into()), log_dir: Some("l".into()), seed: 7, ..Config::default() };
        assert_eq!(toml::from_str::<Config>(&toml::to_string(&config).unwrap()).unwrap(), config);
    }
}
