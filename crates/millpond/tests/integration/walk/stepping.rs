//! Which files a call enters: the thread runs it one instruction at a time, and notes where each of them lies.

use std::arch::asm;
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{c_int, c_void};
use std::mem::zeroed;
use std::ops::RangeInclusive;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::{fs, ptr};

/// The instructions of the call: a miss takes less than a tenth of these.
static TAKEN: [AtomicUsize; 1 << 22] = [const { AtomicUsize::new(0) }; 1 << 22];
static COUNT: AtomicUsize = AtomicUsize::new(0);

/// The processor's flag for a trap after each instruction, which the system makes a signal of.
const TRAP: u32 = 1 << 8;

extern "C" fn note(_: c_int, _: *mut libc::siginfo_t, context: *mut c_void) {
    // SAFETY: the system says where the thread was interrupted.
    let at = unsafe { (*context.cast::<libc::ucontext_t>()).uc_mcontext.gregs[libc::REG_RIP as usize] };
    // Relaxed: one thread.
    if let Some(taken) = TAKEN.get(COUNT.fetch_add(1, Ordering::Relaxed)) {
        taken.store(at as usize, Ordering::Relaxed);
    }
}

/// The addresses of the instructions that a call takes, each once. To be called once in a process.
fn instructions_of(call: impl FnOnce()) -> BTreeSet<usize> {
    // SAFETY: the handler does what a handler may, and nobody else in this process uses the signal. Of the flags, only the one changes.
    unsafe {
        let mut action: libc::sigaction = zeroed();
        action.sa_sigaction = note as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO;
        assert_eq!(libc::sigaction(libc::SIGTRAP, &action, ptr::null_mut()), 0);
        asm!("pushfq", "or dword ptr [rsp], {}", "popfq", const TRAP);
    }
    call();
    // SAFETY: as above.
    unsafe { asm!("pushfq", "and dword ptr [rsp], {}", "popfq", const !TRAP as i32) };
    let count = COUNT.load(Ordering::Relaxed);
    assert!((1..TAKEN.len()).contains(&count), "{count} instructions");
    TAKEN[..count].iter().map(|taken| taken.load(Ordering::Relaxed)).collect()
}

/// The lines that these instructions are of, by the library's files.
fn lines_of(instructions: &BTreeSet<usize>) -> BTreeMap<String, BTreeSet<usize>> {
    let mut lines: BTreeMap<String, BTreeSet<usize>> = BTreeMap::new();
    for at in instructions {
        // Of functions that were inlined into each other, the innermost comes first.
        let mut is_innermost = true;
        // What is looked up is the byte before: addresses are taken for those that calls return to.
        backtrace::resolve(ptr::without_provenance_mut(at + 1), |symbol| {
            let path = symbol.filename().and_then(Path::to_str);
            let file = path.and_then(|path| path.split("crates/millpond/src/").nth(1));
            if let Some((file, line)) = file.zip(symbol.lineno())
                && is_innermost
            {
                lines.entry(file.to_owned()).or_default().insert(line as usize);
            }
            is_innermost = false;
        });
    }
    lines
}

/// The functions of a file, and the lines between the braces of each. The file is formatted: the brace that ends a function is
/// indented as its head is.
fn functions_of(file: &Path) -> Vec<(String, RangeInclusive<usize>)> {
    let text = fs::read_to_string(file).unwrap();
    let lines: Vec<&str> = text.lines().collect();
    let indent = |line: &str| line.len() - line.trim_start().len();
    let heads = lines.iter().enumerate().filter_map(|(first, head)| {
        let (before, name) = head.split_once("fn ")?;
        let words = ["pub", "pub(super)", "pub(crate)", "pub(in", "const", "unsafe", "extern", "\"C\""];
        let is_head = |word: &str| words.contains(&word) || word.starts_with("crate::");
        before.split_whitespace().all(is_head).then_some(())?;
        let end = (first..lines.len())
            .find(|at| indent(lines[*at]) == indent(head) && lines[*at].ends_with('}'))?;
        let begin = (first..end).find(|at| lines[*at].ends_with('{'))?;
        let name = name.split(['(', '<']).next()?;
        // Lines are counted from 1.
        Some((name.to_owned(), begin + 2..=end))
    });
    heads.collect()
}

/// The files below `src` that a call enters, and which of their functions: those of which more than three lines run. To be called
/// once in a process.
pub(super) fn files_entered(src: &Path, call: impl FnOnce()) -> BTreeMap<String, BTreeSet<String>> {
    let mut entered: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for (file, lines) in lines_of(&instructions_of(call)) {
        for (name, range) in functions_of(&src.join(&file)) {
            if lines.range(range).count() > 3 {
                entered.entry(file.clone()).or_default().insert(name);
            }
        }
    }
    entered
}
