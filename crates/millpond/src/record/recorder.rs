//! One file being recorded: its threads' rings, its writer, and the list of all that this process writes.

use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rtrb::Producer;

use super::clock::{Moment, nanoseconds};
use super::collector::Collector;
use super::encoder::{Encoder, Event, Sealed, cut};
use super::file::RecordFile;
use super::format::Record;
use super::labels::WrittenSites;
use super::names::expanded;
use super::note::Note;
use super::options::Options;
use crate::log::{log, warn_in_any_case};
use crate::system::lock::{Condvar, Mutex, MutexGuard};
use crate::system::process::{PerProcess, Process};

/// How often what was noted goes to the file, where no ring fills up before. A process that is killed loses
/// at most this much.
const EVERY: Duration = Duration::from_millis(50);

/// How long the process's end waits for a thread that writes.
const AT_EXIT: Duration = Duration::from_secs(2);

/// See the [module](self). Locks are taken in the order of the fields, and any of them under a pool's lock
/// but `file`'s.
#[derive(Debug)]
pub(super) struct Recorder {
    /// Never given to another recorder of the process.
    pub(super) id: u32,
    pub(super) origin: Moment,
    /// The process that opened the file. A forked child has the recorder too, and must not write.
    process: Process,
    requested: PathBuf,
    file: Mutex<Output>,
    /// Bytes of the file, of the present one where it rotates.
    written: AtomicU64,
    collector: Mutex<Collector>,
    state: Mutex<State>,
    wake: Condvar,
}

/// The file, and the definitions of call sites on the way to it. Their lines are looked up here, where no thread of the
/// program waits.
#[derive(Debug)]
struct Output {
    file: RecordFile,
    definitions: Encoder,
    sites: WrittenSites,
}

impl Output {
    /// Appends a chunk, behind the definitions of the call sites that it names. Returns the bytes of these. One that begins
    /// another file names none.
    fn append(&mut self, chunk: &mut Sealed) -> io::Result<u64> {
        if chunk.begins_file {
            self.file.rotate()?;
            (self.definitions, self.sites) = (Encoder::new(), WrittenSites::default());
            // If the next line fails, the file has rotated already.
            chunk.begins_file = false;
            return self.file.append(&chunk.bytes).map(|()| 0);
        }
        self.sites.catch_up(&mut self.definitions)?;
        let mut defined = 0;
        while let Some(definitions) = self.definitions.take() {
            if let Err(error) = self.file.append(&definitions.bytes) {
                self.definitions.put_back(definitions);
                return Err(error);
            }
            defined += definitions.bytes.len() as u64;
        }
        self.file.append(&chunk.bytes)?;
        Ok(defined)
    }
}

#[derive(Debug, Default)]
struct State {
    /// Pools that record here.
    pools: usize,
    /// Whether the recorder stays when the last pool is gone.
    kept: bool,
    ending: bool,
    writer: Option<JoinHandle<()>>,
    path: PathBuf,
    /// Why the last write failed; the data waits.
    failure: Option<String>,
}

/// What a recording has written so far: [`Pool::recording`](crate::Pool::recording) and
/// [`Pool::stop_recording`](crate::Pool::stop_recording) return it. The [module](crate::record) has an example.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Status {
    /// The file. Its name may have the process's number, where another process held the one asked for.
    pub path: PathBuf,
    /// Events recorded, of all pools that record to this file.
    pub events: u64,
    /// Events dropped because too much waited for the disk, or the file had all that it [may](Options::most_bytes) have. The file
    /// says so, too.
    pub dropped: u64,
    /// Events that are in no file any more, since the recording [rotates](Options::rotate).
    pub rotated: u64,
    /// Bytes of the file.
    pub bytes: u64,
    /// Why the last write failed, if it did. What could not be written waits and is tried again.
    pub failure: Option<String>,
}

/// The recorders of this process.
static OPEN: PerProcess<Mutex<Vec<Weak<Recorder>>>> = PerProcess::new(Default::default);

/// Those that stay until the process ends.
static KEPT: PerProcess<Mutex<Vec<Arc<Recorder>>>> = PerProcess::new(Default::default);

impl Recorder {
    /// The recorder of this file: the one that other pools of this process use already, or a new one. `keep`
    /// lets it stay until the process ends, so that pools that come and go share the file. The caller
    /// [leaves](Self::leave) it once.
    pub(super) fn join(options: &Options) -> io::Result<Arc<Self>> {
        let (keep, requested) =
            (options.keep, std::path::absolute(expanded(&options.path, std::process::id()))?);
        let mut open = OPEN.get().lock();
        open.retain(|recorder| recorder.strong_count() > 0);
        let known = open.iter().filter_map(Weak::upgrade).find(|recorder| {
            recorder.requested == requested && recorder.is_ours() && !recorder.state.lock().ending
        });
        let recorder = match known {
            Some(known) => known,
            None => {
                let new = Self::open(requested, options)?;
                open.push(Arc::downgrade(&new));
                new
            }
        };
        let mut state = recorder.state.lock();
        state.pools += 1;
        if keep && !std::mem::replace(&mut state.kept, true) {
            KEPT.get().lock().push(recorder.clone());
        }
        drop(state);
        Ok(recorder)
    }

    fn open(
        requested: PathBuf,
        &Options { most_bytes, rotates, keeps_since, .. }: &Options,
    ) -> io::Result<Arc<Self>> {
        static NEXT: AtomicU32 = AtomicU32::new(1);
        let file = RecordFile::create(&requested, keeps_since)?;
        if rotates {
            file.refuse_to_rotate()?;
        }
        let program = std::env::args_os().next().unwrap_or_default();
        let program = program.to_string_lossy();
        let unix = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let start = Record::Start {
            unix_ns: u64::try_from(unix.as_nanos()).unwrap_or(u64::MAX),
            process: std::process::id(),
            program: cut(&program),
        };
        let recorder = Arc::new(Self {
            // Relaxed: only uniqueness matters.
            id: NEXT.fetch_add(1, Ordering::Relaxed),
            origin: Moment::now(),
            process: Process::here(),
            requested,
            state: Mutex::new(State { path: file.path().to_owned(), ..State::default() }),
            written: AtomicU64::new(file.len()),
            file: Mutex::new(Output { file, definitions: Encoder::new(), sites: WrittenSites::default() }),
            collector: Mutex::new(Collector::new(&start, most_bytes, rotates)),
            wake: Condvar::new(),
        });
        recorder.flush()?;
        let writer = recorder.clone();
        let writer = std::thread::Builder::new()
            .name("millpond-record".to_owned())
            .spawn(move || writer.write_until_the_end())?;
        recorder.state.lock().writer = Some(writer);
        flush_at_exit();
        Ok(recorder)
    }

    /// Whether this is the process that opened the file, and no child forked from it.
    pub(super) fn is_ours(&self) -> bool {
        self.process.is_here()
    }

    /// Nanoseconds since the recording began.
    pub(super) fn now(&self) -> u64 {
        nanoseconds(Moment::now().since(self.origin))
    }

    /// A ring for the calling thread.
    pub(super) fn enter_thread(&self) -> Producer<Note> {
        self.collector.lock().enter_thread()
    }

    /// Defines a pool, and returns its number.
    pub(super) fn enter_pool<'a>(&self, define: impl FnOnce(u32) -> Record<'a>) -> u32 {
        self.collector.lock().enter_pool(define)
    }

    /// Adds what is no event, behind what was noted so far.
    pub(super) fn define(&self, record: &Record<'_>) {
        let mut collector = self.collector.lock();
        collector.drain();
        collector.encoder.define(record);
    }

    /// Adds events that go through no ring.
    pub(super) fn add(&self, events: impl Iterator<Item = Event>) {
        let mut collector = self.collector.lock();
        // The tags that they name are written before them.
        collector.drain();
        events.for_each(|event| collector.add(0, &event));
    }

    /// Empties the rings, on a thread whose own is full, unless another thread is at it.
    #[cold]
    pub(super) fn try_drain(&self) -> bool {
        let Some(collector) = self.collector.try_lock() else { return false };
        self.drain_locked(collector);
        true
    }

    /// Empties the rings, once nobody else is at it.
    #[cold]
    pub(super) fn drain(&self) {
        self.drain_locked(self.collector.lock());
    }

    fn drain_locked(&self, mut collector: MutexGuard<'_, Collector>) {
        collector.drain();
        drop(collector);
        self.wake();
    }

    /// Lets the writer look at the rings.
    pub(super) fn wake(&self) {
        self.wake.notify_one();
    }

    /// Writes what was noted so far.
    pub(super) fn flush(&self) -> io::Result<()> {
        if !self.is_ours() {
            return Ok(());
        }
        let mut output = self.file.lock();
        let result = self.write(&mut output);
        drop(output);
        self.note_failure(result.as_ref().err());
        result
    }

    fn write(&self, output: &mut Output) -> io::Result<()> {
        let mut collector = self.collector.lock();
        collector.drain();
        collector.encoder.seal();
        // Not what comes meanwhile, which may be as much as is written.
        let mut left = collector.encoder.waiting();
        while left > 0
            && let Some(mut chunk) = collector.take()
        {
            left = left.saturating_sub(chunk.bytes.len());
            let begins_file = chunk.begins_file;
            // The threads need not wait for the disk, nor for debug information.
            drop(collector);
            let appended = output.append(&mut chunk);
            // Relaxed: a figure to read.
            self.written.store(output.file.len(), Ordering::Relaxed);
            if begins_file {
                self.state.lock().path = output.file.path().to_owned();
            }
            collector = self.collector.lock();
            match appended {
                Ok(defined) => collector.count(defined),
                Err(error) => {
                    collector.put_back(chunk);
                    return Err(error);
                }
            }
        }
        Ok(())
    }

    fn note_failure(&self, error: Option<&io::Error>) {
        let mut state = self.state.lock();
        let before = std::mem::replace(&mut state.failure, error.map(ToString::to_string));
        if let (None, Some(error)) = (before, error) {
            let path = state.path.display();
            warn_in_any_case(&format!(
                "the recording {path} cannot be written: {error}. It waits in memory, and is tried again"
            ));
        }
    }

    fn write_until_the_end(&self) {
        let mut state = self.state.lock();
        let mut was_full = false;
        while !state.ending {
            drop(self.wake.wait_for(state, EVERY));
            // Noted and warned of already; the next turn tries again.
            self.flush().ok();
            let is_full = self.collector.lock().is_full();
            if is_full && !std::mem::replace(&mut was_full, true) {
                warn_in_any_case(&format!(
                    "the recording {} has all the bytes that it may have: what follows is counted, and not recorded; \
                     MILLPOND_RECORD_LIMIT raises the limit, MILLPOND_RECORD_ROTATE=1 keeps the last part",
                    self.state.lock().path.display()
                ));
            }
            state = self.state.lock();
        }
    }

    /// Gives up what [`join`](Self::join) gave. The last to leave ends the recording, unless it is kept.
    pub(super) fn leave(&self) -> io::Result<()> {
        if !self.is_ours() {
            return Ok(());
        }
        // Nobody may join while it ends.
        let _open = OPEN.get().lock();
        let writer = {
            let mut state = self.state.lock();
            state.pools -= 1;
            if state.pools > 0 || state.kept {
                drop(state);
                return self.flush();
            }
            state.ending = true;
            state.writer.take()
        };
        self.wake();
        if let Some(writer) = writer {
            writer.join().ok();
        }
        self.collector.lock().end();
        self.flush()
    }

    pub(super) fn status(&self) -> Status {
        // Relaxed: a figure to read.
        let bytes = self.written.load(Ordering::Relaxed);
        let (events, dropped, rotated) = {
            let mut collector = self.collector.lock();
            collector.drain();
            collector.counts()
        };
        let state = self.state.lock();
        Status { path: state.path.clone(), events, dropped, rotated, bytes, failure: state.failure.clone() }
    }

    /// The process ends, and pools of it may still record. Threads that hold a lock for longer are stuck.
    fn end_at_exit(&self) {
        if !self.is_ours() {
            return;
        }
        let Some(mut output) = self.file.try_lock_for(AT_EXIT) else { return };
        let Some(mut collector) = self.collector.try_lock_for(AT_EXIT) else { return };
        collector.end();
        drop(collector);
        if let Err(error) = self.write(&mut output) {
            let path = self.requested.display();
            warn_in_any_case(&format!("the end of the recording {path} could not be written: {error}"));
        }
    }
}

/// Lets the end of every recording be written when the process ends without dropping its pools.
fn flush_at_exit() {
    // Also in a forked child, which has the parent's handler: to be called twice does no harm.
    static ONCE: AtomicBool = AtomicBool::new(false);
    extern "C" fn end_all() {
        // A panic must not leave this function; nothing is left to be told of it.
        let end = || {
            let Some(open) = OPEN.get().try_lock_for(AT_EXIT) else { return };
            open.iter().filter_map(Weak::upgrade).for_each(|recorder| recorder.end_at_exit());
        };
        std::panic::catch_unwind(end).ok();
    }
    // Relaxed: only that it is done matters.
    if !ONCE.swap(true, Ordering::Relaxed) {
        // SAFETY: the handler is a function of this library, which the C runtime calls before it unloads it,
        // and it does not unwind.
        if unsafe { libc::atexit(end_all) } != 0 {
            log!(DEBUG, "no handler at exit: the last moments of recordings may be missing");
        }
    }
}

#[cfg(all(test, target_os = "linux", not(miri)))]
mod tests {
    use std::fs::File;
    use std::io::Read;

    use super::super::encoder::Kind;
    use super::*;

    /// Reads, of a page each, after which no more events come.
    const READS: usize = 3000;

    #[test]
    fn a_flush_ends_while_events_come_as_fast_as_they_are_written() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("pipe");
        rustix::fs::mknodat(rustix::fs::CWD, &path, rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
        let recorder = Recorder::join(&Options::new(path.as_path())).unwrap();
        let event = Event {
            time: 0,
            address: 0,
            size: u64::MAX,
            stream: 0,
            pool: 1,
            tag: 0,
            site: 0,
            kind: Kind::Trim,
        };
        // Such an event takes 13 bytes.
        let add = move |to: &Recorder, bytes: usize| to.add(std::iter::repeat_n(event, bytes / 13));
        let mut pipe = File::open(&path).unwrap();
        let is_done = Arc::new(AtomicBool::new(false));
        let mut feeding = Some((recorder.clone(), is_done.clone()));
        let reader = std::thread::spawn(move || {
            let (mut added, mut page) = (0, [0; 4096]);
            // The end comes when the recorder is gone.
            while pipe.read(&mut page).unwrap() > 0 {
                feeding = feeding.filter(|(_, is_done)| !is_done.load(Ordering::Relaxed));
                if let Some((recorder, _)) = feeding.as_ref().filter(|_| added < READS) {
                    add(recorder, 4200);
                    added += 1;
                }
            }
            added
        });
        // More than a pipe holds.
        add(&recorder, 1 << 20);
        recorder.flush().unwrap();
        is_done.store(true, Ordering::Relaxed);
        recorder.leave().unwrap();
        drop(recorder);
        let added = reader.join().unwrap();
        assert!(added < READS, "the flush ended when no more events came");
    }
}
