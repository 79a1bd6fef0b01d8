//! Frames of a call stack: what they are called, and which of them are the program's own.

use std::ffi::{CStr, CString, c_char, c_int};
use std::ptr;

use super::called_from::SourceFrame;

/// The name of a function as its source has it. C++ names go without parameters, and without what is returned.
pub(super) fn readable(name: String) -> String {
    let of_cpp = name.starts_with("_Z").then(|| demangled(&name)).flatten();
    of_cpp.map_or(name, |whole| without_parameters(&whole).to_owned())
}

/// By the runtime of C++, which a program has whose functions have such names. `None` where it is linked without its symbols.
fn demangled(name: &str) -> Option<String> {
    type Demangle = unsafe extern "C" fn(*const c_char, *mut c_char, *mut usize, *mut c_int) -> *mut c_char;
    let name = CString::new(name).ok()?;
    // SAFETY: a name that ends, looked for in what is loaded.
    let found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"__cxa_demangle".as_ptr()) };
    // SAFETY: null is `None`, and the C++ ABI says what the function of this name is.
    let demangle = unsafe { std::mem::transmute::<*mut libc::c_void, Option<Demangle>>(found) }?;
    // SAFETY: the name ends, and without a buffer it makes one. Null for what is no such name.
    let text = unsafe { demangle(name.as_ptr(), ptr::null_mut(), ptr::null_mut(), ptr::null_mut()) };
    if text.is_null() {
        return None;
    }
    // SAFETY: a text that ends, made by `malloc` for its caller, and not used after this.
    unsafe {
        let owned = CStr::from_ptr(text).to_str().ok().map(str::to_owned);
        libc::free(text.cast());
        owned
    }
}

/// `nn::Net::grow` of `void nn::Net::grow<int>(millpond::Pool const&) const`.
fn without_parameters(whole: &str) -> &str {
    let mut depth = 0;
    let mut is_open = |(_, character): &(usize, char)| {
        depth += match character {
            ')' => 1,
            '(' => -1,
            _ => 0,
        };
        depth == 0 && *character == '('
    };
    let name = match whole.rfind(')') {
        // Behind the parameters comes nothing, or a qualifier.
        Some(close) if whole[close + 1..].is_empty() || whole[close + 1..].starts_with(' ') => {
            match whole[..=close].char_indices().rev().find(&mut is_open) {
                Some((open, _)) if open > 0 => &whole[..open],
                _ => whole,
            }
        }
        _ => whole,
    };
    // What is returned stands before a space that is in no brackets. An operator's name may have one, and any bracket.
    let (mut depth, mut start) = (0, 0);
    for (at, character) in name[..name.find("operator").unwrap_or(name.len())].char_indices() {
        match character {
            '<' | '(' | '{' | '[' => depth += 1,
            '>' | ')' | '}' | ']' => depth -= 1,
            ' ' if depth == 0 => start = at + 1,
            _ => {}
        }
    }
    &name[start..]
}

/// The first frame that is the program's own. The innermost ones take the stack, and then come this library's. Containers and
/// other libraries that allocate for the program may stand between. Where a request came through C or Python, so do frames of
/// Rust's standard library.
pub(super) fn of_program(frames: &[SourceFrame]) -> usize {
    let behind = |at: usize, is: fn(&SourceFrame) -> bool| {
        at + frames[at..].iter().position(|frame| !is(frame)).unwrap_or(frames.len() - at)
    };
    let first = frames.iter().position(is_ours).unwrap_or(0);
    let program = behind(first, |frame| is_ours(frame) || is_of_libraries(frame));
    // Nothing is left where a library's own thread allocates: its frames say more than none.
    if program < frames.len() { program } else { behind(first, is_ours) }
}

/// Whether the frame is of this library or its interfaces. The file tells: debug information with line tables only
/// names inlined functions without their modules.
pub(super) fn is_ours(frame: &SourceFrame) -> bool {
    const HEADERS: [&str; 3] = ["millpond.hpp", "millpond_resources.hpp", "cuda_mempool.hpp"];
    const STARTS: [&str; 7] = [
        "millpond::",
        "<millpond::",
        "millpond_capi::",
        "<millpond_capi::",
        "millpond_entry_points::",
        "<millpond_entry_points::",
        "mempool::",
    ];
    // As debug information has it, but for what may stand before it.
    let here = file!().strip_suffix("/src/record/frames.rs").unwrap_or("crates/millpond");
    let folders = here.rsplit_once('/').map_or("", |(folders, _)| folders);
    let within = |folder: &str, name: &str| {
        let at = frame.file.find(&format!("{folder}{name}/src/"));
        at.is_some_and(|at| at == 0 || frame.file[..at].ends_with('/'))
    };
    let file = frame.file.rsplit('/').next().unwrap_or_default();
    let is_c_function = frame.name.starts_with("millpond_") && !frame.name.contains("::");
    within(here, "")
        || ["/capi", "/python", "/entry-points"].iter().any(|name| within(folders, name))
        || is_c_function
        || HEADERS.contains(&file)
        || STARTS.iter().any(|start| frame.name.starts_with(start))
}

/// Whether the frame is of a library that allocates for whoever calls it: the standard libraries of Rust and C++, what comes with
/// CUDA, and RMM.
fn is_of_libraries(frame: &SourceFrame) -> bool {
    const NAMES: [&str; 12] = [
        "std::",
        "<std::",
        "core::",
        "<core::",
        "alloc::",
        "<alloc::",
        "__gnu_cxx::",
        "__cxxabi",
        "thrust::",
        "cub::",
        "cuda::",
        "rmm::",
    ];
    const FOLDERS: [&str; 5] =
        ["/include/c++/", "/include/thrust/", "/include/cub/", "/include/cuda/", "/include/rmm/"];
    // The driver's and the runtime's, of which nobody has the source.
    const OF_CUDA: [&str; 6] = ["cuMem", "cudaMalloc", "cudaMem", "cudaHostAlloc", "cudaFree", "__cudart"];
    let starts_with = |starts: &[&str]| starts.iter().any(|start| frame.name.starts_with(start));
    is_of_standard_library(&frame.name, &frame.file)
        || starts_with(&NAMES)
        || FOLDERS.iter().any(|folder| frame.file.contains(folder))
        || frame.file.is_empty() && starts_with(&OF_CUDA)
}

/// Whether a function in this file is of Rust's standard library or its runtime.
pub(super) fn is_of_standard_library(name: &str, file: &str) -> bool {
    file.starts_with("/rustc/") || file.contains("/lib/rustlib/") || name.starts_with("__rust")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(name: &str, file: &str) -> SourceFrame {
        SourceFrame::new(name, file, 1)
    }

    fn standard(name: &str) -> SourceFrame {
        frame(name, "/rustc/0123/library/std/src/panicking.rs")
    }

    fn ours(name: &str, crate_: &str, file: &str) -> SourceFrame {
        let here = env!("CARGO_MANIFEST_DIR");
        frame(name, &format!("{here}/../{crate_}{file}").replace("/millpond/..", ""))
    }

    #[test]
    fn frames_between_the_program_and_the_pool_are_left_out() {
        let through_c = [
            frame("trace<closure>", "/home/me/.cargo/registry/backtrace/src/lib.rs"),
            ours("current_site", "millpond", "/src/record/labels.rs"),
            ours("alloc_slow", "millpond", "/src/core/allocating.rs"),
            ours("{closure#0}", "capi", "/src/memory.rs"),
            standard("do_call<closure>"),
            frame("__rust_try", ""),
            standard("catch_unwind<closure>"),
            ours("boundary", "capi", "/src/failure.rs"),
            frame("millpond_alloc", ""),
            frame("train", "/home/me/train.c"),
            standard("lang_start"),
            ours("somewhere", "millpond", "/src/pool/mod.rs"),
        ];
        assert_eq!(&*through_c[of_program(&through_c)].name, "train");
        let example =
            [ours("a", "millpond", "/src/pool/mod.rs"), ours("main", "millpond", "/examples/buffers.rs")];
        assert_eq!(of_program(&example), 1);
    }

    #[test]
    fn frames_of_libraries_give_way_to_who_calls_them() {
        let cpp = [
            frame("millpond_alloc", ""),
            frame("millpond::MemoryResource::do_allocate", "/usr/include/millpond.hpp"),
            frame("allocate", "/opt/include/millpond.hpp"),
            frame("std::pmr::memory_resource::allocate", "/usr/include/c++/12/bits/memory_resource.h"),
            frame("_M_default_append", "/usr/include/c++/12/bits/vector.tcc"),
            frame("nn::Net::grow", "/home/me/net.cpp"),
            frame("std::thread::_State_impl::_M_run", "/usr/include/c++/12/thread"),
        ];
        assert_eq!(of_program(&cpp), 5);
        let rmm = [
            ours("alloc", "millpond", "/src/pool/mod.rs"),
            frame("rmm::device_buffer::allocate_async", "/opt/rmm/device_buffer.hpp"),
            frame("thrust::detail::vector_base::resize", ""),
            frame("train", "/home/me/train.cu"),
        ];
        assert_eq!(of_program(&rmm), 3);
        let under_run = [
            ours("alloc", "millpond", "/src/pool/mod.rs"),
            ours("cuMemAllocAsync", "entry-points", "/src/entry_points.rs"),
            frame("__cudart1234", ""),
            frame("cudaMallocAsync", ""),
            frame("train", ""),
        ];
        assert_eq!(of_program(&under_run), 4);
        let rust = [
            ours("alloc", "millpond", "/src/pool/mod.rs"),
            standard("sort_by_key"),
            frame("<alloc::vec::Vec<T> as core::iter::Extend<T>>::extend", ""),
            frame("plan", "/home/me/plan.rs"),
        ];
        assert_eq!(of_program(&rust), 3);
        assert_eq!(of_program(&rust[..3]), 1, "nobody else is there");
        assert_eq!(of_program(&rust[3..]), 0);
        let own = [ours("alloc", "millpond", "/src/pool/mod.rs"), frame("std_deviation", "/home/me/a.cpp")];
        assert_eq!(of_program(&own), 1);
    }

    #[test]
    fn names_of_cpp_go_without_their_parameters() {
        for (whole, name) in [
            (
                "millpond::Pool::allocate(unsigned long, millpond::StreamRef) const",
                "millpond::Pool::allocate",
            ),
            ("nn::Layer<float>::Layer(millpond::Pool const&)", "nn::Layer<float>::Layer"),
            (
                "std::unique_ptr<int, std::default_delete<int> > std::make_unique<int>()",
                "std::make_unique<int>",
            ),
            ("unsigned long sum<int>(int (*)(char)) [clone .isra.0]", "sum<int>"),
            ("main::{lambda(int)#1}::operator()(int) const", "main::{lambda(int)#1}::operator()"),
            ("train(int)::Local::step(char)", "train(int)::Local::step"),
            ("train(int)::local", "train(int)::local"),
            ("(anonymous namespace)::fill(float*)", "(anonymous namespace)::fill"),
            ("(anonymous namespace)", "(anonymous namespace)"),
            ("bool nn::operator< <int>(nn::A const&, int)", "nn::operator< <int>"),
            ("A::operator unsigned long() const", "A::operator unsigned long"),
            ("main", "main"),
        ] {
            assert_eq!(without_parameters(whole), name);
        }
        for plain in ["millpond_alloc", "_Znonsense", ""] {
            assert_eq!(readable(plain.to_owned()), plain);
        }
    }
}
