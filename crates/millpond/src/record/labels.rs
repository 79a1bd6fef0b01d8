//! What events are filed under: tags that the program sets, and call sites. Both are kept once for the whole
//! process and named by number; a recorder writes those that its file does not have yet.

use std::cell::Cell;
use std::collections::HashMap;
use std::io;
use std::marker::PhantomData;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::called_from::{self, SourceFrame};
use super::encoder::{Encoder, cut};
use super::format::Record;
use super::frames::{of_program, readable};
use super::stacks;
use crate::nvtx::{Range, range};
use crate::system::lock::Mutex;
use crate::system::process::{PerProcess, Process};

/// Tags and call sites at most, each. A program that makes texts out of counters would fill memory else.
const MOST: usize = 1 << 16;

/// Bytes of the texts of all tags at most, and of the lines that bindings gave.
const MOST_TEXT: usize = 16 << 20;

/// How long one recorder waits while another looks up lines. The first look-up takes up to a second.
const LONGEST_LOOK_UP: Duration = Duration::from_secs(10);

/// Tags inside one another at most.
const DEEPEST: usize = 64;

thread_local! {
    /// With the process whose tag it is: in a forked child it names nothing.
    static TAG: Cell<Option<(Process, u32)>> = const { Cell::new(None) };
}

/// The calling thread's tag, 0 for none. None while the thread ends, too.
pub(super) fn current_tag() -> u32 {
    let tag = TAG.try_with(Cell::get).ok().flatten();
    tag.filter(|(process, _)| process.is_here()).map_or(0, |(_, tag)| tag)
}

/// What [`tag`] returns, which has an example. The tag ends when this is dropped.
#[derive(Debug)]
#[must_use = "the tag ends when this is dropped"]
pub struct Tagged {
    before: Option<(Process, u32)>,
    /// A tag is its thread's.
    not_send: PhantomData<*const ()>,
    /// What a profiler shows of it.
    _range: Option<Range>,
}

/// Files what this thread does with pools under a name, in recordings, until the result is dropped. A profiler that watches the
/// process shows it as a range of the domain `millpond` (NVTX). Tags nest, at most 64 deep: deeper ones are left out. So are new
/// ones after 65,536 different tags, or 16 MiB of their texts.
///
/// ```
/// let _forward = millpond::record::tag("forward");
/// {
///     let _attention = millpond::record::tag("attention"); // forward > attention
/// }
/// ```
pub fn tag(text: &str) -> Tagged {
    let process = Process::here();
    let before = current_tag();
    let now = TAGS.get().lock().enter(before, text);
    let before = Some((process, before));
    // Fails while the thread ends, and no tag is set then.
    TAG.try_with(|tag| tag.set(Some((process, now)))).ok();
    Tagged { before, not_send: PhantomData, _range: range(text) }
}

impl Drop for Tagged {
    fn drop(&mut self) {
        TAG.try_with(|tag| tag.set(self.before)).ok();
    }
}

static TAGS: PerProcess<Mutex<Tags>> = PerProcess::new(Default::default);

#[derive(Default)]
struct Tags {
    all: Vec<Tag>,
    /// Bytes of their texts.
    bytes: usize,
    index: Option<HashMap<(u32, Arc<str>), u32>>,
}

struct Tag {
    inside: u32,
    depth: usize,
    text: Arc<str>,
}

impl Tags {
    /// The number of the tag `text` inside of `inside`; `inside` itself where there can be no more.
    fn enter(&mut self, inside: u32, text: &str) -> u32 {
        let text: Arc<str> = cut(text).into();
        let index = self.index.get_or_insert_default();
        let key = (inside, text.clone());
        if let Some(&known) = index.get(&key) {
            return known;
        }
        let depth = inside.checked_sub(1).map_or(0, |at| self.all[at as usize].depth + 1);
        let bytes = self.bytes + text.len();
        if self.all.len() == MOST || bytes > MOST_TEXT || depth == DEEPEST {
            return inside;
        }
        self.bytes = bytes;
        self.all.push(Tag { inside, depth, text });
        let number = self.all.len() as u32;
        index.insert(key, number);
        number
    }
}

static SITES: PerProcess<Mutex<Sites>> = PerProcess::new(Default::default);

/// A call stack.
#[derive(Clone)]
enum Stack {
    /// Return addresses.
    Addresses(Arc<[usize]>),
    /// The lines that a binding gave.
    Lines(Arc<[SourceFrame]>),
}

#[derive(Default)]
struct Sites {
    stacks: Vec<Stack>,
    addresses: Option<HashMap<Arc<[usize]>, u32>>,
    lines: Option<HashMap<Arc<[SourceFrame]>, u32>>,
    /// Bytes of the lines.
    bytes: usize,
}

impl Sites {
    /// The number of a stack; 0 for a new one where no more can be kept.
    fn enter(&mut self, stack: &[usize]) -> u32 {
        let index = self.addresses.get_or_insert_default();
        if let Some(&known) = index.get(stack) {
            return known;
        }
        if self.stacks.len() == MOST {
            return 0;
        }
        let stack: Arc<[usize]> = stack.into();
        self.stacks.push(Stack::Addresses(stack.clone()));
        let number = self.stacks.len() as u32;
        index.insert(stack, number);
        number
    }

    /// As [`enter`](Self::enter), for the lines that a binding gave.
    fn enter_lines(&mut self, lines: Arc<[SourceFrame]>) -> u32 {
        let index = self.lines.get_or_insert_default();
        if let Some(&known) = index.get(&lines) {
            return known;
        }
        let bytes = self.bytes + lines.iter().map(SourceFrame::bytes).sum::<usize>();
        if self.stacks.len() == MOST || bytes > MOST_TEXT {
            return 0;
        }
        self.bytes = bytes;
        self.stacks.push(Stack::Lines(lines.clone()));
        let number = self.stacks.len() as u32;
        index.insert(lines, number);
        number
    }
}

/// The number of the caller's call stack: the lines that a binding gave, else return addresses, of which the recorder's thread
/// looks up the lines. For the first stack, that reads the program's debug information, and takes up to a second.
pub(super) fn current_site() -> u32 {
    if let Some(lines) = called_from::current() {
        return SITES.get().lock().enter_lines(lines);
    }
    stacks::number(|stack| SITES.get().lock().enter(stack))
}

static RESOLVED: PerProcess<Mutex<Resolved>> = PerProcess::new(Default::default);

/// The source code of call stacks. Its lock is held while debug information is read.
#[derive(Default)]
struct Resolved {
    frames: Vec<SourceFrame>,
    /// The frames of each site, by number.
    sites: Vec<Vec<u32>>,
    index: Option<HashMap<SourceFrame, u32>>,
}

impl Resolved {
    /// Looks up this many sites.
    fn catch_up(&mut self, sites: usize) {
        while self.sites.len() < sites {
            let stack = SITES.get().lock().stacks[self.sites.len()].clone();
            self.enter(match stack {
                Stack::Addresses(addresses) => resolved(&addresses),
                Stack::Lines(lines) => lines.to_vec(),
            });
        }
    }

    fn enter(&mut self, frames: Vec<SourceFrame>) {
        let Self { frames: all, sites, index } = self;
        let index = index.get_or_insert_default();
        let number = |frame: SourceFrame| {
            *index.entry(frame).or_insert_with_key(|frame| {
                all.push(frame.clone());
                all.len() as u32
            })
        };
        sites.push(frames.into_iter().map(number).collect());
    }
}

/// The lines of source code of a stack, innermost first, from the first that is the program's own. Called under the lock
/// of [`RESOLVED`].
fn resolved(stack: &[usize]) -> Vec<SourceFrame> {
    /// The process that looks up lines, and one more; 0 while none does.
    static LOOKING: AtomicU64 = AtomicU64::new(0);
    let here = Process::here().number() + 1;
    // A child that was forked while its parent looked up lines would wait for the parent's lock for ever: its stacks have
    // no lines. Relaxed: the parent's write came before the fork, and in one process the lock of `RESOLVED` orders all.
    if ![0, here].contains(&LOOKING.load(Ordering::Relaxed)) {
        return Vec::new();
    }
    LOOKING.store(here, Ordering::Relaxed);
    let mut frames = Vec::new();
    for &ip in stack {
        backtrace::resolve(ip as *mut _, |symbol| {
            let name = symbol.name().map(|name| readable(format!("{name:#}"))).unwrap_or_default();
            let file = symbol.filename().map(|file| file.to_string_lossy().into_owned()).unwrap_or_default();
            let line = symbol.lineno().unwrap_or(0);
            if !name.is_empty() {
                frames.push(SourceFrame::new(&name, &file, line));
            }
        });
    }
    LOOKING.store(0, Ordering::Relaxed);
    frames.drain(..of_program(&frames));
    frames.truncate(4 * DEEPEST);
    frames
}

/// A tag and those that it stands in, such as `step/forward`; `None` for none.
pub(super) fn tag_path(tag: u32) -> Option<String> {
    let tags = TAGS.get().lock();
    let mut texts = Vec::new();
    let mut at = tag;
    while let Some(tag) = at.checked_sub(1).and_then(|place| tags.all.get(place as usize)) {
        texts.push(&*tag.text);
        at = tag.inside;
    }
    texts.reverse();
    (!texts.is_empty()).then(|| texts.join("/"))
}

/// The lines of source code of a call site, the innermost first: function, file and line. None where another thread looks
/// up lines for too long.
pub(super) fn lines_of(site: u32) -> Vec<(String, String, u32)> {
    let Some(place) = site.checked_sub(1) else { return Vec::new() };
    // A number of the process that this one was forked from names nothing here.
    let entered = SITES.get().lock().stacks.len();
    let Some(mut resolved) = RESOLVED.get().try_lock_for(LONGEST_LOOK_UP) else { return Vec::new() };
    resolved.catch_up(entered);
    let Resolved { frames, sites, .. } = &*resolved;
    let frame = |&number: &u32| {
        let SourceFrame { name, file, line } = &frames[number as usize - 1];
        (name.to_string(), file.to_string(), *line)
    };
    sites.get(place as usize).map_or(Vec::new(), |site| site.iter().map(frame).collect())
}

/// How many tags a file has already.
#[derive(Debug, Default)]
pub(super) struct WrittenTags(usize);

impl WrittenTags {
    /// Writes the tags that are new.
    pub(super) fn catch_up(&mut self, encoder: &mut Encoder) {
        let tags = TAGS.get().lock();
        for (at, tag) in tags.all.iter().enumerate().skip(self.0) {
            encoder.define(&Record::Tag { tag: at as u32 + 1, inside: tag.inside, text: &tag.text });
        }
        self.0 = tags.all.len();
    }
}

/// How many call sites a file has already, with their frames.
#[derive(Debug, Default)]
pub(super) struct WrittenSites {
    frames: usize,
    sites: usize,
}

impl WrittenSites {
    /// Writes the call sites that are new. Looks up their lines first, which may take long.
    ///
    /// # Errors
    /// Another thread looks up lines for too long. A signal handler that called `exit` may have interrupted it.
    pub(super) fn catch_up(&mut self, encoder: &mut Encoder) -> io::Result<()> {
        let entered = SITES.get().lock().stacks.len();
        if self.sites == entered {
            return Ok(());
        }
        let Some(mut resolved) = RESOLVED.get().try_lock_for(LONGEST_LOOK_UP) else {
            return Err(io::Error::new(
                io::ErrorKind::TimedOut,
                "the lines of call sites are being looked up",
            ));
        };
        resolved.catch_up(entered);
        for (at, SourceFrame { name, file, line }) in resolved.frames.iter().enumerate().skip(self.frames) {
            encoder.define(&Record::Frame { frame: at as u32 + 1, name, file, line: *line });
        }
        for (at, frames) in resolved.sites.iter().enumerate().skip(self.sites) {
            encoder.define(&Record::Site { site: at as u32 + 1, frames: frames.clone() });
        }
        (self.frames, self.sites) = (resolved.frames.len(), resolved.sites.len());
        encoder.seal();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::frames;
    use super::*;

    #[test]
    fn tags_stand_inside_each_other_and_end_with_their_scope() {
        let outer = tag("outer");
        let number = current_tag();
        {
            let _inner = tag("inner");
            assert_ne!(current_tag(), number);
            assert_eq!(TAGS.get().lock().all[current_tag() as usize - 1].inside, number);
        }
        assert_eq!(current_tag(), number);
        drop(outer);
        assert_eq!(current_tag(), 0);
        let _again = tag("outer");
        assert_eq!(current_tag(), number);
    }

    #[test]
    fn tags_too_deep_are_left_out() {
        let tags: Vec<_> = (0..DEEPEST + 3).map(|depth| tag(&depth.to_string())).collect();
        let deepest = current_tag();
        // The last of `DEEPEST`, which is 64.
        assert_eq!(&*TAGS.get().lock().all[deepest as usize - 1].text, "63");
        for tag in tags.into_iter().rev() {
            drop(tag);
        }
        assert_eq!(current_tag(), 0);
    }

    #[test]
    fn long_tags_do_not_fill_memory() {
        let mut tags = Tags::default();
        let text = |number: usize| format!("{number:4096}");
        let first = tags.enter(0, &text(0));
        for number in 1..=MOST_TEXT / 4096 {
            tags.enter(0, &text(number));
        }
        assert!(tags.all.iter().map(|tag| tag.text.len()).sum::<usize>() <= MOST_TEXT);
        assert_eq!(tags.enter(first, &text(1 << 20)), first, "it is left out");
        assert_eq!(tags.enter(0, &text(0)), first);
    }

    #[test]
    fn a_call_site_is_named_by_the_programs_own_lines() {
        #[inline(never)]
        fn somewhere() -> u32 {
            current_site()
        }
        // A number that the compiler does not know, or it would make two calls of one.
        let calls = std::hint::black_box(2);
        let sites: Vec<_> = (0..calls).map(|_| somewhere()).collect();
        assert_eq!(sites[0], sites[1]);
        assert_ne!(sites[0], 0);
        let mut resolved = Resolved::default();
        resolved.catch_up(sites[0] as usize);
        let frames = &resolved.sites[sites[0] as usize - 1];
        // This test is a part of the library, whose own frames are left out.
        assert!(
            !frames.is_empty()
                && frames.iter().all(|frame| !frames::is_ours(&resolved.frames[*frame as usize - 1]))
        );
    }

    #[test]
    fn lines_that_a_binding_gave_are_the_call_site() {
        let _wanted = called_from::Wanted::new();
        let at = |line| {
            let frames = ["step", "<module>"].map(|name| SourceFrame::new(name, "train.py", line));
            let _called = called_from::called_from(|| frames.to_vec());
            current_site()
        };
        let (one, again, other) = (at(7), at(7), at(8));
        assert_eq!(one, again);
        assert_ne!(one, other);
        assert_ne!(one, current_site(), "return addresses, where no binding says anything");
        let mut resolved = Resolved::default();
        resolved.catch_up(other as usize);
        let names = |site: u32| {
            let frames = resolved.sites[site as usize - 1].iter();
            let frames = frames.map(|frame| &resolved.frames[*frame as usize - 1]);
            frames.map(|frame| (&*frame.name, frame.line)).collect::<Vec<_>>()
        };
        assert_eq!(names(one), [("step", 7), ("<module>", 7)]);
        assert_eq!(names(other), [("step", 8), ("<module>", 8)]);
    }

    #[test]
    fn lines_without_end_do_not_fill_memory() {
        let mut sites = Sites::default();
        let mut enter = |line| sites.enter_lines([SourceFrame::new(&"f".repeat(4096), "a.py", line)].into());
        let entered: Vec<_> = (1..MOST_TEXT as u32 / 4096 + 1).map(&mut enter).collect();
        assert_eq!((entered[0], entered.last()), (1, Some(&0)));
        assert_eq!(enter(1), 1, "known ones keep their number");
    }

    #[test]
    fn a_stack_is_numbered_while_another_thread_looks_up_lines() {
        let (send, receive) = std::sync::mpsc::channel();
        let here = a_stack_is_numbered_while_another_thread_looks_up_lines as fn() as *mut _;
        // The crate's lock is held while it calls this.
        backtrace::resolve(here, |_| {
            let send = send.clone();
            std::thread::spawn(move || send.send(current_site()));
            let site = receive.recv_timeout(std::time::Duration::from_secs(60));
            assert_ne!(site.expect("it waits for whoever looks up lines"), 0);
        });
    }
}
