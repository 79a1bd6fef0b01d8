//! What programs call answers one error, which says what to do.

use millpond::device::{DeviceError, StreamHandle};
use millpond::{Buffer, Context, Error, Place, Pool, Result, Workspace};

use crate::shared::{Freeing, MIB, sim};

/// Each call of a program that may fail, with one `?`.
fn everything() -> Result<()> {
    let context = Context::host()?;
    let pool = Pool::builder(&context).hard_limit(64 << 20).build()?;
    let (stream, other) = (pool.create_stream()?, context.create_stream()?);
    context.default_stream()?;
    context.per_thread_stream()?;
    // SAFETY: every device has the default stream.
    unsafe {
        (context.foreign_stream(StreamHandle::LEGACY)?, context.stream_from_raw(StreamHandle::LEGACY)?)
    };
    let event = stream.record()?;
    other.wait(&event)?;
    other.wait_for(&stream)?;
    event.synchronize()?;
    assert!(event.query()? && stream.is_idle()?);
    stream.handle_here()?;
    let _buffer = Buffer::<f32>::zeroed(&pool, 100, &stream)?;
    let _scratch = Workspace::new(&pool, 100, &stream)?;
    assert_eq!(pool.memory_info()?.total, context.memory_info()?.total);
    stream.synchronize()?;
    context.synchronize()?;
    pool.check()
}

#[test]
fn one_question_mark_takes_every_call_of_a_program() {
    everything().unwrap();
    let boxed = || -> std::result::Result<(), Box<dyn std::error::Error + Send + Sync>> { Ok(everything()?) };
    boxed().unwrap();
}

#[test]
fn a_main_that_fails_prints_the_advice() {
    let (_sim, context, stream) = sim(64 * MIB);
    let pool = Pool::builder(&context).name("small").hard_limit(MIB * 2).build().unwrap();
    let main = || -> Result<()> { Buffer::<u8>::new(&pool, 8 << 20, &stream).map(drop) };
    let error = main().unwrap_err();
    // As the standard library prints it.
    let printed = format!("Error: {error:?}");
    assert_eq!(printed, format!("Error: {error}"));
    let Error::OutOfMemory(report) = error else { panic!("{printed}") };
    assert!(printed.contains(&report.advice()), "{printed}");
    // SAFETY: refused.
    let plain = unsafe { context.prefetch_slice(&[1_u8; 4], Place::Device, &stream) }.unwrap_err();
    assert!(matches!(plain, Error::Device(DeviceError::Unsupported { .. })));
    assert!(format!("{plain:?}").contains("use a pool of Context::managed"), "{plain:?}");
}

#[test]
fn a_pool_that_is_well_checks_with_a_question_mark() {
    let (_sim, context, stream) = sim(64 * MIB);
    let pool = Pool::builder(&context).build().unwrap();
    let block = pool.alloc(MIB, &stream).unwrap();
    let check = || -> Result<u64> {
        pool.check()?;
        Ok(pool.stats().blocks.current)
    };
    assert_eq!(check(), Ok(1));
    pool.free_block(block, &stream).unwrap();
    assert_eq!(check(), Ok(0));
}
