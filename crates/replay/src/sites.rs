//! Who holds memory at one moment, by tag and call site, and in blocks of which size.

use std::collections::BTreeMap;

use rustc_hash::{FxHashMap, FxHashSet};
use serde::Serialize;

use crate::event::{Frame, REFUSED, StackId};
use crate::replay::{FreeWhen, Program};
use crate::trace::{OpKind, Trace};

/// Live bytes of one call site under one tag.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Site {
    /// The tags, outermost first, with `/` between; `None` outside of any.
    pub tag: Option<String>,
    /// The program's own innermost functions with file and line, the innermost first, with `<` between.
    pub site: String,
    /// The bytes that were requested there and are live.
    pub bytes: u64,
    /// In how many blocks.
    pub blocks: u64,
}

impl Site {
    /// Tag and call site in one line.
    pub fn name(&self) -> String {
        match &self.tag {
            Some(tag) => format!("{tag}: {}", self.site),
            None => self.site.clone(),
        }
    }
}

/// Live bytes under one tag.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Tag {
    /// The tags, outermost first, with `/` between; `None` for what is under none.
    pub tag: Option<String>,
    /// The bytes that were requested under it and are live.
    pub bytes: u64,
    /// In how many blocks.
    pub blocks: u64,
}

/// What is live at one moment.
#[derive(Debug, Default, Serialize)]
pub struct Live {
    /// Bytes requested.
    pub bytes: u64,
    /// In how many blocks.
    pub blocks: u64,
    /// By tag, the most first; empty where there are no tags.
    pub tags: Vec<Tag>,
    /// By tag and call site, the most first; empty where no stacks were recorded.
    pub sites: Vec<Site>,
    /// Bytes by the power of two that the block's size is not below.
    pub by_size: BTreeMap<u64, u64>,
    /// Bytes of these that the program has freed, and that wait for other streams.
    pub waiting: u64,
    /// In how many blocks.
    pub waiting_blocks: u64,
    /// Bytes of these that were asked for and refused.
    pub refused: u64,
}

/// Whose blocks those are that the program has freed, and that wait for other streams.
pub const WAITING: &str = "(freed, waiting for streams)";

/// Call sites that are listed.
const MOST_SITES: usize = 20;

impl Live {
    /// When most is requested.
    pub fn at_peak(trace: &Trace, program: &Program) -> Self {
        let steps = program.peak_requested().1 + 1;
        Self::after(trace, program, steps, ops_of(trace, program, steps))
    }

    /// When the trace ends: what a program keeps, or leaks.
    pub fn at_end(trace: &Trace, program: &Program) -> Self {
        Self::after(trace, program, program.steps.len(), trace.ops.len())
    }

    fn after(trace: &Trace, program: &Program, steps: usize, ops: usize) -> Self {
        let is_live = live_after(program, steps);
        let waits = waiting_after(trace, ops);
        let before: FxHashSet<u32> = trace.live_before.iter().copied().collect();
        let mut live = Self::default();
        let mut by_stack: FxHashMap<(StackId, bool), (u64, u64)> = FxHashMap::default();
        for (number, block) in (0u32..).zip(&trace.blocks).filter(|(at, _)| is_live[*at as usize]) {
            live.bytes += block.size;
            live.blocks += 1;
            if block.size > 0 {
                *live.by_size.entry(1 << block.size.ilog2()).or_default() += block.size;
            }
            if trace.is_refused(number) {
                live.refused += block.size;
            }
            if program.free == FreeWhen::Completed && waits.contains(&number) {
                live.waiting += block.size;
                live.waiting_blocks += 1;
                continue;
            }
            let sum = by_stack.entry((block.stack, before.contains(&number))).or_default();
            *sum = (sum.0 + block.size, sum.1 + 1);
        }
        if !trace.stacks.is_empty() {
            live.tags = by_tag(trace, &by_stack);
            live.sites = named(trace, by_stack);
            live.add_waiting();
        }
        live
    }

    /// What the program has freed is nobody's: a row of its own.
    fn add_waiting(&mut self) {
        let Self { waiting: bytes, waiting_blocks: blocks, .. } = *self;
        if blocks == 0 {
            return;
        }
        if !self.tags.is_empty() {
            self.tags.push(Tag { tag: Some(WAITING.to_owned()), bytes, blocks });
            self.tags.sort_by_key(|tag| std::cmp::Reverse(tag.bytes));
        }
        self.sites.push(Site { tag: None, site: WAITING.to_owned(), bytes, blocks });
        self.sites.sort_by_key(|site| std::cmp::Reverse(site.bytes));
    }
}

/// The bytes that are live under each tag when most is requested, the most first: of all tags, outermost first.
pub fn tags_at_peak(trace: &Trace, program: &Program) -> Vec<(Vec<String>, u64)> {
    let is_live = live_after(program, program.peak_requested().1 + 1);
    let mut by_stack: FxHashMap<StackId, u64> = FxHashMap::default();
    for (block, _) in trace.blocks.iter().zip(is_live).filter(|(_, is_live)| *is_live) {
        *by_stack.entry(block.stack).or_default() += block.size;
    }
    let mut tags: BTreeMap<Vec<String>, u64> = BTreeMap::new();
    for (stack, bytes) in by_stack {
        *tags.entry(tags_of(trace, stack)).or_default() += bytes;
    }
    let mut tags: Vec<_> = tags.into_iter().collect();
    tags.sort_by_key(|(_, bytes)| std::cmp::Reverse(*bytes));
    tags
}

/// The blocks that the program has freed after so many ops, and that wait for other streams.
pub(crate) fn waiting_after(trace: &Trace, ops: usize) -> FxHashSet<u32> {
    let mut waits = FxHashSet::default();
    for op in &trace.ops[..ops] {
        match op.kind {
            OpKind::FreeRequested => waits.insert(op.block),
            OpKind::FreeCompleted => waits.remove(&op.block),
            OpKind::Alloc => false,
        };
    }
    waits
}

/// How many ops of the trace these steps of its program are.
pub(crate) fn ops_of(trace: &Trace, program: &Program, steps: usize) -> usize {
    let Some(last) = steps.checked_sub(program.before + 1) else { return 0 };
    let freeing = program.free.kind();
    let replayed =
        trace.ops.iter().enumerate().filter(|(_, op)| op.kind == OpKind::Alloc || op.kind == freeing);
    replayed.map(|(at, _)| at + 1).nth(last).unwrap_or(trace.ops.len())
}

/// Which blocks are live after so many steps.
fn live_after(program: &Program, steps: usize) -> Vec<bool> {
    let mut is_live = vec![false; program.blocks];
    for step in program.steps.iter().take(steps) {
        is_live[step.block as usize] = step.alloc;
    }
    is_live
}

fn by_tag(trace: &Trace, by_stack: &FxHashMap<(StackId, bool), (u64, u64)>) -> Vec<Tag> {
    let mut tags: BTreeMap<Option<String>, (u64, u64)> = BTreeMap::new();
    for ((stack, _), (bytes, blocks)) in by_stack {
        let sum = tags.entry(tag(trace, *stack)).or_default();
        *sum = (sum.0 + bytes, sum.1 + blocks);
    }
    if tags.keys().all(Option::is_none) {
        return Vec::new();
    }
    let mut tags: Vec<_> =
        tags.into_iter().map(|(tag, (bytes, blocks))| Tag { tag, bytes, blocks }).collect();
    tags.sort_by_key(|tag| std::cmp::Reverse(tag.bytes));
    tags.truncate(MOST_SITES);
    tags
}

/// Tag and call site of a block.
fn owner(trace: &Trace, (stack, before): (StackId, bool)) -> (Option<String>, String) {
    let places = places(trace, stack);
    let site = if places.is_empty() { without_stack(before).to_owned() } else { joined(&places) };
    (tag(trace, stack), site)
}

fn named(trace: &Trace, by_stack: FxHashMap<(StackId, bool), (u64, u64)>) -> Vec<Site> {
    let mut by_site: FxHashMap<(Option<String>, String), (u64, u64)> = FxHashMap::default();
    for ((stack, before), (bytes, blocks)) in by_stack {
        let sum = by_site.entry(owner(trace, (stack, before))).or_default();
        *sum = (sum.0 + bytes, sum.1 + blocks);
    }
    let mut sites: Vec<_> =
        by_site.into_iter().map(|((tag, site), (bytes, blocks))| Site { tag, site, bytes, blocks }).collect();
    sites.sort_by(|one, other| other.bytes.cmp(&one.bytes).then_with(|| one.name().cmp(&other.name())));
    sites.truncate(MOST_SITES);
    sites
}

/// The call site of a stack under its tags, where it was recorded.
pub(crate) fn site_of(trace: &Trace, stack: StackId) -> Option<String> {
    let tag = tags_of(trace, stack).into_iter().filter(|tag| tag != REFUSED).collect::<Vec<_>>().join("/");
    let site = joined(&places(trace, stack));
    match (tag.is_empty(), site.is_empty()) {
        (true, true) => None,
        (true, false) => Some(site),
        (false, true) => Some(tag),
        (false, false) => Some(format!("{tag}: {site}")),
    }
}

/// What is said of a block without a call stack.
pub(crate) fn without_stack(before: bool) -> &'static str {
    if before { "(allocated before the recording)" } else { "(no call stack recorded)" }
}

/// The tags of a stack, outermost first.
pub(crate) fn tag(trace: &Trace, stack: StackId) -> Option<String> {
    let tags = tags_of(trace, stack);
    (!tags.is_empty()).then(|| tags.join("/"))
}

fn tags_of(trace: &Trace, stack: StackId) -> Vec<String> {
    let tags = trace.stacks.frames(stack).filter(|frame| frame.is_tag());
    let mut tags: Vec<_> = tags.map(|frame| frame.name.to_string()).collect();
    tags.reverse();
    tags
}

/// Frames of a call site that are told: where memory is asked for through a helper, its caller says more.
const MOST_FRAMES: usize = 3;

/// One function of a call site.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Place {
    /// Its name, without type parameters.
    pub(crate) function: String,
    /// The source file's name, without its folders.
    pub(crate) file: String,
    /// 0 where it is not known.
    pub(crate) line: u32,
}

/// A call site as reports name it: `inner (a.py:1) < outer (b.py:2)`.
pub(crate) fn joined(places: &[Place]) -> String {
    let line = |place: &Place| match place.line {
        0 => format!("{} ({})", place.function, place.file),
        line => format!("{} ({}:{line})", place.function, place.file),
    };
    places.iter().map(line).collect::<Vec<_>>().join(" < ")
}

/// The innermost frames that are the program's own, else the innermost of all. Empty where no stack was recorded.
pub(crate) fn places(trace: &Trace, stack: StackId) -> Vec<Place> {
    let frames = || trace.stacks.frames(stack).filter(|frame| !frame.is_tag());
    let place = |frame: &Frame| Place {
        function: without_generics(&frame.name).to_owned(),
        file: frame.file.rsplit('/').next().unwrap_or(&frame.file).to_owned(),
        line: frame.line,
    };
    let own: Vec<_> = frames().filter(|frame| !is_runtime(frame)).take(MOST_FRAMES).map(place).collect();
    if own.is_empty() { frames().next().map(place).into_iter().collect() } else { own }
}

/// `zeroed` of `zeroed<f64>`: a type parameter may be longer than a line.
fn without_generics(name: &str) -> &str {
    match name.find('<') {
        // `<module>` and `<T as Trait>::name` are names.
        None | Some(0) => name,
        Some(at) => name[..at].trim_end_matches("::"),
    }
}

/// Whether a frame is of Rust's, C++'s, CUDA's, Python's or PyTorch's own code, of an installed library, or has no line.
pub(crate) fn is_runtime(frame: &Frame) -> bool {
    const FOLDERS: [&str; 17] = [
        "/rustc/",
        "/lib/rustlib/",
        "/.cargo/registry/",
        "/.cargo/git/",
        "/site-packages/",
        "/dist-packages/",
        "/lib/python3",
        "<frozen ",
        "/aten/src/",
        "/c10/",
        "/torch/csrc/",
        "/csu/",
        "/include/c++/",
        "/include/cuda/",
        "/include/rmm/",
        "/include/thrust/",
        // What `millpond train` asks the pool through.
        "/crates/baselines/src/",
    ];
    const NAMES: [&str; 17] = [
        "std::",
        "core::",
        "alloc::",
        "<std::",
        "<core::",
        "<alloc::",
        "__rust",
        "millpond::",
        "<millpond::",
        "millpond_python::",
        "mempool::",
        "__gnu_cxx::",
        "cub::",
        "cuda::",
        "rmm::",
        "thrust::",
        "pyo3::",
    ];
    frame.file.is_empty()
        || &*frame.file == "??"
        || FOLDERS.iter().any(|folder| frame.file.contains(folder))
        || NAMES.iter().any(|name| frame.name.starts_with(name))
        || is_interpreter(frame)
}

/// Whether a frame is of CPython itself, by its names and by where its source lies: what the program wrote is the Python
/// that it runs.
fn is_interpreter(frame: &Frame) -> bool {
    const FOLDERS: [&str; 5] = ["Python", "Objects", "Parser", "Programs", "Modules"];
    let name = frame.name.trim_start_matches('_');
    let is_api = name
        .strip_prefix("Py")
        .is_some_and(|rest| rest.starts_with(|c: char| c == '_' || c.is_ascii_uppercase()));
    let mut path = frame.file.rsplit('/');
    let is_c = path.next().is_some_and(|file| file.ends_with(".c") || file.ends_with(".h"));
    let folder = path.next().unwrap_or_default();
    is_api && !frame.file.ends_with(".py") || is_c && FOLDERS.contains(&folder)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::{Event, EventKind};
    use crate::trace::TraceBuilder;

    #[test]
    fn a_call_site_is_a_line_of_the_program_s_own() {
        let frame = |name: &str, file: &str| Frame { name: name.into(), file: file.into(), line: 7 };
        let runtime = [
            frame("c10::cuda::CUDACachingAllocator::malloc(void**)", "??"),
            frame("_PyEval_EvalFrameDefault", "??"),
            frame("linear", "/venv/lib/python3.12/site-packages/torch/nn/functional.py"),
            frame("run", "/usr/lib/python3.12/threading.py"),
            frame("_call_with_frames_removed", "<frozen importlib._bootstrap>"),
            frame("std::rt::lang_start", "/rustc/abc/library/std/src/rt.rs"),
            frame("<core::iter::Map<I,F> as core::iter::Iterator>::fold", "src/mine.rs"),
            frame("matmul", "/home/me/.cargo/registry/src/index/candle-core-0.9/src/tensor.rs"),
            frame("millpond::typed::buffer::Buffer<T>::new", "/src/millpond/typed/buffer.rs"),
            frame("_start", ""),
            frame("_PyEval_EvalFrameDefault", "/usr/src/python/Python/ceval.c"),
            frame("_PyEval_EvalFrameDefault", "./Python/generated_cases.c.h"),
            frame("method_vectorcall_FASTCALL_KEYWORDS", "Objects/descrobject.c"),
            frame("Py_RunMain", "/build/main.c"),
            frame("PyObject_Call", "call.c"),
            frame("torch::autograd::THPVariable_add", "/pytorch/torch/csrc/autograd/variable.cpp"),
            frame("_M_default_append", "/usr/include/c++/12/bits/vector.tcc"),
            frame("thrust::device_vector::resize", "/home/me/thrust.h"),
            frame("mempool::PoolPtr::PoolPtr", "/home/me/cuda_mempool.hpp"),
        ];
        for frame in &runtime {
            assert!(is_runtime(frame), "{frame:?}");
        }
        for own in [
            frame("forward", "/home/me/train.py"),
            frame("PyModel", "/home/me/train.py"),
            frame("Pyramid::build", "/home/me/src/pyramid.cpp"),
            frame("render", "/home/me/src/render.c"),
            frame("millpond_mlp::step", "crates/mlp/src/net.rs"),
        ] {
            assert!(!is_runtime(&own), "{own:?}");
        }
    }

    #[test]
    fn frames_of_the_interpreter_give_way_to_the_python_that_it_runs() {
        let mut builder = TraceBuilder::default();
        let mut frame = |name: &str, file: &str, line| {
            builder.stacks.add_frame(Frame { name: name.into(), file: file.into(), line })
        };
        let python = frame("forward", "/home/me/train.py", 12);
        let [one, other] =
            [5253, 4965].map(|line| frame("_PyEval_EvalFrameDefault", "/src/Python/ceval.c", line));
        // The same line of Python, through two places in the interpreter.
        for (address, through) in [(64, one), (128, other)] {
            let stack = builder.stacks.add_stack(&[through, python]);
            let (kind, size) = (EventKind::Alloc, 100);
            builder.push(Event { kind, device: 0, stream: 0, time_us: 0, address, size, stack }).unwrap();
        }
        let trace = builder.finish("t").remove(0);
        let live = Live::at_end(&trace, &Program::new(&trace, FreeWhen::Completed));
        let sites: Vec<_> = live.sites.iter().map(|site| (site.site.as_str(), site.blocks)).collect();
        assert_eq!(sites, [("forward (train.py:12)", 2)]);
    }

    #[test]
    fn what_was_freed_and_waits_is_a_row_of_its_own() {
        let mut builder = TraceBuilder::default();
        let frame = builder.stacks.add_frame(Frame { name: "copy".into(), file: "a.py".into(), line: 7 });
        let stack = builder.stacks.add_stack(&[frame]);
        let mut push = |kind, address, size| {
            builder.push(Event { kind, device: 0, stream: 0, time_us: 0, address, size, stack }).unwrap();
        };
        push(EventKind::Alloc, 64, 100);
        push(EventKind::Alloc, 256, 10);
        push(EventKind::FreeRequested, 64, 100);
        let trace = builder.finish("t").remove(0);
        let of = |free| {
            let live = Live::at_end(&trace, &Program::new(&trace, free));
            let rows: Vec<_> = live.sites.iter().map(|site| (site.site.clone(), site.bytes)).collect();
            (rows, live.waiting, live.bytes)
        };
        let own = ("copy (a.py:7)".to_owned(), 10);
        assert_eq!(of(FreeWhen::Completed), (vec![(WAITING.to_owned(), 100), own.clone()], 100, 110));
        assert_eq!(of(FreeWhen::Requested), (vec![own], 0, 10));
        let peak = Live::at_peak(&trace, &Program::new(&trace, FreeWhen::Completed));
        assert_eq!(peak.waiting, 0, "it was freed afterwards");
    }

    #[test]
    fn names_lose_their_type_parameters() {
        let names = ["zeroed<f64>", "<module>", "<T as New>::new", "Vec::<u8>::push", "run"];
        assert_eq!(names.map(without_generics), ["zeroed", "<module>", "<T as New>::new", "Vec", "run"]);
    }
}
