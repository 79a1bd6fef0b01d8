//! Batches go to the device, through a kernel, and back, with and without overlap. Each lane is a stream with buffers of its
//! own: while one lane computes, another uploads, and a third downloads. The host waits only for the lane that it needs.
//!
//! `cargo run --release -p millpond --example pipeline` runs it on the first GPU, or on the CPU as a device.

use std::time::{Duration, Instant};

use millpond::device::host::HostDevice;
use millpond::{Buffer, Context, Pool, Stream};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

/// Applies [`step`] so many times to each element, in stream order.
type Kernel = Box<dyn Fn(&mut Buffer<u32>, u32) -> Result<()>>;

/// A stream, and how a kernel is launched there.
struct Lane {
    stream: Stream,
    kernel: Kernel,
}

struct Machine {
    context: Context,
    lanes: Vec<Lane>,
    /// Elements of a batch, and batches.
    size: (usize, usize),
}

/// The buffers of a lane.
struct Slot<'a> {
    lane: &'a Lane,
    staging: Buffer<u32>,
    on_device: Buffer<u32>,
    results: Buffer<u32>,
    /// The batch whose results are on the way.
    batch: Option<usize>,
}

/// The host writes and checks one element of so many, so that it does not take longer than the device.
const STRIDE: usize = 4096;

fn main() -> Result<()> {
    let machine = gpu().or_else(|_| cpu())?;
    let rounds = rounds_as_long_as_a_copy(&machine)?;
    run(&machine, 3, rounds)?; // takes the memory
    let (one, three) = (run(&machine, 1, rounds)?, run(&machine, 3, rounds)?);
    let (elements, batches) = machine.size;
    println!(
        "{batches} batches of {} MiB on {}",
        elements / (1 << 18),
        machine.context.device().properties().name
    );
    println!("one after the other  {one:>9.2?}");
    println!(
        "overlapped           {three:>9.2?}  {:.2} times as fast",
        one.as_secs_f64() / three.as_secs_f64()
    );
    Ok(())
}

fn run(machine: &Machine, lanes: usize, rounds: u32) -> Result<Duration> {
    let Machine { context, size: (elements, batches), .. } = machine;
    let (pool, pinned) = (Pool::builder(context).build()?, context.pinned()?.build()?);
    let slots = machine.lanes.iter().take(lanes).map(|lane| Slot::new(lane, &pool, &pinned, *elements));
    let mut slots: Vec<Slot<'_>> = slots.collect::<Result<_>>()?;
    context.synchronize()?;
    let began = Instant::now();
    for batch in 0..*batches {
        let slot = &mut slots[batch % lanes];
        slot.check(rounds)?;
        slot.start(batch, rounds)?;
    }
    slots.iter_mut().try_for_each(|slot| slot.check(rounds))?;
    Ok(began.elapsed())
}

impl<'a> Slot<'a> {
    fn new(lane: &'a Lane, pool: &Pool, pinned: &Pool, elements: usize) -> Result<Self> {
        Ok(Self {
            staging: Buffer::zeroed(pinned, elements, &lane.stream)?,
            on_device: Buffer::zeroed(pool, elements, &lane.stream)?,
            results: Buffer::zeroed(pinned, elements, &lane.stream)?,
            lane,
            batch: None,
        })
    }

    /// Upload, compute and download: none of them waits on the host.
    fn start(&mut self, batch: usize, rounds: u32) -> Result<()> {
        let staging = self.staging.as_mut_slice()?;
        staging.iter_mut().step_by(STRIDE).for_each(|element| *element = batch as u32);
        self.on_device.copy_from_pinned(&self.staging)?;
        (self.lane.kernel)(&mut self.on_device, rounds)?;
        self.on_device.copy_to_pinned(&mut self.results)?;
        self.batch = Some(batch);
        Ok(())
    }

    /// Waits for the lane, and looks at what came back.
    fn check(&mut self, rounds: u32) -> Result<()> {
        let Some(batch) = self.batch.take() else { return Ok(()) };
        let expected = (0..rounds).fold(batch as u32, |element, _| step(element));
        let is_right = self.results.as_slice()?.iter().step_by(STRIDE).all(|element| *element == expected);
        if is_right { Ok(()) } else { Err(format!("batch {batch} came back with other bytes").into()) }
    }
}

/// Where copy and kernel take equally long, overlap gains most.
fn rounds_as_long_as_a_copy(machine: &Machine) -> Result<u32> {
    const TRIED: u32 = 64;
    let (pool, pinned) = (Pool::builder(&machine.context).build()?, machine.context.pinned()?.build()?);
    let mut slot = Slot::new(&machine.lanes[0], &pool, &pinned, machine.size.0)?;
    let mut copy = Duration::MAX;
    let mut kernel = Duration::MAX;
    for _ in 0..3 {
        slot.lane.stream.synchronize()?;
        let began = Instant::now();
        slot.on_device.copy_from_pinned(&slot.staging)?;
        slot.lane.stream.synchronize()?;
        copy = copy.min(began.elapsed());
        let began = Instant::now();
        (slot.lane.kernel)(&mut slot.on_device, TRIED)?;
        slot.lane.stream.synchronize()?;
        kernel = kernel.min(began.elapsed());
    }
    let rounds = f64::from(TRIED) * copy.as_secs_f64() / kernel.as_secs_f64();
    Ok(rounds.clamp(1.0, 1e6) as u32)
}

/// Knuth's generator, without its upper half.
fn step(element: u32) -> u32 {
    element.wrapping_mul(1_664_525).wrapping_add(1_013_904_223)
}

const LANES: usize = 3;

/// The CPU as a device: kernels are closures.
fn cpu() -> Result<Machine> {
    let device = HostDevice::new()?;
    let context = Context::new(device.clone());
    let lane = || {
        let (stream, device) = (context.create_stream()?, device.clone());
        let on = stream.clone();
        let kernel = move |buffer: &mut Buffer<u32>, rounds| {
            let (at, len) = (buffer.ptr().raw() as usize, buffer.len());
            // SAFETY: the buffer lives until the stream is done, which nothing else gives work on it.
            let work = move || unsafe {
                let elements = std::slice::from_raw_parts_mut(std::ptr::with_exposed_provenance_mut(at), len);
                elements.iter_mut().for_each(|element| *element = (0..rounds).fold(*element, |e, _| step(e)));
            };
            Ok(device.launch(on.handle_here()?, work)?)
        };
        Ok(Lane { stream, kernel: Box::new(kernel) })
    };
    let lanes = (0..LANES).map(|_| lane()).collect::<Result<_>>()?;
    Ok(Machine { context, lanes, size: (1 << 18, 24) })
}

#[cfg(not(feature = "cudarc"))]
fn gpu() -> Result<Machine> {
    Err("built without the feature cudarc".into())
}

/// The first GPU. The kernel is written in PTX, so that no toolkit is needed.
#[cfg(feature = "cudarc")]
fn gpu() -> Result<Machine> {
    use cudarc::driver::{CudaContext, LaunchConfig, PushKernelArg};

    // Before cudarc, which panics where there is no driver.
    millpond::device::cuda::CudaDevice::new(0)?;
    let cuda = CudaContext::new(0)?;
    let function = cuda.load_module(cudarc::nvrtc::Ptx::from_src(STEPS))?.load_function("steps")?;
    let context = Context::from_cudarc(&cuda)?;
    let lane = || {
        let on = cuda.new_stream()?;
        let stream = millpond::cudarc::Stream::new(&context, &on)?.millpond().clone();
        let function = function.clone();
        let kernel = move |buffer: &mut Buffer<u32>, rounds| {
            let (at, count) = (buffer.ptr().raw(), buffer.len() as u32);
            let mut launch = on.launch_builder(&function);
            // SAFETY: these are the kernel's parameters, and it stays within `count`.
            unsafe { launch.arg(&at).arg(&count).arg(&rounds).launch(LaunchConfig::for_num_elems(count)) }?;
            Ok(())
        };
        Ok(Lane { stream, kernel: Box::new(kernel) })
    };
    let lanes = (0..LANES).map(|_| lane()).collect::<Result<_>>()?;
    Ok(Machine { context, lanes, size: (16 << 20, 64) })
}

/// `step`, so many times, for each element.
#[cfg(feature = "cudarc")]
const STEPS: &str = "
.version 7.0
.target sm_52
.address_size 64
.visible .entry steps(.param .u64 data, .param .u32 count, .param .u32 rounds)
{
    .reg .pred %p<3>;
    .reg .b32 %r<8>;
    .reg .b64 %d<4>;
    ld.param.u64 %d1, [data];
    ld.param.u32 %r1, [count];
    ld.param.u32 %r2, [rounds];
    mov.u32 %r3, %ctaid.x;
    mov.u32 %r4, %ntid.x;
    mov.u32 %r5, %tid.x;
    mad.lo.s32 %r6, %r3, %r4, %r5;
    setp.ge.u32 %p1, %r6, %r1;
    @%p1 bra DONE;
    cvta.to.global.u64 %d1, %d1;
    mul.wide.u32 %d2, %r6, 4;
    add.s64 %d3, %d1, %d2;
    ld.global.u32 %r7, [%d3];
LOOP:
    setp.eq.u32 %p2, %r2, 0;
    @%p2 bra STORE;
    mad.lo.u32 %r7, %r7, 1664525, 1013904223;
    sub.u32 %r2, %r2, 1;
    bra LOOP;
STORE:
    st.global.u32 [%d3], %r7;
DONE:
    ret;
}
";
