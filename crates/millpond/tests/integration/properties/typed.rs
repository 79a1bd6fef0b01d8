//! Random programs over typed buffers, on a host device whose streams are held back: whatever is copied, moved between streams and
//! threads, resized, freed, evicted and put to sleep, each buffer holds the bytes that the program gave it last.

use std::sync::mpsc::{Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use millpond::device::host::{HostDevice, HostOptions};
use millpond::{Buffer, Context, Error, Event, Keep, Pool, Result, Stream, Workspace};

use super::typed_steps::{POOLS, STREAMS, Step, TAG};

/// Little enough that programs run out of it.
const CAPACITY: u64 = 64 << 20;

type Numbers = Buffer<u32>;

struct Block {
    buffer: Numbers,
    pool: usize,
    expected: Vec<u32>,
    /// On its stream, from some time.
    event: Option<Event>,
}

/// A thread that does what it is told on its own default stream, and waits for more.
struct Worker {
    tasks: Sender<Task>,
    thread: JoinHandle<()>,
}

type Task = Box<dyn FnOnce(&Stream) + Send>;

impl Worker {
    fn new(context: Context) -> Self {
        let (tasks, told) = channel::<Task>();
        let work = move || {
            let own = context.per_thread_stream().unwrap();
            told.into_iter().for_each(|task| task(&own));
        };
        Self { tasks, thread: thread::spawn(work) }
    }

    fn run<R: Send + 'static>(&self, task: impl FnOnce(&Stream) -> R + Send + 'static) -> R {
        let (done, is_done) = channel();
        self.tasks.send(Box::new(move |own| done.send(task(own)).unwrap())).unwrap();
        is_done.recv().unwrap()
    }
}

/// See the [module](self).
pub(crate) struct World {
    context: Context,
    pools: [Pool; POOLS],
    streams: Vec<Stream>,
    workspaces: Vec<Workspace>,
    blocks: Vec<Block>,
    worker: Worker,
    lent: Vec<Block>,
    events: Vec<Event>,
    turn: u32,
}

/// The elements that a part names, of so many.
fn range((from, to): (u8, u8), len: usize) -> std::ops::Range<usize> {
    let [from, to] = [from, to].map(|at| at as usize * len / 255);
    from.min(to)..from.max(to)
}

impl World {
    pub(crate) fn new(zeroes: bool) -> Self {
        let device = HostDevice::with_options(HostOptions::default().capacity(CAPACITY)).unwrap();
        let context = Context::new(device);
        let pool = Pool::builder(&context).zeroed(zeroes).build().unwrap();
        let [pinned, managed] = [context.pinned(), context.managed()]
            .map(|builder| builder.unwrap().zeroed(zeroes).build().unwrap());
        let pools = [pool.clone(), pool.tagged("tag").unwrap(), pinned, managed];
        let streams: Vec<_> = (0..STREAMS).map(|_| context.create_stream().unwrap()).collect();
        let workspace = |stream| Workspace::new(&pool, 1 << 20, stream).unwrap();
        let workspaces = streams.iter().map(workspace).collect();
        let (blocks, lent, events, worker) =
            (Vec::new(), Vec::new(), Vec::new(), Worker::new(context.clone()));
        Self { context, pools, streams, workspaces, blocks, worker, lent, events, turn: 0 }
    }

    pub(crate) fn run(mut self, steps: Vec<Step>) {
        for step in steps {
            let done = self.take(step.clone());
            match done {
                Ok(()) | Err(Error::OutOfMemory(_)) => {}
                Err(Error::Evicted { .. }) if self.pools[TAG].is_evicted() => {}
                Err(Error::CannotEvict { .. }) if self.pools[0].is_asleep() => {}
                Err(Error::Asleep { .. }) if self.pools[0].is_asleep() || self.pools[TAG].is_asleep() => {}
                Err(error) => panic!("{step:?}: {error}"),
            }
        }
        self.workspaces.clear();
        // Room for what is away.
        let is_short = |block: &Block| block.pool != 0 || block.expected.len() < 3000;
        self.blocks.retain(is_short);
        let lent = std::mem::take(&mut self.lent).into_iter().filter(is_short).collect();
        self.lent = lent;
        self.pools[0].wake().unwrap();
        self.pools[TAG].restore(&self.streams[0]).unwrap();
        while !self.lent.is_empty() {
            self.take(Step::TakeBack { stream: 0 }).unwrap();
        }
        for block in &self.blocks {
            block.check((0, 255), Numbers::to_vec).unwrap();
        }
        drop(self.worker.tasks);
        self.worker.thread.join().unwrap();
        self.blocks.clear();
        self.events.clear();
        self.context.synchronize().unwrap();
        for pool in &self.pools {
            pool.check().unwrap();
            pool.trim_to(0).unwrap();
            assert_eq!((pool.reserved().current, pool.allocated().current), (0, 0));
        }
    }

    fn at(&self, buffer: u8) -> Option<usize> {
        (buffer as usize).checked_rem(self.blocks.len())
    }

    fn block(&mut self, buffer: u8) -> Option<&mut Block> {
        let at = self.at(buffer)?;
        Some(&mut self.blocks[at])
    }

    fn values(&mut self, len: usize) -> Vec<u32> {
        self.turn += 1;
        let first = self.turn << 20;
        (0..len as u32).map(|at| first.wrapping_add(at)).collect()
    }

    fn add(&mut self, buffer: Numbers, pool: usize, expected: Vec<u32>) {
        assert_eq!(buffer.len(), expected.len());
        self.blocks.push(Block { buffer, pool, expected, event: None });
    }

    fn take(&mut self, step: Step) -> Result<()> {
        match step {
            Step::New { pool, stream, len } => {
                let buffer = Buffer::uninit(&self.pools[pool], len, &self.streams[stream])?;
                let mut block = Block { buffer, pool, expected: self.values(len), event: None };
                block.buffer.copy_from_slice(&block.expected)?;
                self.blocks.push(block);
            }
            Step::Drop { buffer } => {
                if let Some(at) = self.at(buffer) {
                    self.blocks.swap_remove(at);
                }
            }
            Step::Replace { buffer } => {
                let Some(at) = self.at(buffer) else { return Ok(()) };
                let Block { buffer, pool, expected, .. } = self.blocks.swap_remove(at);
                let stream = buffer.stream().clone();
                drop(buffer);
                let values = self.values(expected.len());
                self.add(Buffer::from_slice(&self.pools[pool], &values, &stream)?, pool, values);
            }
            Step::DropOnStream { buffer, stream } => {
                if let Some(at) = self.at(buffer) {
                    let block = self.blocks.swap_remove(at);
                    self.streams[stream].launch_host(move || drop(block))?;
                }
            }
            Step::DropOnThread { buffer } => {
                if let Some(at) = self.at(buffer) {
                    let block = self.blocks.swap_remove(at);
                    thread::spawn(move || drop(block)).join().unwrap();
                }
            }
            Step::Write { part: (buffer, part) } => {
                let Some(at) = self.at(buffer) else { return Ok(()) };
                let part = range(part, self.blocks[at].expected.len());
                let (values, block) = (self.values(part.len()), &mut self.blocks[at]);
                block.buffer.slice_mut(part.clone())?.copy_from_slice(&values)?;
                block.expected[part].copy_from_slice(&values);
            }
            Step::Fill { part: (buffer, part) } => {
                let value = self.values(2)[1];
                let Some(block) = self.block(buffer) else { return Ok(()) };
                let part = range(part, block.expected.len());
                block.buffer.slice_mut(part.clone())?.fill(value)?;
                block.expected[part].fill(value);
            }
            Step::Zero { part: (buffer, part) } => {
                let Some(block) = self.block(buffer) else { return Ok(()) };
                let part = range(part, block.expected.len());
                block.buffer.slice_mut(part.clone())?.set_zero()?;
                block.expected[part].fill(0);
            }
            Step::Copy { from: (from, part), to: (to, at) } => {
                let Some((from, to)) = self.at(from).zip(self.at(to)).filter(|(from, to)| from != to) else {
                    return Ok(());
                };
                let [source, target] = self.blocks.get_disjoint_mut([from, to]).unwrap();
                let part = range(part, source.expected.len().min(target.expected.len()));
                let to = range((0, at), target.expected.len() - part.len()).end;
                let to = to..to + part.len();
                target.buffer.slice_mut(to.clone())?.copy_from(source.buffer.slice(part.clone())?)?;
                target.expected[to].copy_from_slice(&source.expected[part]);
            }
            Step::CopyWithin { part: (buffer, part), to } => {
                let Some(block) = self.block(buffer) else { return Ok(()) };
                let part = range(part, block.expected.len());
                let to = range((0, to), block.expected.len() - part.len()).end;
                block.buffer.copy_within(part.clone(), to)?;
                block.expected.copy_within(part, to);
            }
            Step::CopyByWorkspace { from: (from, part), to: (to, at), stream, resets } => {
                if resets {
                    self.workspaces[stream].reset();
                }
                let Some((from, to)) = self.at(from).zip(self.at(to)).filter(|(from, to)| from != to) else {
                    return Ok(());
                };
                let [source, target] = self.blocks.get_disjoint_mut([from, to]).unwrap();
                let part = range(part, source.expected.len().min(target.expected.len()).min(2000));
                let to = range((0, at), target.expected.len() - part.len()).end;
                let to = to..to + part.len();
                let scratch = match self.workspaces[stream].alloc::<u32>(part.len()) {
                    Err(Error::WorkspaceFull { .. }) => return Ok(()),
                    scratch => scratch?,
                };
                scratch.copy_from(source.buffer.slice(part.clone())?)?;
                target.buffer.slice_mut(to.clone())?.copy_from(scratch)?;
                target.expected[to].copy_from_slice(&source.expected[part]);
            }
            Step::Clone { part: (buffer, part) } => {
                let Some(block) = self.block(buffer) else { return Ok(()) };
                let part = range(part, block.expected.len());
                let clone = block.buffer.slice(part.clone())?.try_clone()?;
                let (pool, expected) = (block.pool, block.expected[part].to_vec());
                self.add(clone, pool, expected);
            }
            Step::Cast { buffer } => {
                if let Some(at) = self.at(buffer) {
                    let Block { buffer, pool, expected, .. } = self.blocks.swap_remove(at);
                    self.add(buffer.cast::<u8>()?.cast::<u32>()?, pool, expected);
                }
            }
            Step::Resize { buffer, len } => {
                let Some(block) = self.block(buffer) else { return Ok(()) };
                block.buffer.resize(len)?;
                block.expected.resize(len, 0);
            }
            Step::Move { buffer, stream } => {
                if let Some(at) = self.at(buffer) {
                    let Block { buffer, pool, expected, .. } = self.blocks.swap_remove(at);
                    self.add(buffer.on_stream(&self.streams[stream])?, pool, expected);
                }
            }
            Step::CopyOnThread { from: (from, part), pool, stream } => {
                let Some(at) = self.at(from) else { return Ok(()) };
                let (block, context) = (&self.blocks[at], &self.context);
                let part = range(part, block.expected.len());
                let (of, stream) = (&self.pools[pool], stream.map(|stream| &self.streams[stream]));
                let copy = || -> Result<Option<Numbers>> {
                    let own = context.per_thread_stream()?;
                    let mut copy = Numbers::uninit(of, part.len(), &own)?;
                    copy.as_view_mut().copy_from(block.buffer.slice(part.clone())?)?;
                    match stream {
                        Some(stream) => Ok(Some(copy.on_stream(stream)?)),
                        None => {
                            assert_eq!(copy.to_vec()?, block.expected[part.clone()]);
                            Ok(None)
                        }
                    }
                };
                let copy = thread::scope(|scope| scope.spawn(copy).join().unwrap())?;
                if let Some(copy) = copy {
                    let expected = self.blocks[at].expected[part].to_vec();
                    self.add(copy, pool, expected);
                }
            }
            Step::Lend { part: (buffer, part) } => {
                let value = self.values(2)[1];
                let Some(at) = self.at(buffer) else { return Ok(()) };
                let mut block = self.blocks.swap_remove(at);
                let part = range(part, block.expected.len());
                let lent = self.worker.run(move |own| -> Result<Block> {
                    own.launch_host(|| thread::sleep(Duration::from_micros(300)))?;
                    block.buffer = block.buffer.on_stream(own)?;
                    // Where its memory is away, it stays as it is.
                    if block.buffer.slice_mut(part.clone())?.fill(value).is_ok() {
                        block.expected[part].fill(value);
                    }
                    Ok(block)
                });
                self.lent.push(lent?);
            }
            Step::TakeBack { stream } => {
                let Some(Block { buffer, pool, expected, .. }) = self.lent.pop() else { return Ok(()) };
                let stream = self.streams[stream].clone();
                let buffer = self.worker.run(move |_| buffer.on_stream(&stream))?;
                self.add(buffer, pool, expected);
            }
            Step::RecordUse { buffer, stream } => {
                let stream = self.streams[stream].clone();
                let Some(block) = self.block(buffer) else { return Ok(()) };
                block.buffer.record_use(&stream)?;
            }
            Step::Read { part: (buffer, part) } => {
                let Some(block) = self.block(buffer) else { return Ok(()) };
                let range = range(part, block.expected.len());
                block.check(part, |buffer| buffer.slice(range)?.to_vec())?;
            }
            Step::ReadInPlace { part: (buffer, part) } => {
                let Some(block) = self.block(buffer).filter(|block| block.pool > TAG) else { return Ok(()) };
                let range = range(part, block.expected.len());
                block.check(part, |buffer| Ok(buffer.slice(range)?.as_slice()?.to_vec()))?;
            }
            Step::RecordFor { buffer } => {
                let Some(block) = self.block(buffer) else { return Ok(()) };
                block.event = Some(block.buffer.stream().record()?);
            }
            Step::ReadAfter { part: (buffer, part), event } => {
                let at = event.and_then(|event| (event as usize).checked_rem(self.events.len()));
                let other = at.map(|at| self.events.swap_remove(at));
                let Some(block) = self.block(buffer).filter(|block| block.pool > TAG) else { return Ok(()) };
                let Some(event) = other.or_else(|| block.event.take()) else { return Ok(()) };
                let range = range(part, block.expected.len());
                block.check(part, |buffer| Ok(buffer.slice(range)?.as_slice_after(&event)?.to_vec()))?;
            }
            Step::WriteInPlace { part: (buffer, part) } => {
                let value = self.values(2)[1];
                let Some(block) = self.block(buffer).filter(|block| block.pool > TAG) else { return Ok(()) };
                let part = range(part, block.expected.len());
                block.buffer.slice_mut(part.clone())?.as_mut_slice()?.fill(value);
                block.expected[part].fill(value);
            }
            Step::Record { stream } => self.events.push(self.streams[stream].record()?),
            Step::Wait { stream, other } => self.streams[stream].wait_for(&self.streams[other])?,
            Step::Delay { stream, micros } => {
                self.streams[stream].launch_host(move || thread::sleep(Duration::from_micros(micros)))?;
            }
            Step::NewStream { stream } => self.streams[stream] = self.context.create_stream()?,
            Step::Evict { stream } => _ = self.pools[TAG].evict(&self.streams[stream])?,
            Step::Restore { stream } => self.pools[TAG].restore(&self.streams[stream])?,
            Step::RestoreEarly { is_whole } if is_whole => self.pools[TAG].restore_ahead()?,
            Step::RestoreEarly { .. } => _ = self.pools[TAG].restore_free()?,
            Step::Sleep => _ = self.pools[0].sleep(Keep::InPinnedMemory)?,
            Step::Wake => self.pools[0].wake()?,
            Step::Trim { pool } => _ = self.pools[pool].trim_to(0)?,
            Step::Synchronize => self.context.synchronize()?,
        }
        Ok(())
    }
}

impl Block {
    fn check(&self, part: (u8, u8), read: impl FnOnce(&Numbers) -> Result<Vec<u32>>) -> Result<()> {
        let (found, part) = (read(&self.buffer)?, range(part, self.expected.len()));
        let expected = &self.expected[part];
        let wrong = found.iter().zip(expected).position(|(found, expected)| found != expected);
        if let Some(at) = wrong {
            panic!(
                "{:?} of pool {}: element {at} is {:#x}, not {:#x}",
                self.buffer, self.pool, found[at], expected[at]
            );
        }
        assert_eq!(found.len(), expected.len());
        Ok(())
    }
}
