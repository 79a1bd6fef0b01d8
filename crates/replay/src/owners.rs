//! Whose blocks are counted together: those of one call site under one tag. Where no call stack was recorded, those under
//! one tag; where there is no tag either, those of like sizes.

use millpond::HumanBytes;
use rustc_hash::{FxHashMap, FxHashSet};

use crate::event::StackId;
use crate::sites::{Place, WAITING, joined, places, tag, without_stack};
use crate::trace::Trace;

/// Whose blocks they are.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Owner {
    /// The tags, outermost first, with `/` between.
    pub(crate) tag: Option<String>,
    pub(crate) who: Who,
}

/// What is known of an owner beside its tag.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Who {
    /// The call site's functions, innermost first.
    Site(Vec<Place>),
    /// Other blocks have call stacks, or this one has a tag.
    NoStack {
        /// Whether the block was live before the recording began.
        before: bool,
    },
    /// The recording has neither call stacks nor tags: the power of two that the blocks' sizes are not below; `None` for
    /// blocks of no bytes.
    Size(Option<u64>),
    /// The program has freed them, and they wait for other streams.
    Waiting,
}

impl Owner {
    /// The call site, as a [`Site`](crate::sites::Site) has it.
    pub(crate) fn site(&self) -> Option<String> {
        match &self.who {
            Who::Site(places) => Some(joined(places)),
            Who::NoStack { before } if self.tag.is_none() => Some(without_stack(*before).to_owned()),
            Who::Waiting => Some(WAITING.to_owned()),
            Who::NoStack { .. } | Who::Size(_) => None,
        }
    }

    /// The power of two of its blocks' sizes, where nothing else is known.
    pub(crate) fn size(&self) -> Option<u64> {
        match self.who {
            Who::Size(size) => size,
            _ => None,
        }
    }

    /// Tag and call site in one line.
    pub(crate) fn name(&self) -> String {
        named(self.tag.as_deref(), self.site().as_deref(), self.size())
    }
}

/// An owner in one line, by tag, call site and size as far as they are known.
pub(crate) fn named(tag: Option<&str>, site: Option<&str>, size: Option<u64>) -> String {
    match (tag, site, size) {
        (Some(tag), Some(site), _) => format!("{tag}: {site}"),
        (Some(only), None, _) | (None, Some(only), _) => only.to_owned(),
        (None, None, Some(from)) => {
            format!("blocks of {} to {}", HumanBytes(from), HumanBytes(from.saturating_mul(2)))
        }
        (None, None, None) => "blocks of 0 B".to_owned(),
    }
}

/// All owners of a trace, and the number of each block's.
#[derive(Debug)]
pub(crate) struct Owners {
    pub(crate) all: Vec<Owner>,
    pub(crate) of_block: Vec<u32>,
}

impl Owners {
    pub(crate) fn of(trace: &Trace) -> Self {
        let before: FxHashSet<u32> = trace.live_before.iter().copied().collect();
        let mut all: Vec<Owner> = Vec::new();
        let mut numbers: FxHashMap<Owner, u32> = FxHashMap::default();
        let mut number = |owner: Owner| {
            *numbers.entry(owner).or_insert_with_key(|owner| {
                all.push(owner.clone());
                all.len() as u32 - 1
            })
        };
        let mut of_stack: FxHashMap<(StackId, bool), u32> = FxHashMap::default();
        let blocks = (0u32..).zip(&trace.blocks).map(|(at, block)| {
            if trace.stacks.is_empty() {
                let who = Who::Size(block.size.checked_ilog2().map(|power| 1 << power));
                return number(Owner { tag: None, who });
            }
            let before = before.contains(&at);
            *of_stack.entry((block.stack, before)).or_insert_with(|| {
                let places = places(trace, block.stack);
                let who = if places.is_empty() { Who::NoStack { before } } else { Who::Site(places) };
                number(Owner { tag: tag(trace, block.stack), who })
            })
        });
        let of_block = blocks.collect();
        Self { all, of_block }
    }
}
