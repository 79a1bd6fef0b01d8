//! The arguments of `millpond plan`.

use std::path::PathBuf;
use std::str::FromStr;

use clap::Args;
use millpond_replay::fit::Card;

use crate::flags::size_or_none;

#[derive(Debug, Args)]
#[command(after_help = "\
A trace is what millpond replay reads. A job takes what it needs with the pool,
and its process a context besides. The cards are filled in the order in which
they have least room left.

Examples:
  millpond plan --cards 24GiB --jobs a.mprec b.mprec
  millpond plan --cards 2xA100-40,H100 --jobs ranks/*.mprec --json plan.json")]
pub(crate) struct PlanArgs {
    /// Recordings of the jobs; - is standard input
    #[arg(long, value_name = "TRACE", required = true, num_args = 1..)]
    pub(super) jobs: Vec<PathBuf>,
    /// The cards that there are, such as '24GiB,2xA100-40'
    #[arg(long, value_name = "CARDS", required = true, value_delimiter = ',')]
    pub(super) cards: Vec<Cards>,
    /// Left to the driver for each job [default: 512MiB]
    #[arg(long, value_name = "SIZE", value_parser = size_or_none)]
    pub(super) context: Option<u64>,
    /// Write the results; - is standard output
    #[arg(long, value_name = "FILE")]
    pub(super) json: Option<PathBuf>,
}

/// Some cards of one kind.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Cards {
    pub(super) card: Card,
    pub(super) count: usize,
}

/// More than a machine has.
const MOST_CARDS: usize = 64;

impl FromStr for Cards {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        let (count, card) = match text.split_once('x') {
            Some((count, card)) if count.trim().parse::<usize>().is_ok() => (count.trim(), card),
            _ => ("1", text),
        };
        match count.parse() {
            Ok(count) if (1..=MOST_CARDS).contains(&count) => Ok(Self { card: card.parse()?, count }),
            _ => Err(format!("'{text}' should be 1 to {MOST_CARDS} cards, such as 2x24GiB")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cards_are_counted_or_one() {
        let cards =
            |text: &str| text.parse::<Cards>().map(|cards| (cards.count, cards.card.bytes.div_ceil(1 << 30)));
        assert_eq!(cards("24GiB"), Ok((1, 24)));
        assert_eq!(cards("2xA100-40"), Ok((2, 39)));
        assert_eq!(cards("8x RTX 4090"), Ok((8, 24)));
        assert!(cards("0x24GiB").unwrap_err().contains("1 to 64 cards"));
        assert!(cards("65x24GiB").is_err());
        assert!(cards("2xVoodoo").unwrap_err().contains("no card"));
    }
}
