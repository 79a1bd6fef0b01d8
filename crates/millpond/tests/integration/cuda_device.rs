//! What is particular to the CUDA device. What holds for every device is in `conformance.rs`.
//!
//! On a machine with a GPU: `cargo test -p millpond --test integration cuda_device:: -- --ignored`, or `scripts/gpu-test`.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use cudarc::driver::sys::{self, CUresult};
use cudarc::driver::{CudaContext, DevicePtrMut};
use millpond::device::cuda::{self, CudaDevice, CudaOptions};
use millpond::device::{Device, DeviceError, DevicePtr, DeviceResult, MemoryKind, StreamHandle};
use millpond::testing::trusted::Trusted;
use millpond::{Advice, Buffer, Context, Place, Pool, Residency};

use crate::processes::alone;

const PAGE: u64 = 2 << 20;

fn gpu() -> Trusted<Arc<CudaDevice>> {
    // SAFETY: the tests use handles and ranges of their own, until they destroy them.
    unsafe { Trusted::new(CudaDevice::new(0).expect("a GPU")) }
}

/// The context that is current on this thread, or null.
fn current_context() -> sys::CUcontext {
    let mut current = std::ptr::null_mut();
    // SAFETY: the pointer is writable.
    assert_eq!(unsafe { sys::cuCtxGetCurrent(&mut current) }, CUresult::CUDA_SUCCESS);
    current
}

/// Keeps a stream busy until the sender is dropped.
fn hold(gpu: &Trusted<Arc<CudaDevice>>, stream: StreamHandle) -> DeviceResult<mpsc::Sender<()>> {
    let (release, held) = mpsc::channel::<()>();
    // An error means that the sender is gone, which is the sign to go on.
    let wait = move || _ = held.recv();
    // SAFETY: the stream is the test's, and there are no captures.
    unsafe { gpu.launch_host(stream, wait) }?;
    Ok(release)
}

fn read(
    gpu: &Trusted<Arc<CudaDevice>>,
    at: DevicePtr,
    bytes: usize,
    stream: StreamHandle,
) -> DeviceResult<Vec<u8>> {
    let mut to = vec![0_u8; bytes];
    // SAFETY: `to` is neither touched nor freed before the synchronise.
    unsafe { gpu.copy_to_host(to.as_mut_ptr(), at, bytes as u64, stream) }?;
    gpu.synchronize_stream(stream)?;
    Ok(to)
}

#[test]
#[ignore = "needs a CUDA GPU"]
fn the_driver_and_the_gpu_describe_themselves() {
    let driver = cuda::driver().expect("a driver");
    assert!(driver.cuda.major >= 12);
    assert_eq!(driver.devices, CudaDevice::count().unwrap());
    let library = driver.library.clone().expect("libcuda is mapped");
    assert!(library.exists(), "{}", library.display());

    let gpu = gpu();
    let properties = gpu.properties();
    assert!(!properties.name.is_empty());
    assert!(properties.granularity.is_power_of_two());
    let memory = gpu.memory_info().unwrap();
    assert!(memory.free <= memory.total && memory.total <= properties.total_memory);
    let facts = gpu.facts().unwrap();
    assert!(facts.compute_capability.0 >= 5 && facts.multiprocessors > 0);
    assert!(facts.pci_bus_id.contains(':'), "{}", facts.pci_bus_id);
    assert!(!facts.peers.contains(&0));
    println!("{driver:?}\n{properties:?}\n{memory:?}\n{facts:?}");
}

#[test]
#[ignore = "needs a CUDA GPU"]
fn a_wrong_ordinal_is_refused_by_its_number() {
    let count = CudaDevice::count().unwrap();
    let error = CudaDevice::new(count).unwrap_err();
    assert!(matches!(error, DeviceError::Unavailable(_)));
    assert!(error.to_string().contains(&format!("no GPU {count}")), "{error}");
}

/// Every call works on a thread where no context is current, and leaves none there.
#[test]
#[ignore = "needs a CUDA GPU"]
fn calls_need_no_current_context_and_leave_none_behind() {
    let gpu = gpu();
    std::thread::spawn(move || {
        assert!(current_context().is_null());
        every_call(&gpu).unwrap();
        assert!(current_context().is_null());
        gpu.make_current().unwrap();
        assert_eq!(current_context(), gpu.raw_context());
        every_call(&gpu).unwrap();
        assert_eq!(current_context(), gpu.raw_context());
    })
    .join()
    .unwrap();
}

fn every_call(gpu: &Trusted<Arc<CudaDevice>>) -> DeviceResult<()> {
    let own = gpu.create_stream()?;
    for stream in [own, StreamHandle::LEGACY, StreamHandle::PER_THREAD] {
        let event = gpu.create_event()?;
        assert!(gpu.query_event(event)?, "never recorded counts as complete");
        gpu.memory_info()?;
        let at = gpu.reserve(PAGE)?;
        let page = gpu.create_page(PAGE)?;
        gpu.map(at, PAGE, page)?;
        gpu.set_access(at, PAGE)?;
        let segment = gpu.alloc_segment(4096)?;
        let block = gpu.alloc_async(4096, stream)?;
        // SAFETY: all ranges are live until after the synchronise, and used on this stream alone.
        unsafe {
            gpu.memset(at, 7, 4096, stream)?;
            gpu.copy(segment, at, 4096, stream)?;
            gpu.copy(block, segment, 4096, stream)?;
            gpu.copy_from_host(block.offset(1), [9_u8].as_ptr(), 1, stream)?;
        }
        gpu.record_event(event, stream)?;
        gpu.wait_event(stream, event)?;
        assert_eq!(read(gpu, block, 3, stream)?, [7, 9, 7]);
        gpu.synchronize_event(event)?;
        assert!(gpu.query_event(event)? && gpu.stream_is_idle(stream)?);
        gpu.stream_id(stream)?;
        // SAFETY: as in `hold`.
        unsafe { gpu.launch_host(stream, || ()) }?;
        gpu.synchronize()?;
        gpu.async_usage()?;
        // SAFETY: the device is idle and nothing is used again.
        unsafe {
            gpu.free_async(block, stream)?;
            gpu.free_segment(segment)?;
            gpu.unmap(at, PAGE)?;
            gpu.release_page(page)?;
            gpu.unreserve(at, PAGE)?;
            gpu.destroy_event(event)?;
        }
    }
    // SAFETY: the stream is not used again.
    unsafe { gpu.destroy_stream(own) }
}

#[test]
#[ignore = "needs a CUDA GPU"]
fn without_virtual_memory_pages_are_unsupported_and_segments_work() {
    let options = CudaOptions::default().virtual_memory(false);
    let gpu = CudaDevice::with_options(0, options).unwrap();
    assert!(!gpu.properties().virtual_memory);
    assert!(matches!(gpu.reserve(PAGE), Err(DeviceError::Unsupported { .. })));
    assert!(matches!(gpu.create_page(PAGE), Err(DeviceError::Unsupported { .. })));
    let at = gpu.alloc_segment(1000).unwrap();
    assert_eq!(at.raw() % 512, 0);
    // SAFETY: not used again.
    unsafe { gpu.free_segment(at) }.unwrap();
}

#[test]
#[ignore = "needs a CUDA GPU"]
fn too_large_a_request_is_named_and_changes_nothing() {
    let gpu = gpu();
    let bytes = gpu.properties().total_memory.next_multiple_of(PAGE) * 2;
    let stream = gpu.create_stream().unwrap();
    let page = gpu.create_page(bytes).map(drop);
    let segment = gpu.alloc_segment(bytes).map(drop);
    let block = gpu.alloc_async(bytes, stream).map(drop);
    for result in [page, segment, block] {
        match result {
            Err(DeviceError::OutOfMemory { requested, .. }) => assert_eq!(requested, bytes),
            other => panic!("expected OutOfMemory, found {other:?}"),
        }
    }
    assert_eq!(gpu.async_usage().unwrap().used, 0);
    // SAFETY: the stream is not used again.
    unsafe { gpu.destroy_stream(stream) }.unwrap();
}

#[test]
#[ignore = "needs a CUDA GPU"]
fn a_refused_call_carries_the_drivers_name_and_sentence() {
    let gpu = gpu();
    // An odd size is no multiple of the granularity.
    match gpu.create_page(12345) {
        Err(DeviceError::Driver { call, name, text, .. }) => {
            assert_eq!((call, name.as_str()), ("cuMemCreate", "CUDA_ERROR_INVALID_VALUE"));
            assert!(!text.is_empty());
        }
        other => panic!("expected a driver error, found {other:?}"),
    }
}

#[test]
#[ignore = "needs a CUDA GPU"]
fn a_pinned_source_may_change_once_the_copy_returned() {
    let gpu = gpu();
    gpu.make_current().unwrap();
    let stream = gpu.create_stream().unwrap();
    let bytes = 64 << 20;
    let at = gpu.alloc_segment(bytes).unwrap();
    let mut host = std::ptr::null_mut();
    // SAFETY: the pointer is writable.
    assert_eq!(unsafe { sys::cuMemAllocHost_v2(&mut host, bytes as usize) }, CUresult::CUDA_SUCCESS);
    // SAFETY: the driver gave `bytes` bytes, and nobody else knows them.
    unsafe {
        host.cast::<u8>().write_bytes(1, bytes as usize);
        gpu.copy_from_host(at, host.cast(), bytes, stream).unwrap();
        host.cast::<u8>().write_bytes(2, bytes as usize);
    }
    assert!(read(&gpu, at, bytes as usize, stream).unwrap().iter().all(|byte| *byte == 1));
    // SAFETY: nothing is used again.
    unsafe {
        assert_eq!(sys::cuMemFreeHost(host), CUresult::CUDA_SUCCESS);
        gpu.free_segment(at).unwrap();
        gpu.destroy_stream(stream).unwrap();
    }
}

/// The stream is held: a copy that waited for it would never return.
#[test]
#[ignore = "needs a CUDA GPU"]
fn a_small_pageable_source_is_copied_without_a_wait() {
    let gpu = gpu();
    let stream = gpu.create_stream().unwrap();
    let at = gpu.alloc_segment(32 << 10).unwrap();
    let release = hold(&gpu, stream).unwrap();
    let mut host = vec![1_u8; 32 << 10];
    // SAFETY: the segment is live, and used on this stream alone.
    unsafe { gpu.copy_from_host(at, host.as_ptr(), host.len() as u64, stream) }.unwrap();
    host.fill(2);
    drop(release);
    assert!(read(&gpu, at, host.len(), stream).unwrap().iter().all(|byte| *byte == 1));
    // SAFETY: nothing is used again.
    unsafe {
        gpu.free_segment(at).unwrap();
        gpu.destroy_stream(stream).unwrap();
    }
}

#[test]
#[ignore = "needs a CUDA GPU"]
fn host_functions_run_in_stream_order_and_contain_panics() {
    let gpu = gpu();
    let stream = gpu.create_stream().unwrap();
    let ran = Arc::new(AtomicBool::new(false));
    let release = hold(&gpu, stream).unwrap();
    // SAFETY: as in `hold`, here and below.
    unsafe { gpu.launch_host(stream, || panic!("expected by the test")) }.unwrap();
    let seen = Arc::clone(&ran);
    // SAFETY: as above.
    unsafe { gpu.launch_host(stream, move || seen.store(true, Ordering::Release)) }.unwrap();
    assert!(!ran.load(Ordering::Acquire) && !gpu.stream_is_idle(stream).unwrap());
    drop(release);
    gpu.synchronize_stream(stream).unwrap();
    assert!(ran.load(Ordering::Acquire));
    // SAFETY: the stream is not used again.
    unsafe { gpu.destroy_stream(stream) }.unwrap();
}

#[test]
#[ignore = "needs a CUDA GPU"]
fn threads_have_own_default_streams_and_share_the_legacy_one() {
    let gpu = gpu();
    let ids = |gpu: &Trusted<Arc<CudaDevice>>| {
        [StreamHandle::LEGACY, StreamHandle::PER_THREAD].map(|stream| gpu.stream_id(stream).unwrap())
    };
    let here = ids(&gpu);
    let there = { std::thread::scope(|threads| threads.spawn(|| ids(&gpu)).join().unwrap()) };
    assert_eq!(here[0], there[0]);
    assert_ne!(here[1], there[1]);
    assert_ne!(here[0], here[1]);
}

/// No call waits for the device: the end of each thread has marked what it cached.
#[test]
#[ignore = "needs a CUDA GPU"]
fn the_memory_of_threads_that_ended_goes_on_without_a_wait() {
    let context = Context::cuda(0).unwrap();
    let pool = Pool::builder(&context).decay(Duration::ZERO).build().unwrap();
    let mut most = 0;
    for _ in 0..50 {
        std::thread::scope(|threads| {
            let works = || {
                let own = context.per_thread_stream().unwrap();
                for _ in 0..10 {
                    let all: Vec<_> =
                        (0..20).map(|_| Buffer::<u8>::zeroed(&pool, 100_000, &own).unwrap()).collect();
                    drop(all);
                }
                own.synchronize().unwrap();
            };
            threads.spawn(works).join().unwrap();
        });
        most = most.max(pool.reserved().current);
    }
    assert!(most <= 16 << 20, "each has the memory of the one before: {most}");
    let began = Instant::now();
    while pool.reserved().current > 0 {
        assert!(began.elapsed() < Duration::from_secs(10), "{:?}", pool.reserved());
        pool.trim_to(0).unwrap();
    }
    pool.check().unwrap();
}

#[test]
#[ignore = "needs a CUDA GPU"]
fn the_drivers_pool_keeps_its_memory_and_counts_it() {
    let gpu = gpu();
    let stream = gpu.create_stream().unwrap();
    let block = gpu.alloc_async(10 << 20, stream).unwrap();
    let live = gpu.async_usage().unwrap();
    assert!(live.used >= 10 << 20 && live.reserved >= live.used);
    // SAFETY: no work uses the block.
    unsafe { gpu.free_async(block, stream) }.unwrap();
    gpu.synchronize().unwrap();
    let after = gpu.async_usage().unwrap();
    assert_eq!((after.used, after.reserved), (0, live.reserved));
    assert!(after.used_high >= 10 << 20 && after.reserved_high >= after.reserved);
    // SAFETY: the stream is not used again.
    unsafe { gpu.destroy_stream(stream) }.unwrap();
}

/// What a program over cudarc has is the same context; its streams and memory are ours to use.
#[test]
#[ignore = "needs a CUDA GPU"]
fn a_program_over_cudarc_shares_its_context_streams_and_memory() {
    let gpu = gpu();
    let context = CudaContext::new(0).unwrap();
    assert_eq!(gpu.raw_context(), context.cu_ctx());
    let stream = context.new_stream().unwrap();
    let mut slice = stream.alloc_zeros::<u8>(16).unwrap();
    {
        let (at, _written_until_here) = slice.device_ptr_mut(&stream);
        // SAFETY: both are live, and the memory is used on this stream alone.
        unsafe {
            let handle = StreamHandle::from_raw(stream.cu_stream() as u64);
            gpu.memset(DevicePtr::new(at), 5, 16, handle).unwrap();
        }
    }
    assert_eq!(stream.clone_dtoh(&slice).unwrap(), [5; 16]);
}

/// The primary context is shared: a second device object of the same GPU sees the first one's memory.
#[test]
#[ignore = "needs a CUDA GPU"]
fn two_device_objects_of_one_gpu_share_its_context() {
    let (first, second) = (gpu(), gpu());
    assert_eq!(first.raw_context(), second.raw_context());
    let at = first.alloc_segment(16).unwrap();
    let stream = second.create_stream().unwrap();
    // SAFETY: the segment is live and used on this stream alone.
    unsafe { second.memset(at, 5, 16, stream) }.unwrap();
    assert_eq!(read(&first, at, 16, stream).unwrap(), [5; 16]);
    // SAFETY: nothing is used again.
    unsafe {
        second.free_segment(at).unwrap();
        first.destroy_stream(stream).unwrap();
    }
}

#[test]
#[ignore = "needs a CUDA GPU"]
fn pinned_memory_is_near_the_gpu_and_for_the_cpu_too() {
    let gpu = gpu();
    let pinned = gpu.pinned(None).unwrap();
    let properties = pinned.properties();
    println!("{properties:?} {:?}", pinned.memory_info());
    assert_eq!((properties.memory, properties.host_access), (MemoryKind::Pinned, true));
    assert_ne!(properties.total_memory, gpu.properties().total_memory, "the machine's");
    // More than the machine has is refused: the driver would try.
    let too_much = properties.total_memory.next_multiple_of(properties.granularity);
    assert!(matches!(pinned.alloc_segment(too_much), Err(DeviceError::OutOfMemory { .. })));
    let no_node = gpu.pinned(Some(4711)).unwrap_err();
    assert!(matches!(no_node, DeviceError::Unsupported { .. }), "{no_node}");
    let context = Context::new(gpu.clone());
    let (stream, pool) = (context.create_stream().unwrap(), context.pinned().unwrap().build().unwrap());
    pool.reserve(1 << 30, &stream).unwrap();
    let reserved = pool.reserved().current;
    assert!(reserved <= (1 << 30) / 50 * 51, "{reserved} bytes");
    pool.check().unwrap();
}

/// Three streams: while one uploads, others copy on the device and download. No byte is another's.
#[test]
#[ignore = "needs a CUDA GPU"]
fn overlapped_copies_of_pinned_memory_keep_their_contents() {
    const ELEMENTS: usize = (4 << 20) + 3;
    const BATCHES: usize = 24;
    let element = |batch: usize, at: usize| (batch as u32).wrapping_mul(2_654_435_761) ^ at as u32;
    for virtual_memory in [None, Some(false)] {
        let options = CudaOptions::default().virtual_memory(virtual_memory);
        let context = Context::new(CudaDevice::with_options(0, options).expect("a GPU"));
        let pool = Pool::builder(&context).build().unwrap();
        let pinned = context.pinned().unwrap().build().unwrap();
        let [upload, compute, download] = [(); 3].map(|()| context.create_stream().unwrap());
        let mut staging = [(); 2].map(|()| Buffer::<u32>::new(&pinned, ELEMENTS, &upload).unwrap());
        let mut results = Vec::new();
        for batch in 0..BATCHES {
            let staging = &mut staging[batch % 2];
            for (at, to) in staging.as_mut_slice().unwrap().iter_mut().enumerate() {
                *to = element(batch, at);
            }
            let mut inputs = Buffer::<u32>::new(&pool, ELEMENTS, &upload).unwrap();
            inputs.copy_from_pinned(staging).unwrap();
            let mut outputs = Buffer::<u32>::new(&pool, ELEMENTS, &compute).unwrap();
            outputs.copy_from(&inputs).unwrap();
            inputs.set_zero().unwrap();
            let mut result = Buffer::<u32>::new(&pinned, ELEMENTS, &download).unwrap();
            outputs.copy_to_pinned(&mut result).unwrap();
            outputs.set_zero().unwrap();
            results.push(result);
        }
        for (batch, result) in results.iter().enumerate() {
            let mut found = result.as_slice().unwrap().iter().enumerate();
            assert!(found.all(|(at, found)| *found == element(batch, at)), "batch {batch}");
        }
        pool.check().unwrap();
        pinned.check().unwrap();
    }
}

#[test]
#[ignore = "needs a CUDA GPU"]
fn managed_memory_is_at_most_what_the_gpu_has_free() {
    let gpu = gpu();
    let managed = gpu.managed().unwrap();
    let properties = managed.properties();
    println!("{properties:?} {:?}", managed.memory_info());
    assert_eq!((properties.memory, properties.host_access), (MemoryKind::Managed, true));
    let before = managed.memory_info().unwrap().free;
    let refused = managed.alloc_segment(before + PAGE);
    assert!(matches!(refused, Err(DeviceError::OutOfMemory { .. })), "{refused:?}");
    // Nobody touches it, so that the driver's own figure stays.
    let segment = managed.alloc_segment(64 << 20).unwrap();
    let left = managed.memory_info().unwrap().free;
    assert!(left <= before - (64 << 20), "{left} of {before}");
    let again = gpu.managed().unwrap();
    assert!(again.memory_info().unwrap().free <= left, "all devices of the GPU count together");
    // SAFETY: nothing uses it.
    unsafe { managed.free_segment(segment) }.unwrap();
    assert!(managed.memory_info().unwrap().free > left);
}

#[test]
#[ignore = "needs a CUDA GPU"]
fn managed_memory_moves_and_keeps_its_contents() {
    const ELEMENTS: usize = (8 << 20) + 3;
    let context = Context::new(gpu().clone());
    let (pool, managed) =
        (Pool::builder(&context).build().unwrap(), context.managed().unwrap().build().unwrap());
    let [compute, mover] = [(); 2].map(|()| context.create_stream().unwrap());
    let mut data = Buffer::<u32>::new(&managed, ELEMENTS, &compute).unwrap();
    assert_eq!(data.residency(), Ok(Residency::default()));
    for (round, place) in [Place::Device, Place::Host, Place::Device, Place::Host].into_iter().enumerate() {
        let element = |at: usize| (round as u32).wrapping_mul(2_654_435_761) ^ at as u32;
        data.as_mut_slice().unwrap().iter_mut().enumerate().for_each(|(at, to)| *to = element(at));
        data.advise(Advice::ReadMostly(round == 2)).unwrap();
        data.advise(Advice::PreferredLocation((round > 0).then_some(place))).unwrap();
        data.advise(Advice::AccessedBy(Place::Device, round == 3)).unwrap();
        data.prefetch(place, &mover).unwrap();
        mover.synchronize().unwrap();
        let said = data.residency().unwrap();
        println!("round {round}: {said:?}");
        assert_eq!((said.last_prefetch, said.read_mostly), (Some(place), round == 2));
        assert_eq!(said.preferred, (round > 0).then_some(place));
        let mut copy = Buffer::<u32>::new(&pool, ELEMENTS, &compute).unwrap();
        copy.copy_from(&data).unwrap();
        let found = copy.to_vec().unwrap();
        assert!(found.iter().enumerate().all(|(at, found)| *found == element(at)), "round {round}");
    }
    let at = data.ptr();
    drop(data);
    let next = Buffer::<u32>::new(&managed, ELEMENTS, &compute).unwrap();
    assert_eq!(next.ptr(), at, "the same memory");
    let said = next.residency().unwrap();
    assert_eq!((said.read_mostly, said.preferred), (false, None), "advice does not reach the next owner");
    managed.check().unwrap();
}

#[test]
#[ignore = "needs a CUDA GPU"]
fn plain_memory_moves_where_the_gpu_reaches_it() {
    let context = Context::new(gpu().clone());
    let stream = context.create_stream().unwrap();
    let memory: Vec<u32> = (0..4 << 20).collect();
    let access = context.device().properties().pageable_access;
    println!("the GPU reaches plain memory of the host: {access}");
    for place in [Place::Device, Place::Host] {
        // SAFETY: the memory lives until the stream is synchronised.
        let moved = unsafe { context.prefetch_slice(&memory, place, &stream) };
        let advised = context.advise_slice(&memory, Advice::PreferredLocation(Some(place)));
        println!("{place:?}: {moved:?}, {advised:?}");
        assert_eq!((moved.is_ok(), advised.is_ok()), (access, access));
        stream.synchronize().unwrap();
        assert!(memory.iter().zip(0..).all(|(found, at)| *found == at));
    }
    if access {
        context.advise_slice(&memory, Advice::PreferredLocation(None)).unwrap();
    }
}

/// Prints what `CostTable` has of managed memory, in its units: medians of a few.
#[test]
#[ignore = "needs a CUDA GPU"]
fn a_prefetch_is_faster_than_page_faults() {
    const BYTES: u64 = 256 << 20;
    let gpu = gpu();
    let managed = gpu.managed().unwrap();
    let stream = gpu.create_stream().unwrap();
    let median = |mut of: Vec<u128>| {
        of.sort_unstable();
        of[of.len() / 2].max(1)
    };
    let time = |act: &mut dyn FnMut()| {
        let started = Instant::now();
        act();
        started.elapsed().as_nanos()
    };
    let [mut alloc, mut submit, mut to_device, mut to_host, mut faults, mut hot, mut advise] =
        [const { Vec::new() }; 7];
    for _ in 0..5 {
        let mut at = DevicePtr::NULL;
        alloc.push(time(&mut || at = managed.alloc_segment(BYTES).unwrap()));
        // SAFETY: the segment is the test's, until it is freed.
        let fill = |value| unsafe { gpu.memset(at, value, BYTES, stream) }.unwrap();
        // SAFETY: as above.
        let prefetch = |to| unsafe { managed.prefetch(at, BYTES, to, stream) }.unwrap();
        let wait = || gpu.synchronize_stream(stream).unwrap();
        fill(1);
        wait();
        for _ in 0..3 {
            to_host.push(time(&mut || (prefetch(Place::Host), wait()).1));
            faults.push(time(&mut || (fill(2), wait()).1));
            hot.push(time(&mut || (fill(3), wait()).1));
            to_host.push(time(&mut || (prefetch(Place::Host), wait()).1));
            let mut call = 0;
            to_device.push(time(&mut || {
                call = time(&mut || prefetch(Place::Device));
                wait();
            }));
            submit.push(call);
            advise.push(time(&mut || {
                managed.advise(at, BYTES, Advice::AccessedBy(Place::Device, true)).unwrap()
            }));
            managed.advise(at, BYTES, Advice::AccessedBy(Place::Device, false)).unwrap();
        }
        // SAFETY: all work is complete.
        unsafe { managed.free_segment(at) }.unwrap();
    }
    let [alloc, submit, to_device, to_host, faults, hot, advise] =
        [alloc, submit, to_device, to_host, faults, hot, advise].map(median);
    let pages = u128::from(BYTES / PAGE);
    let per_us = |nanoseconds: u128| u128::from(BYTES) * 1000 / nanoseconds;
    println!("managed_alloc_segment: {alloc} ns for 256 MiB");
    println!("managed_prefetch: {submit} ns (the call)");
    println!(
        "managed_prefetch_bytes_per_us: {} to the device, {} to the host",
        per_us(to_device),
        per_us(to_host)
    );
    println!("managed_advise: {advise} ns for 256 MiB");
    println!(
        "a memset of 256 MiB: {hot} ns in place, {faults} ns from the host: {} ns a page of 2 MiB",
        (faults - hot.min(faults)) / pages
    );
    println!("of which a prefetch would take {} ns", to_device / pages);
    assert!(to_device < faults, "{to_device} and {faults} ns");
    gpu.synchronize().unwrap();
}

#[test]
#[ignore = "needs a CUDA GPU"]
fn a_forked_child_is_refused_before_any_call_of_the_driver() {
    alone("cuda_device::a_forked_child_is_refused_before_any_call_of_the_driver", || {
        let gpu = gpu();
        let stream = gpu.create_stream().unwrap();
        let [to, from] = [PAGE, 2 * PAGE].map(DevicePtr::new);
        let (peer, byte) = (gpu.peer_id().unwrap(), 0_u8);
        // SAFETY: the child makes calls that are refused, and ends.
        let child = unsafe { libc::fork() };
        assert!(child >= 0);
        if child == 0 {
            // SAFETY: nothing is read or written: each call is refused.
            let answers = unsafe {
                [
                    gpu.copy(to, from, 1, stream),
                    gpu.copy_from_peer(to, from, 1, peer, stream),
                    gpu.copy_from_host(to, &raw const byte, 1, stream),
                    gpu.facts().map(drop),
                ]
            };
            let are_refused = answers.iter().all(|answer| *answer == Err(DeviceError::Forked));
            // SAFETY: it ends the child, and runs nothing of ours.
            unsafe { libc::_exit(i32::from(!are_refused)) };
        }
        let mut status = 0;
        // SAFETY: our child, and a place for its status.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert!(libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0);
    });
}
