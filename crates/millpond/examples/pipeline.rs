//! Batches go to the device, through a kernel, and back, with and without overlap. Each lane is a stream with buffers of its
//! own: while one lane computes, another uploads, and a third downloads. The host waits only for the lane that it needs.
//!
//! `cargo run --release -p millpond --example pipeline` runs it on the first GPU, or on the CPU as a device. It checks every
//! element of every batch, compares the times, and prints what each lane did when.

use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use millpond::device::host::HostDevice;
use millpond::{Buffer, Context, Pool, Stream};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

/// Applies [`step`] so many times to each element, in stream order.
type Kernel = Box<dyn Fn(&mut Buffer<u32>, u32) -> Result<()>>;

/// Runs a function of the CPU in stream order.
type HostFunction = Box<dyn Fn(Box<dyn FnOnce() + Send>) -> Result<()>>;

/// A stream, and how a kernel and a function are launched there.
struct Lane {
    stream: Stream,
    kernel: Kernel,
    host_function: HostFunction,
}

struct Machine {
    context: Context,
    lanes: Vec<Lane>,
    /// Elements of a batch, and batches.
    size: (usize, usize),
}

/// How often batches go through.
#[derive(Clone, Copy)]
struct Work {
    lanes: usize,
    batches: usize,
    kernel: Steps,
    /// The host writes and checks one element of so many.
    every: usize,
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

/// Few enough that the host does not take longer than the device.
const FEW: usize = 4096;

fn main() -> Result<()> {
    let machine = gpu().or_else(|_| cpu())?;
    let kernel = Steps::new(rounds_as_long_as_a_copy(&machine)?);
    let (elements, batches) = machine.size;
    let overlapped = Work { lanes: LANES, batches, kernel, every: FEW };
    let one_by_one = Work { lanes: 1, ..overlapped };
    let name = &machine.context.device().properties().name;
    run(&machine, Work { every: 1, ..overlapped }, None)?;
    println!(
        "{batches} batches of {} MiB on {name}: every element came back right",
        elements >> 18 // of 4 bytes
    );
    let (one, three) = (run(&machine, one_by_one, None)?, run(&machine, overlapped, None)?);
    println!("one after the other  {one:>9.2?}");
    println!(
        "overlapped           {three:>9.2?}  {:.2} times as fast",
        one.as_secs_f64() / three.as_secs_f64()
    );
    println!("\n{SHOWN} batches over time: u uploads, k runs the kernel, d downloads");
    let timelines = [one_by_one, overlapped].map(|work| {
        let mut timeline = Timeline::default();
        run(&machine, Work { batches: SHOWN, ..work }, Some(&mut timeline))?;
        Ok::<_, Box<dyn std::error::Error>>((work.lanes, timeline.phases()))
    });
    let timelines = timelines.into_iter().collect::<Result<Vec<_>>>()?;
    let took = timelines.iter().map(|(_, phases)| duration_of(phases)).max().unwrap_or_default();
    timelines.iter().for_each(|(lanes, phases)| print_rows(*lanes, phases, took));
    Ok(())
}

fn run(machine: &Machine, work: Work, mut timeline: Option<&mut Timeline>) -> Result<Duration> {
    let Machine { context, size: (elements, _), .. } = machine;
    let (pool, pinned) = (Pool::builder(context).build()?, context.pinned()?.build()?);
    let lanes = machine.lanes.iter().take(work.lanes);
    let mut slots: Vec<Slot<'_>> =
        lanes.map(|lane| Slot::new(lane, &pool, &pinned, *elements)).collect::<Result<_>>()?;
    context.synchronize()?;
    let began = Instant::now();
    for batch in 0..work.batches {
        let slot = &mut slots[batch % work.lanes];
        slot.check(&work)?;
        slot.start(batch, &work, timeline.as_deref_mut())?;
    }
    slots.iter_mut().try_for_each(|slot| slot.check(&work))?;
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
    fn start(&mut self, batch: usize, work: &Work, mut timeline: Option<&mut Timeline>) -> Result<()> {
        let staging = self.staging.as_mut_slice()?.iter_mut().enumerate();
        staging.step_by(work.every).for_each(|(at, element)| *element = input(batch, at));
        let mut stamp = || match &mut timeline {
            Some(timeline) => timeline.stamp(batch, self.lane),
            None => Ok(()),
        };
        stamp()?;
        self.on_device.copy_from_pinned(&self.staging)?;
        stamp()?;
        (self.lane.kernel)(&mut self.on_device, work.kernel.rounds)?;
        stamp()?;
        self.on_device.copy_to_pinned(&mut self.results)?;
        stamp()?;
        self.batch = Some(batch);
        Ok(())
    }

    /// Waits for the lane, and looks at what came back.
    fn check(&mut self, work: &Work) -> Result<()> {
        let Some(batch) = self.batch.take() else { return Ok(()) };
        let mut results = self.results.as_slice()?.iter().enumerate().step_by(work.every);
        let is_right = results.all(|(at, result)| *result == work.kernel.of(input(batch, at)));
        if is_right { Ok(()) } else { Err(format!("batch {batch} came back with other bytes").into()) }
    }
}

/// No two batches are the same, nor two elements of one.
fn input(batch: usize, at: usize) -> u32 {
    (batch as u32).wrapping_mul(0x9e37_79b9).wrapping_add(at as u32)
}

/// [`step`] so many times: a product and a sum, as each step is.
#[derive(Clone, Copy)]
struct Steps {
    rounds: u32,
    factor: u32,
    sum: u32,
}

impl Steps {
    fn new(rounds: u32) -> Self {
        let of = |element| (0..rounds).fold(element, |element, _| step(element));
        Self { rounds, factor: of(1).wrapping_sub(of(0)), sum: of(0) }
    }

    fn of(self, element: u32) -> u32 {
        element.wrapping_mul(self.factor).wrapping_add(self.sum)
    }
}

/// When the work of each batch began and ended.
#[derive(Default)]
struct Timeline {
    /// The batch, and the moment at which its stream came there.
    stamps: Vec<(usize, Arc<OnceLock<Instant>>)>,
}

/// Batches of a timeline.
const SHOWN: usize = 9;
const COLUMNS: f64 = 72.0;

impl Timeline {
    fn stamp(&mut self, batch: usize, lane: &Lane) -> Result<()> {
        let stamp = Arc::new(OnceLock::new());
        self.stamps.push((batch, stamp.clone()));
        (lane.host_function)(Box::new(move || {
            stamp.get_or_init(Instant::now);
        }))
    }

    /// The moments of each batch, from the first one on: its beginning, and the end of each phase.
    fn phases(&self) -> Vec<(usize, Vec<Duration>)> {
        let times: Vec<(usize, Instant)> =
            self.stamps.iter().filter_map(|(batch, stamp)| Some((*batch, *stamp.get()?))).collect();
        let Some(first) = times.iter().map(|(_, time)| *time).min() else { return Vec::new() };
        let of_batch =
            |batch: &[(usize, Instant)]| (batch[0].0, batch.iter().map(|(_, time)| *time - first).collect());
        times.chunks_exact(4).map(of_batch).collect()
    }
}

fn duration_of(phases: &[(usize, Vec<Duration>)]) -> Duration {
    phases.iter().flat_map(|(_, times)| times).max().copied().unwrap_or_default()
}

/// A row for each lane, in which all columns are as long as `width`.
fn print_rows(lanes: usize, phases: &[(usize, Vec<Duration>)], width: Duration) {
    let column = |at: Duration| (at.as_secs_f64() / width.as_secs_f64() * COLUMNS).round() as usize;
    println!("\nin {:.2?}", duration_of(phases));
    for lane in 0..lanes {
        let mut row = vec![' '; column(duration_of(phases))];
        for (_, times) in phases.iter().filter(|(batch, _)| batch % lanes == lane) {
            for (phase, letter) in times.windows(2).zip(['u', 'k', 'd']) {
                row[column(phase[0])..column(phase[1])].fill(letter);
            }
        }
        println!("lane {}  {}", lane + 1, row.iter().collect::<String>().trim_end());
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
        let (on, same, beside) = (stream.clone(), stream.clone(), device.clone());
        let kernel = move |buffer: &mut Buffer<u32>, rounds| {
            let (at, len) = (buffer.ptr().raw() as usize, buffer.len());
            // SAFETY: the buffer lives until the stream is done, which nothing else gives work on it.
            let work = move || unsafe {
                let elements = std::slice::from_raw_parts_mut(std::ptr::with_exposed_provenance_mut(at), len);
                // Parts that fit in the CPU's cache.
                for part in elements.chunks_mut(4096) {
                    (0..rounds).for_each(|_| part.iter_mut().for_each(|element| *element = step(*element)));
                }
            };
            Ok(device.launch(on.handle_here()?, work)?)
        };
        let host_function =
            move |function: Box<dyn FnOnce() + Send>| Ok(beside.launch(same.handle_here()?, function)?);
        Ok(Lane { stream, kernel: Box::new(kernel), host_function: Box::new(host_function) })
    };
    let lanes = (0..LANES).map(|_| lane()).collect::<Result<_>>()?;
    Ok(Machine { context, lanes, size: (1 << 20, 18) })
}

#[cfg(not(feature = "cudarc"))]
fn gpu() -> Result<Machine> {
    Err("built without the feature cudarc".into())
}

/// The first GPU. The kernel is written in PTX, so that no toolkit is needed.
#[cfg(feature = "cudarc")]
fn gpu() -> Result<Machine> {
    use cudarc::driver::result::stream::launch_host_function;
    use cudarc::driver::{CudaContext, LaunchConfig, PushKernelArg};

    /// # Safety
    /// `function` is a box of the type below, and is given up here.
    unsafe extern "C" fn call(function: *mut std::ffi::c_void) {
        // SAFETY: as promised.
        let function = unsafe { Box::from_raw(function.cast::<Box<dyn FnOnce() + Send>>()) };
        function();
    }

    // Before cudarc, which panics where there is no driver.
    millpond::device::cuda::CudaDevice::new(0)?;
    let cuda = CudaContext::new(0)?;
    let function = cuda.load_module(cudarc::nvrtc::Ptx::from_src(STEPS))?.load_function("steps")?;
    let context = Context::from_cudarc(&cuda)?;
    let lane = || {
        let on = cuda.new_stream()?;
        let stream = millpond::cudarc::Stream::new(&context, &on)?.millpond().clone();
        let (function, same) = (function.clone(), on.clone());
        let host_function = move |function: Box<dyn FnOnce() + Send>| {
            let function = Box::into_raw(Box::new(function)).cast();
            // SAFETY: `call` takes the box back, once.
            Ok(unsafe { launch_host_function(same.cu_stream(), call, function) }?)
        };
        let kernel = move |buffer: &mut Buffer<u32>, rounds| {
            let (at, count) = (buffer.ptr().raw(), buffer.len() as u32);
            let mut launch = on.launch_builder(&function);
            // SAFETY: these are the kernel's parameters, and it stays within `count`.
            unsafe { launch.arg(&at).arg(&count).arg(&rounds).launch(LaunchConfig::for_num_elems(count)) }?;
            Ok(())
        };
        Ok(Lane { stream, kernel: Box::new(kernel), host_function: Box::new(host_function) })
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
