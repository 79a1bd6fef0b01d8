//! Tags: a part of a pool's memory that sleeps on its own, as a pool under the same limits.

use std::fmt;

use super::{Pool, PoolBuilder};
use crate::lock::Mutex;
use crate::process::OfProcess;
use crate::{Error, Result};

/// The pools of a pool's tags.
pub(super) struct Tags {
    /// What the pool was built with; `None` for one that is destroyed from the start.
    options: Option<PoolBuilder>,
    pools: OfProcess<Mutex<Vec<(String, Pool)>>>,
}

impl fmt::Debug for Tags {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tags").field("options", &self.options).finish_non_exhaustive()
    }
}

impl Tags {
    pub(super) fn new(options: Option<PoolBuilder>) -> Self {
        Self { options, pools: OfProcess::default() }
    }
}

impl Pool {
    /// The part of the pool for a tag, to be put to [sleep](Self::sleep) on its own. It is a pool with the same options, made
    /// when the tag is first named. The hard limit holds for all of them together. No page has memory of two tags.
    ///
    /// It lives as long as this pool. Its name has the tag behind a slash. Its statistics and callbacks are its own.
    ///
    /// ```
    /// use millpond::{Buffer, Context, Keep, Pool};
    ///
    /// let device = Context::host()?;
    /// let pool = Pool::builder(&device).name("engine").hard_limit(64 << 20).build()?;
    /// let stream = device.create_stream()?;
    /// let weights = Buffer::from_slice(&pool.tagged("weights")?, &[1.0_f32; 1000], &stream)?;
    /// let cache = Buffer::<f32>::new(&pool.tagged("cache")?, 1000, &stream)?;
    /// pool.tagged("weights")?.sleep(Keep::InPinnedMemory)?;
    /// pool.tagged("cache")?.sleep(Keep::Nothing)?;
    /// // … others use the memory. What is in `pool` itself stays …
    /// pool.wake()?; // with all its tags
    /// assert_eq!(weights.to_vec()?, [1.0; 1000]);
    /// # drop(cache);
    /// # Ok::<(), millpond::Error>(())
    /// ```
    ///
    /// # Errors
    /// Those of [`PoolBuilder::build`], and [`Error::PoolDestroyed`](crate::Error::PoolDestroyed).
    pub fn tagged(&self, tag: &str) -> Result<Self> {
        self.inner().check_process()?;
        let Tags { options, pools } = &self.handle.tags;
        let mut pools = pools.lock();
        if let Some((_, known)) = pools.iter().find(|(name, _)| name == tag) {
            return Ok(known.clone());
        }
        self.inner().check_not_destroyed()?;
        let Some(options) = options.clone() else {
            return Err(Error::PoolDestroyed { pool: self.name().to_owned() });
        };
        let hard_limit = self.inner().limits.hard_limit.clone();
        let name = format!("{}/{tag}", self.name());
        let new = options.name(name).build_under(Some(hard_limit))?;
        pools.push((tag.to_owned(), new.clone()));
        Ok(new)
    }

    /// The tags that were named so far, in that order.
    pub fn tags(&self) -> Vec<String> {
        if !self.inner().is_here() {
            return Vec::new();
        }
        self.handle.tags.pools.lock().iter().map(|(tag, _)| tag.clone()).collect()
    }

    /// The pools of all tags.
    pub(super) fn of_tags(&self) -> Vec<Self> {
        if !self.inner().is_here() {
            return Vec::new();
        }
        self.handle.tags.pools.lock().iter().map(|(_, pool)| pool.clone()).collect()
    }
}
