//! What a program finds out about a card: its name, its memory, its compute capability and its multiprocessors.

use std::str::FromStr;

use millpond::HumanBytes;
use millpond_replay::fit::Card;
use serde::Serialize;

/// A card as CUDA describes it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct CardFacts {
    pub(super) name: String,
    pub(super) bytes: u64,
    /// The compute capability.
    pub(super) major: u32,
    pub(super) minor: u32,
    pub(super) multiprocessors: u32,
    #[serde(skip)]
    pub(super) card: Card,
}

/// Part of a name, the compute capability, and the multiprocessors: NVIDIA's data sheets, and CUDA's list of GPUs. Where one name is
/// part of another, the longer one comes first.
const KNOWN: [(&str, (u32, u32), u32); 24] = [
    ("h100", (9, 0), 132),
    ("h200", (9, 0), 132),
    ("b200", (10, 0), 148),
    ("a100", (8, 0), 108),
    ("a30", (8, 0), 56),
    ("a10", (8, 6), 72),
    ("a16", (8, 6), 10),
    ("a40", (8, 6), 84),
    ("a2000", (8, 6), 26),
    ("a4000", (8, 6), 48),
    ("a5000", (8, 6), 64),
    ("a6000", (8, 6), 84),
    ("6000ada", (8, 9), 142),
    ("l40", (8, 9), 142),
    ("l4", (8, 9), 58),
    ("t4", (7, 5), 40),
    ("v100", (7, 0), 80),
    ("2080", (7, 5), 68),
    ("309", (8, 6), 82),
    ("30", (8, 6), 46),
    ("409", (8, 9), 128),
    ("40", (8, 9), 60),
    ("509", (12, 0), 170),
    ("50", (12, 0), 60),
];

/// Bytes from which on a card that is only named by its size is taken for one of a data center.
const LARGE: u64 = 76 << 30;

const GIB: u64 = 1 << 30;

impl Default for CardFacts {
    fn default() -> Self {
        Self::of("H100".parse().unwrap_or(Card { name: "H100".to_owned(), bytes: 79 << 30 }))
    }
}

impl CardFacts {
    fn of(card: Card) -> Self {
        let plain: String = card.name.to_lowercase().chars().filter(char::is_ascii_alphanumeric).collect();
        let bytes = card.bytes;
        // "24gib" names no model.
        let is_size =
            plain.trim_start_matches(|c: char| c.is_ascii_digit()).chars().all(|c| "gib".contains(c));
        let known = KNOWN.iter().filter(|_| !is_size || plain.len() > 5);
        let known = known.filter(|(part, ..)| plain.contains(part)).max_by_key(|(part, ..)| part.len());
        let ((major, minor), multiprocessors) = match known {
            Some((_, capability, multiprocessors)) => (*capability, *multiprocessors),
            None if bytes >= LARGE => ((9, 0), 132),
            None => ((8, 9), 128),
        };
        let name = match is_size {
            true if bytes.is_multiple_of(GIB) => format!("a card of {} GiB", bytes / GIB),
            true => format!("a card of {}", HumanBytes(bytes)),
            false => card.name.clone(),
        };
        Self { name, bytes, major, minor, multiprocessors, card }
    }

    /// Whether it is more than a size.
    pub(super) fn is_named(&self) -> bool {
        self.name == self.card.name
    }

    /// As the preloaded library reads it (`crates/card/src/card.rs`), which this command cannot link.
    pub(super) fn as_variable(&self, count: u32) -> String {
        let Self { name, bytes, major, minor, multiprocessors, .. } = self;
        format!("{}|{bytes}|{major}|{minor}|{multiprocessors}|{count}", name.replace('|', " "))
    }
}

impl FromStr for CardFacts {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        text.parse().map(Self::of)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_card_is_known_by_its_name_or_its_size() {
        let facts = |text: &str| {
            let CardFacts { bytes, major, minor, .. } = text.parse().unwrap();
            (bytes.div_ceil(1 << 30), major, minor)
        };
        assert_eq!(facts("RTX 4090"), (24, 8, 9));
        assert_eq!(facts("A100-40"), (39, 8, 0));
        assert_eq!(facts("H100"), (80, 9, 0));
        assert_eq!(facts("V100-32"), (31, 7, 0));
        assert_eq!(facts("L40S"), (45, 8, 9));
        assert_eq!(facts("24GiB"), (24, 8, 9));
        assert_eq!(facts("80"), (80, 9, 0));
        assert_eq!("24GiB".parse::<CardFacts>().unwrap().name, "a card of 24 GiB");
        assert!("Voodoo".parse::<CardFacts>().unwrap_err().contains("no card"));
    }

    #[test]
    fn the_library_is_told_one_line() {
        let card: CardFacts = "A100-80".parse().unwrap();
        assert_eq!(card.as_variable(2), "A100-80|85094039552|8|0|108|2");
    }
}
