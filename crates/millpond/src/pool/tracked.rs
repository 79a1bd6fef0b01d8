//! Who holds the memory of a pool.

use super::Pool;
use crate::core::recorded;
use crate::{Result, record};

impl Pool {
    /// Tracks who holds memory from now on: the call stack, tag and time of blocks, sampled or all. What was tracked before is
    /// forgotten. [`record::Tracking`] has an example.
    ///
    /// # Errors
    /// In a forked child only.
    pub fn start_tracking(&self, tracking: record::Tracking) -> Result<()> {
        recorded::start_tracking(self.inner(), &tracking)
    }

    /// Ends tracking, and forgets what was tracked. It does nothing where nothing is.
    ///
    /// # Errors
    /// In a forked child only.
    pub fn stop_tracking(&self) -> Result<()> {
        recorded::stop_tracking(self.inner())
    }

    /// Every live block. Where the pool [tracks](record::Tracking) it, with who allocated it, and when. Calls that other
    /// threads make at the same time may be missing. [`record::holders`] sums the blocks up.
    ///
    /// ```
    /// use millpond::{Buffer, Context, Pool, record};
    ///
    /// let device = Context::host()?;
    /// let pool = Pool::builder(&device).track(record::Tracking::all()).build()?;
    /// let stream = device.create_stream()?;
    /// let buffer = Buffer::<f32>::new(&pool, 1000, &stream)?;
    /// for block in pool.live_blocks()? {
    ///     assert_eq!((block.ptr, block.bytes), (buffer.ptr(), 4000));
    ///     let tracked = block.tracked.expect("every block is tracked");
    ///     println!("{:?} old, from {}", tracked.age, tracked.stack()[0]); // or tracked.tag()
    /// }
    /// # Ok::<(), millpond::Error>(())
    /// ```
    ///
    /// # Errors
    /// In a forked child only.
    pub fn live_blocks(&self) -> Result<Vec<record::LiveBlock>> {
        recorded::live_blocks(self.inner())
    }
}
