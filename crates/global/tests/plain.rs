//! The same program without the line: its memory is the driver's.

mod jobs;

#[test]
fn without_the_line_memory_is_the_drivers() {
    jobs::succeeds("program_pairs", &[]);
}

#[test]
#[ignore = "a program, run by the test above"]
fn program_pairs() {
    let _context = jobs::pairs();
    assert_eq!(jobs::drivers_allocations(), 300);
    assert_eq!(jobs::calls(&[c"cuMemCreate"]), 0);
}

#[test]
fn in_a_shared_library_the_line_leaves_memory_to_others() {
    jobs::succeeds(
        "program_opens_a_library",
        &[("SAYS", "Put `use millpond_global as _;` into the program")],
    );
    let test = std::env::current_exe().expect("a running test has a path");
    let preloaded = test.parent().expect("it lies in a folder").join("libmillpond_run.so");
    let preloaded = preloaded.to_str().expect("UTF-8");
    jobs::succeeds(
        "program_opens_a_library",
        &[("LD_PRELOAD", preloaded), ("SAYS", "the pools are those of `millpond run`")],
    );
}

#[test]
#[ignore = "a program, run by the test above"]
fn program_opens_a_library() {
    let test = std::env::current_exe().expect("a running test has a path");
    let library =
        test.parent().and_then(|deps| deps.parent()).expect("cargo's folder").join("examples/liblibrary.so");
    assert!(library.exists(), "cargo builds it with all tests of this crate: cargo test -p millpond-global");
    let path = std::ffi::CString::new(library.to_str().expect("UTF-8")).expect("no zero");
    let _context = jobs::pairs();
    let mut said = [0_u8; 512];
    // SAFETY: the library's function has this type, and as much room as it is told.
    let has_pool = unsafe {
        let library = libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL);
        let has_pool = libc::dlsym(library, c"has_pool".as_ptr());
        assert!(!has_pool.is_null());
        type HasPool = unsafe extern "C" fn(*mut u8, usize) -> usize;
        std::mem::transmute::<*mut std::ffi::c_void, HasPool>(has_pool)(said.as_mut_ptr(), said.len())
    };
    let said = String::from_utf8_lossy(&said);
    assert!(has_pool == 0 && said.contains(&std::env::var("SAYS").expect("the test says it")), "{said}");
}
