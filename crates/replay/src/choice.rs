//! Which allocators are replayed, with which options.

use millpond::{Context, Pool};
use millpond_baselines::{Allocator, Caching, CachingOptions, ChoiceError, MILLPOND};

use crate::trace::Trace;

/// What the allocators are built with, beyond their names. By default as by
/// [`by_name`](millpond_baselines::by_name).
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Choice {
    /// The pool's smallest and largest page, in bytes.
    pub page_sizes: Option<(u64, u64)>,
    /// Options of PyTorch's allocator, for `caching` and, with expandable segments, for `expandable`.
    pub pytorch: Option<CachingOptions>,
}

/// The allocator that ran when a trace was recorded, as far as it is known; nothing for a trace that does not say.
pub fn ran(trace: &Trace) -> &'static str {
    match trace.is_pytorchs {
        true if trace.settings.contains("expandable_segments:True") => Caching::EXPANDABLE,
        true => Caching::NAME,
        false => "",
    }
}

impl Choice {
    /// Builds the allocator of this name over a context's device.
    ///
    /// # Errors
    /// As for [`by_name`](millpond_baselines::by_name), and for options that the allocator refuses.
    pub fn build(&self, name: &str, context: &Context) -> Result<Box<dyn Allocator>, ChoiceError> {
        match (name, self.page_sizes, &self.pytorch) {
            (MILLPOND, Some((smallest, largest)), _) => {
                Ok(Box::new(Pool::builder(context).name(name).page_sizes(smallest, largest).build()?))
            }
            (Caching::NAME | Caching::EXPANDABLE, _, Some(options)) => {
                let expandable_segments = name == Caching::EXPANDABLE;
                let options = CachingOptions { expandable_segments, ..options.clone() };
                Ok(Box::new(Caching::with_options(context, options)?))
            }
            _ => millpond_baselines::by_name(name, context),
        }
    }
}

#[cfg(test)]
mod tests {
    use millpond::device::sim::{SimDevice, SimOptions};

    use super::*;

    #[test]
    fn options_reach_their_allocators_and_wrong_ones_are_named() {
        let context = Context::new(SimDevice::new(SimOptions::default()).unwrap());
        let pytorch = "roundup_power2_divisions:1".parse().unwrap();
        let choice = Choice { page_sizes: Some((2 << 20, 64 << 20)), pytorch: Some(pytorch) };
        for (name, reserved) in [("millpond", 34 << 20), ("caching", 64 << 20), ("expandable", 80 << 20)] {
            let allocator = choice.build(name, &context).unwrap();
            assert_eq!(allocator.name(), name);
            let stream = context.create_stream().unwrap();
            let ptr = allocator.allocate(33 << 20, &stream).unwrap();
            assert!(allocator.usage().reserved.current <= reserved, "{name}: {:?}", allocator.usage());
            // SAFETY: nobody else has the block, and there is no work on it.
            unsafe { allocator.free(ptr, &stream) }.unwrap();
        }
        let wrong = Choice { page_sizes: Some((3, 5)), pytorch: None };
        assert!(wrong.build("millpond", &context).unwrap_err().to_string().contains("page_sizes"));
    }
}
