//! The arguments of `millpond fetch`.

use std::path::PathBuf;

use clap::builder::PossibleValuesParser;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
MNIST has 60,000 images to train on and 10,000 to validate with: 12 MB.

Example:
  millpond fetch mnist data/mnist && millpond train --data data/mnist")]
pub(crate) struct FetchArgs {
    /// The data set
    #[arg(value_parser = PossibleValuesParser::new(["mnist"]))]
    pub(crate) dataset: String,
    /// Where to put its files
    pub(crate) dir: PathBuf,
    /// Fetch from this address instead of the public mirrors
    #[arg(long, value_name = "URL")]
    pub(crate) mirror: Option<String>,
}
