//! What the unit tests share: a pool on the simulated device, and freeing of blocks that are their own.

#[cfg(not(miri))]
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

use crate::device::DevicePtr;
use crate::device::sim::{SimDevice, SimOptions};
use crate::error::Result;
use crate::order::Stream;
use crate::pool::{Context, Pool, PoolBuilder};
#[cfg(not(miri))]
use crate::system::lock::{RwLock, RwLockReadGuard};

pub(crate) const MIB: u64 = 1 << 20;

/// A simulated device with the usual options, a pool on it, and a stream.
pub(crate) struct Bench {
    pub(crate) sim: Arc<SimDevice>,
    pub(crate) context: Context,
    pub(crate) pool: Pool,
    pub(crate) stream: Stream,
}

impl Bench {
    pub(crate) fn new(options: impl FnOnce(PoolBuilder) -> PoolBuilder) -> Self {
        let sim = SimDevice::new(SimOptions::default()).unwrap();
        let context = Context::new(sim.clone());
        let stream = context.create_stream().unwrap();
        let pool = options(Pool::builder(&context)).build().unwrap();
        Self { sim, context, pool, stream }
    }
}

/// [`Pool::free`] and [`Context::free`] for blocks that nobody but the test has, and for pointers that are refused.
pub(crate) trait Freeing {
    /// Frees the block.
    fn free_block(&self, ptr: DevicePtr, stream: &Stream) -> Result<()>;
}

impl Freeing for Pool {
    fn free_block(&self, ptr: DevicePtr, stream: &Stream) -> Result<()> {
        // SAFETY: the tests free what they allocated themselves, and give it no work. What is no live block is refused.
        unsafe { self.free(ptr, stream) }
    }
}

impl Freeing for Context {
    fn free_block(&self, ptr: DevicePtr, stream: &Stream) -> Result<()> {
        // SAFETY: as above.
        unsafe { self.free(ptr, stream) }
    }
}

/// For writing while a process begins.
#[cfg(not(miri))]
static BEGINS: RwLock<()> = RwLock::new(());

/// Starts a program. Until it runs, the new process has all descriptors of this one, those that other tests close too.
#[cfg(not(miri))]
pub(crate) fn begin(program: &mut Command) -> Child {
    let _alone = BEGINS.write();
    program.spawn().unwrap()
}

/// As long as it lives, no test [begins](begin) a process: for those that judge who has a descriptor.
#[cfg(not(miri))]
pub(crate) fn nobody_begins() -> RwLockReadGuard<'static, ()> {
    BEGINS.read()
}

/// Runs a test that forks in a process of its own. A child would hold what other tests have open. The name is the whole one.
#[cfg(not(miri))]
pub(crate) fn alone(name: &str, test: impl FnOnce()) {
    const TEST: &str = "MILLPOND_TEST_ALONE";
    if std::env::var(TEST).is_ok_and(|asked| asked == name) {
        return test();
    }
    let mut program = Command::new(std::env::current_exe().unwrap());
    program.args([name, "--exact", "--test-threads=1"]).env(TEST, name);
    let output = begin(program.stdout(Stdio::piped()).stderr(Stdio::piped())).wait_with_output().unwrap();
    let out = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && out.contains("1 passed"), "{out}");
}
