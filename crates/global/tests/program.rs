//! Programs with the line, over a stand-in for the driver. Each is this test itself, in a process of its own.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr;
use std::time::Duration;

use cudarc::driver::{CudaContext, DevicePtr, sys};
use millpond::{Error, Keep};

mod jobs;

const MIB: u64 = 1 << 20;

macro_rules! programs {
    ($($(#[$about:meta])* $test:ident runs $program:ident with [$($variable:literal = $value:expr),*] $body:block)*) => {
        $($(#[$about])*
        #[test]
        fn $test() {
            jobs::succeeds(stringify!($program), &[$(($variable, $value)),*]);
        }

        #[test]
        #[ignore = "a program, run by the test before it"]
        fn $program() $body)*
    };
}

/// An allocation of the program's on GPU 0, which stays.
fn allocate(context: &std::sync::Arc<CudaContext>, bytes: usize) -> Result<(), cudarc::driver::DriverError> {
    // SAFETY: nobody reads it.
    unsafe { context.default_stream().alloc::<u8>(bytes) }.map(|slice| _ = slice.leak())
}

programs! {
    cudarc_gets_its_memory_from_the_pool runs program_pairs with [] {
        let _context = jobs::pairs();
        assert_eq!(jobs::drivers_allocations(), 0);
        let stats = millpond_global::pool(0).expect("it serves the program").stats();
        assert_eq!((stats.allocations, stats.frees), (300, 300));
    }

    /// The functions that the executable itself defines, as where it is linked with libcuda.
    a_linked_program_calls_the_same_functions runs program_linked with [] {
        unsafe extern "C" {
            fn cuMemAllocAsync(at: *mut u64, bytes: usize, stream: *mut c_void) -> c_int;
            fn cuMemFreeAsync(at: u64, stream: *mut c_void) -> c_int;
            fn cuMemGetInfo_v2(free: *mut usize, total: *mut usize) -> c_int;
        }
        let context = CudaContext::new(0).unwrap();
        // candle's stream is the thread's own.
        for stream in [ptr::without_provenance_mut(2), context.new_stream().unwrap().cu_stream().cast()] {
            let (mut at, mut free, mut total) = (0, 0, 0);
            // SAFETY: these are the driver's functions, and their arguments are valid.
            unsafe {
                assert_eq!(cuMemAllocAsync(&mut at, 5 << 20, stream), 0);
                assert_eq!(cuMemFreeAsync(at, stream), 0);
                assert_eq!(cuMemGetInfo_v2(&mut free, &mut total), 0);
            }
            // What the pool has ready is free.
            assert_eq!((free, total), (1 << 30, 1 << 30));
        }
        assert_eq!(jobs::drivers_allocations(), 0);
        assert_eq!(millpond_global::pool(0).unwrap().stats().allocations, 2);
    }

    /// The handle of the default stream is the same on each GPU.
    a_default_stream_is_of_the_threads_gpu runs program_of_two_gpus with [] {
        let contexts = [0, 1].map(|gpu| CudaContext::new(gpu).unwrap());
        for turn in 0..100 {
            // SAFETY: nobody reads them.
            let slices = contexts.each_ref().map(|of| unsafe { of.default_stream().alloc::<u8>(1 << 20) }.unwrap());
            // The one that is freed first may be of the other GPU than the thread's.
            contexts[turn % 2].bind_to_thread().unwrap();
            drop(slices);
        }
        assert_eq!(jobs::drivers_allocations() + jobs::calls(&[c"cuMemFreeAsync"]), 0);
        for gpu in [0, 1] {
            let stats = millpond_global::pool(gpu).unwrap().stats();
            assert_eq!((stats.allocations, stats.frees), (100, 100), "GPU {gpu}");
        }
    }

    the_pool_can_be_asked_before_the_first_cuda_call runs program_asks_first with [] {
        let pool = millpond_global::pool(0).expect("the stand-in has a GPU");
        let _context = jobs::pairs();
        assert_eq!((pool.stats().allocations, jobs::drivers_allocations()), (300, 0));
        assert!(millpond_global::pool(7).is_err(), "there are two GPUs");
    }

    /// The last release of the context would end the pool, and free the blocks of buffers.
    buffers_of_the_pool_outlive_the_programs_context runs program_drops_its_context with [] {
        let context = jobs::pairs();
        let pool = millpond_global::pool(0).unwrap();
        let stream = pool.create_stream().unwrap();
        let buffer = millpond::Buffer::from_slice(&pool, &[1_u32, 2, 3], &stream).unwrap();
        drop(context);
        assert_eq!(buffer.to_vec().unwrap(), [1, 2, 3]);
        assert_eq!(pool.stats().blocks.current, 1);
    }

    a_pool_that_the_program_builds_itself_is_beside_it runs program_with_its_own_pool with [] {
        // First: what its device calls is the driver's, and no request of the program's.
        let own = millpond::Context::cuda(0).expect("the stand-in has a GPU");
        let own = millpond::Pool::builder(&own).build().unwrap();
        let stream = own.create_stream().unwrap();
        let block = millpond::Buffer::<u8>::new(&own, 3 << 20, &stream).unwrap();
        let context = jobs::pairs();
        assert_eq!(jobs::drivers_allocations(), 0);
        assert_eq!(millpond_global::pool(0).unwrap().stats().allocations, 300);
        drop((block, stream, own, context));
    }

    a_runtime_that_looks_for_the_driver_itself_is_reached runs program_opens_a_runtime with ["HOW" = "handle"] {
        let how = std::ffi::CString::new(std::env::var("HOW").unwrap()).unwrap();
        // SAFETY: the library was built for this, and its function takes a text. It ends the program where it finds a fault.
        unsafe {
            let library = libc::dlopen(c"./libcudart-test.so".as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL);
            let come = libc::dlsym(library, c"come_by_library".as_ptr());
            assert!(!come.is_null());
            std::mem::transmute::<*mut c_void, unsafe extern "C" fn(*const c_char)>(come)(how.as_ptr());
        }
        assert_eq!(millpond_global::pool(0).unwrap().stats().allocations, 3);
    }

    a_library_that_is_linked_with_the_driver_is_reached runs program_opens_a_plugin with [] {
        let context = CudaContext::new(0).unwrap();
        let mut at = 0;
        // SAFETY: as above.
        unsafe {
            let library = libc::dlopen(c"./plugin.so".as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL);
            let [allocates, frees] = [c"plugin_allocate", c"plugin_free"].map(|name| libc::dlsym(library, name.as_ptr()));
            assert!(!allocates.is_null() && !frees.is_null());
            type Allocates = unsafe extern "C" fn(*mut u64) -> c_int;
            assert_eq!(std::mem::transmute::<*mut c_void, Allocates>(allocates)(&mut at), 0);
            assert_eq!(std::mem::transmute::<*mut c_void, unsafe extern "C" fn(u64) -> c_int>(frees)(at), 0);
        }
        assert_eq!(millpond_global::pool(0).unwrap().stats().frees, 1);
        assert_eq!(jobs::drivers_allocations(), 0);
        drop(context);
    }

    options_are_the_programs runs program_with_options with [] {
        let recording = std::env::current_dir().unwrap().join("options.%p.mprec");
        millpond_global::options().limit(100 * MIB).decay(Duration::ZERO).record(recording).set().expect("it is early");
        let context = CudaContext::new(0).unwrap();
        allocate(&context, 60 << 20).expect("60 of 100 MiB");
        allocate(&context, 60 << 20).expect_err("120 of 100 MiB");
        let pool = millpond_global::pool(0).unwrap();
        assert_eq!(pool.decay(), None);
        assert!(pool.recording().is_some());
        assert!(millpond_global::options().set().is_err(), "it is late");
    }

    processes_share_a_budget runs program_with_a_budget with [] {
        let name = format!("global-test-{}", std::process::id());
        millpond_global::options().budget(&name, 100 * MIB).set().expect("it is early");
        let shared = millpond::Budget::named(&name, 100 * MIB).unwrap();
        let context = CudaContext::new(0).unwrap();
        allocate(&context, 60 << 20).expect("60 of 100 MiB");
        assert!(shared.held() >= 60 * MIB);
        std::fs::remove_file(shared.path().expect("it has a name")).unwrap();
    }

    what_the_environment_says_comes_first runs program_with_an_environment
        with ["MILLPOND_RUN_LIMIT" = "52428800", "MILLPOND_DECAY" = "7"] {
        millpond_global::options().limit(100 * MIB).decay(Duration::ZERO).set().expect("it is early");
        let context = CudaContext::new(0).unwrap();
        allocate(&context, 60 << 20).expect_err("60 of 50 MiB");
        assert_eq!(millpond_global::pool(0).unwrap().decay(), Some(Duration::from_secs(7)));
    }

    the_line_can_be_switched_off runs program_switched_off with ["MILLPOND_DISABLE" = "1"] {
        let _context = jobs::pairs();
        assert_eq!(jobs::drivers_allocations(), 300);
        let error = millpond_global::pool(0).expect_err("memory is the driver's");
        assert!(error.to_string().contains("MILLPOND_DISABLE=1"), "{error}");
    }

    without_a_driver_nothing_happens runs program_without_a_driver with ["LD_LIBRARY_PATH" = ""] {
        // SAFETY: asks for names.
        unsafe {
            assert!(libc::dlopen(c"libcuda.so.1".as_ptr(), libc::RTLD_LAZY).is_null(), "there is a driver here");
            assert!(libc::dlsym(libc::RTLD_DEFAULT, c"cuMemAlloc_v2".as_ptr()).is_null());
            assert!(!libc::dlsym(libc::RTLD_DEFAULT, c"malloc".as_ptr()).is_null());
        }
        let error = millpond_global::pool(0).expect_err("no driver");
        assert!(error.to_string().contains("no CUDA driver found"), "{error}");
    }

    // ---- what frameworks need of a pool ----

    /// cudarc's `null`, which `CudaSlice` has for none.
    an_allocation_of_no_bytes_is_as_the_drivers runs program_of_no_bytes with [] {
        let context = CudaContext::new(0).unwrap();
        let stream = context.new_stream().unwrap();
        for _ in 0..3 {
            // The stand-in refuses it, as does the call that goes past the pool.
            assert!(stream.null::<f32>().is_err());
        }
        assert_eq!(jobs::drivers_allocations(), 3);
        // SAFETY: a null pointer is freed by some.
        assert_ne!(unsafe { sys::cuMemFreeAsync(0, stream.cu_stream()) }, sys::CUresult::CUDA_SUCCESS);
    }

    /// As mistral.rs does around its captures.
    attributes_of_the_drivers_pool_can_be_set_and_set_back runs program_with_attributes with [] {
        use sys::CUmemPool_attribute as A;
        let context = CudaContext::new(0).unwrap();
        let mut pool = ptr::null_mut();
        // SAFETY: `pool` is writable.
        unsafe { sys::cuDeviceGetDefaultMemPool(&mut pool, 0) }.result().unwrap();
        let set = |which, mut value: u64| {
            // SAFETY: the attribute is of four or eight bytes.
            unsafe { sys::cuMemPoolSetAttribute(pool, which, (&raw mut value).cast()) }.result().unwrap();
        };
        let reuse = [
            A::CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES,
            A::CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC,
            A::CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES,
        ];
        let stream = context.new_stream().unwrap();
        for _ in 0..2 {
            reuse.iter().for_each(|which| set(*which, 0));
            set(A::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, u64::MAX);
            stream.begin_capture(sys::CUstreamCaptureMode_enum::CU_STREAM_CAPTURE_MODE_RELAXED).unwrap();
            // What is captured is the graph's.
            // SAFETY: nobody reads it.
            let graphs = unsafe { stream.alloc::<u8>(1 << 20) }.unwrap();
            drop(graphs);
            let mut graph = ptr::null_mut();
            // SAFETY: it is being captured.
            unsafe { sys::cuStreamEndCapture(stream.cu_stream(), &mut graph) }.result().unwrap();
            reuse.iter().for_each(|which| set(*which, 1));
            set(A::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, 0);
        }
        allocate(&context, 1 << 20).unwrap();
        assert_eq!(jobs::calls(&[c"cuMemAllocAsync"]), 2);
        assert_eq!(millpond_global::pool(0).unwrap().stats().allocations, 1);
    }

    a_graphs_memory_is_the_pools_where_the_program_keeps_it runs program_keeps_a_graphs_memory with [] {
        let context = CudaContext::new(0).unwrap();
        let stream = context.new_stream().unwrap();
        // SAFETY: nobody reads it.
        let block = || unsafe { stream.alloc::<u8>(1 << 20) }.unwrap();
        let begin = || stream.begin_capture(sys::CUstreamCaptureMode_enum::CU_STREAM_CAPTURE_MODE_RELAXED).unwrap();
        let end = || {
            let mut graph = ptr::null_mut();
            // SAFETY: it is being captured.
            unsafe { sys::cuStreamEndCapture(stream.cu_stream(), &mut graph) }.result().unwrap();
        };
        let pool = millpond_global::pool(0).unwrap();
        let memory = pool.capture_pool();
        let capturing = memory.begin(&pool.context().stream_from_cudarc(&stream).unwrap()).unwrap();
        begin();
        let (first, second) = (block(), block());
        let at = first.device_ptr(&stream).0;
        drop(first);
        let third = block();
        assert_eq!(third.device_ptr(&stream).0, at, "in the order of the capture");
        assert_eq!(memory.allocated(), 2 * MIB);
        end();
        drop(capturing);
        drop((second, third));
        drop(block());
        assert_eq!((memory.allocated(), jobs::calls(&[c"cuMemAllocAsync", c"cuMemFreeAsync"])), (0, 0));
        assert!(memory.reserved() >= 2 * MIB, "the graph has it as long as the program keeps it");
        // A capture of which nobody told the pool.
        begin();
        drop(block());
        end();
        assert_eq!(jobs::calls(&[c"cuMemAllocAsync"]), 1);
    }

    a_threads_tag_is_of_what_it_allocates runs program_with_tags with [] {
        let context = CudaContext::new(0).unwrap();
        let stream = context.new_stream().unwrap();
        // SAFETY: nobody reads it.
        let block = |bytes| unsafe { stream.alloc::<u8>(bytes) }.unwrap();
        let pairs = || (0..100).for_each(|_| drop(block(1 << 20)));
        pairs();
        let kept = {
            let _tag = millpond_global::tag("cache");
            pairs();
            {
                let _inner = millpond_global::tag("inner");
                pairs();
            }
            block(3 << 20)
        };
        pairs();
        let pool = millpond_global::pool(0).unwrap();
        let tags = ["cache", "inner"].map(|tag| pool.tagged(tag).unwrap());
        let allocations = [&pool, &tags[0], &tags[1]].map(|pool| pool.stats().allocations);
        assert_eq!(allocations, [200, 101, 100]);
        let (mut start, mut bytes) = (0, 0);
        // SAFETY: both are writable.
        unsafe { sys::cuMemGetAddressRange_v2(&mut start, &mut bytes, kept.device_ptr(&stream).0 + 5) }.result().unwrap();
        assert_eq!((start, bytes), (kept.device_ptr(&stream).0, 3 << 20));
        // Another thread has no tag, and frees what has one.
        std::thread::scope(|threads| threads.spawn(|| drop((kept, block(1 << 20)))).join().unwrap());
        assert_eq!((tags[0].stats().frees, pool.stats().allocations), (101, 201));
        assert_eq!(context.mem_get_info().unwrap(), (1 << 30, 1 << 30), "what all have ready is free");
        assert_eq!(jobs::drivers_allocations() + jobs::calls(&[c"cuMemFreeAsync"]), 0);
    }

    /// Safe code may copy to a slice at any time.
    memory_that_safe_code_uses_stays_in_place runs program_wants_to_move_memory with [] {
        let context = CudaContext::new(0).unwrap();
        let stream = context.new_stream().unwrap();
        let block = |tag| {
            let _tag = millpond_global::tag(tag);
            // SAFETY: nobody reads it.
            unsafe { stream.alloc::<u8>(1 << 20) }.unwrap()
        };
        let pool = millpond_global::pool(0).unwrap();
        // A tag may be there before its first block.
        let cache = pool.tagged("cache").unwrap();
        let _kept = block("cache");
        let on = pool.create_stream().unwrap();
        assert!(matches!(cache.evict(&on), Err(Error::CannotEvict { .. })));
        for pool in [&pool, &cache] {
            assert!(matches!(pool.sleep(Keep::InPinnedMemory), Err(Error::CannotSleep { .. })));
        }
        // SAFETY: nobody uses the memory.
        let movable = unsafe { millpond_global::movable_pool(0) }.unwrap();
        let _other = block("other");
        movable.sleep(Keep::Nothing).unwrap();
        movable.wake().unwrap();
    }

    buffers_of_both_kinds_are_one_memory runs program_converts_buffers with [] {
        use millpond::cudarc::{Buffer, Stream};
        let context = CudaContext::new(0).unwrap();
        // With a second one, cudarc records events.
        let (stream, other) = (context.new_stream().unwrap(), context.new_stream().unwrap());
        let pool = millpond_global::pool(0).unwrap();
        let device = pool.context();
        let (on, on_other) = (Stream::new(&device, &stream).unwrap(), Stream::new(&device, &other).unwrap());
        let plain = millpond::Buffer::<f32>::uninit(&pool, 1000, on.millpond()).unwrap();
        let at = plain.ptr();
        let buffer = Buffer::from_plain(plain, &on_other).unwrap();
        assert_eq!((buffer.ptr(), buffer.len(), buffer.stream().millpond()), (at, 1000, on_other.millpond()));
        assert_eq!(buffer.slice(10..20).unwrap().device_ptr(&other).0, at.raw() + 40);
        assert!(buffer.slice(10..2000).is_err());
        assert_eq!(buffer.pool().unwrap(), pool);
        let plain = buffer.into_plain().unwrap();
        assert_eq!((plain.ptr(), plain.len(), plain.stream()), (at, 1000, on_other.millpond()));
        drop(plain);
        let none = millpond::Buffer::<u8>::uninit(&pool, 0, on.millpond()).unwrap();
        assert!(Buffer::from_plain(none, &on).unwrap().into_plain().unwrap().is_empty());
        let stats = pool.stats();
        assert_eq!((stats.allocations, stats.frees), (1, 1));
        pool.check().unwrap();
    }

    /// As an engine does that sizes its cache by it.
    free_memory_counts_what_the_pool_has_ready runs program_asks_what_is_free with [] {
        let context = CudaContext::new(0).unwrap();
        let (before, total) = context.mem_get_info().unwrap();
        let stream = context.new_stream().unwrap();
        // SAFETY: nobody reads it.
        drop(unsafe { stream.alloc::<u8>(300 << 20) }.unwrap());
        let pool = millpond_global::pool(0).unwrap();
        assert!(pool.reserved().current >= 300 * MIB);
        assert_eq!(context.mem_get_info().unwrap(), (before, total));
    }
}

#[test]
fn a_runtime_is_reached_by_each_of_its_ways() {
    for how in ["runtime", "entry point", "thread"] {
        jobs::succeeds("program_opens_a_runtime", &[("HOW", how)]);
    }
}

/// A program that has the line, and is started by `millpond run` too.
#[test]
fn under_the_command_there_is_one_pool() {
    let test = std::env::current_exe().expect("a running test has a path");
    let preloaded = test.parent().expect("it lies in a folder").join("libmillpond_run.so");
    let reports = tempfile::NamedTempFile::new().expect("a file");
    let path = |path: &std::path::Path| path.to_str().expect("UTF-8").to_owned();
    let (preloaded, reported) = (path(&preloaded), path(reports.path()));
    let environment =
        [("LD_PRELOAD", preloaded.as_str()), ("MILLPOND_RUN_ACCOUNTS", &reported), ("HOW", "runtime")];
    for case in ["program_pairs", "program_linked", "program_opens_a_runtime", "program_opens_a_plugin"] {
        let Some(said) = jobs::succeeds(case, &environment) else { return };
        assert!(!said.contains("millpond:"), "{said}");
    }
    // Each told of itself, once.
    let told = std::fs::read(reports.path()).expect("it is there");
    let allocations: Vec<_> = told.chunks(16 << 10).map(allocations_told).collect();
    assert_eq!(allocations, [300, 2, 3, 1]);
}

/// What a process told in its part of the file (`crates/entry-points/src/report.rs`).
fn allocations_told(slot: &[u8]) -> u64 {
    let texts = &slot[64..];
    let text = &texts[(usize::from(slot[0]) - 1) * texts.len() / 2..];
    let text = CStr::from_bytes_until_nul(text).expect("it ends with a zero");
    let report: serde_json::Value = serde_json::from_slice(text.to_bytes()).expect("JSON");
    assert_eq!(report["outside"]["peak"], 0, "{report}");
    let pools = report["pools"].as_array().expect("a list");
    pools.iter().map(|pool| pool["allocations"].as_u64().expect("a number")).sum()
}
