//! Buffers of a pool in cudarc's launches, copies and cuBLAS.
//!
//! On a machine with a GPU: `cargo test -p millpond --test integration cuda_cudarc:: -- --ignored`, or `scripts/gpu-test`. Tests
//! of kernels need NVRTC, and the one of cuBLAS needs that: both are of the CUDA toolkit, and looked for by the
//! system's loader (LD_LIBRARY_PATH).

use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

use cudarc::cublas::{CudaBlas, Gemm, GemmConfig, sys::cublasOperation_t};
use cudarc::driver::{
    CudaContext, CudaFunction, CudaStream, DevicePtr, DevicePtrMut, DeviceSlice, HostSlice, LaunchArgs,
    LaunchConfig, PushKernelArg,
};
use millpond::cudarc::{Buffer, Pinned, Stream, View, ViewMut};
use millpond::device::DeviceError;
use millpond::device::cuda::CudaDevice;
use millpond::{Context, Error, Keep, Pool};

use crate::shared::Freeing;

const ELEMENTS: usize = 1 << 20;

type Outcome = Result<(), Box<dyn std::error::Error>>;

// ---- what the compiler proves, on any machine ------------------------------------------------------

/// What cudarc's copies, cuBLAS and NCCL ask of a slice.
fn is_a_slice<T, S: DevicePtr<T> + DevicePtrMut<T> + DeviceSlice<T> + Send + Sync>() {}

/// What its builder asks of an argument.
fn is_an_argument<'a, A>()
where
    LaunchArgs<'a>: PushKernelArg<A>,
{
}

#[test]
fn a_buffer_is_what_cudarc_asks_of_a_slice() {
    is_a_slice::<f32, Buffer<f32>>();
    is_a_slice::<u8, Buffer<u8>>();
    is_a_slice::<[i64; 3], Buffer<[i64; 3]>>();
    is_a_slice::<f32, ViewMut<'_, f32>>();
}

/// What cudarc's copies ask of memory of the host.
fn is_host_memory<T, S: HostSlice<T>>(_: &S) {}

#[test]
fn pinned_elements_are_host_memory_and_a_plain_buffer_is_none() {
    let mut elements = [1_u8, 2, 3];
    let pinned = Pinned(&mut elements);
    is_host_memory::<u8, _>(&pinned);
    assert_eq!((HostSlice::len(&pinned), HostSlice::is_empty(&pinned)), (3, false));

    /// Ambiguous, and so no program, for a type that is a `HostSlice`.
    trait IsNone<A> {
        fn holds() {}
    }
    impl<S: ?Sized> IsNone<()> for S {}
    impl<S: HostSlice<u8> + ?Sized> IsNone<u8> for S {}
    // Memory of a device is no slice, and a slice of pinned memory would not be waited for.
    <millpond::Buffer<u8> as IsNone<_>>::holds();
}

#[test]
fn buffers_of_both_kinds_and_addresses_are_launch_arguments() {
    is_an_argument::<&Buffer<f32>>();
    is_an_argument::<&mut Buffer<f32>>();
    is_an_argument::<&View<'_, f32>>();
    is_an_argument::<&mut ViewMut<'_, f32>>();
    is_an_argument::<&millpond::Buffer<f32>>();
    is_an_argument::<&mut millpond::Buffer<f32>>();
    is_an_argument::<&millpond::device::DevicePtr>();
}

#[test]
#[ignore = "needs a CUDA GPU"]
fn buffers_become_plain_and_back_in_order() -> Outcome {
    let cuda = CudaContext::new(0)?;
    let (first, second) = (cuda.new_stream()?, cuda.new_stream()?);
    let device = Context::from_cudarc(&cuda)?;
    let pool = Pool::builder(&device).build()?;
    let (on_first, on_second) = (Stream::new(&device, &first)?, Stream::new(&device, &second)?);
    for turn in 0..100_u32 {
        let mut plain = millpond::Buffer::<u32>::uninit(&pool, ELEMENTS, on_first.millpond())?;
        plain.fill(turn)?;
        let at = plain.ptr();
        let mut buffer = Buffer::from_plain(plain, &on_second)?;
        assert_eq!(first.clone_dtoh(&buffer.slice(5..8)?)?, [turn; 3]);
        second.memcpy_htod(&[turn + 1; 10], &mut buffer.slice_mut(..10)?)?;
        let plain = buffer.into_plain()?.on_stream(on_first.millpond())?;
        assert_eq!((plain.ptr(), plain.slice(8..12)?.to_vec()?), (at, vec![turn + 1, turn + 1, turn, turn]));
    }
    Ok(())
}

/// The wrappers of NCCL are generic over the same traits; nothing of NCCL is loaded here.
#[test]
fn buffers_are_taken_by_nccl_and_cublas() {
    #[allow(dead_code)]
    fn all_reduce(comm: &cudarc::nccl::Comm, from: &Buffer<f32>, to: &mut Buffer<f32>) {
        comm.all_reduce(from, to, &cudarc::nccl::ReduceOp::Sum).ok();
    }
    #[allow(dead_code)]
    fn gemm(blas: &CudaBlas, config: GemmConfig<f64>, a: &Buffer<f64>, c: &mut Buffer<f64>) {
        // SAFETY: never called.
        unsafe { blas.gemm(config, a, a, c) }.ok();
    }
}

// ---- on a GPU ----------------------------------------------------------------------------------------

struct Rig {
    cuda: Arc<CudaContext>,
    device: Context,
    pool: Pool,
    stream: Arc<CudaStream>,
    on: Stream,
}

fn rig() -> Result<Rig, Box<dyn std::error::Error>> {
    let cuda = CudaContext::new(0)?;
    let device = Context::from_cudarc(&cuda)?;
    let pool = Pool::builder(&device).name("cudarc").build()?;
    let stream = cuda.new_stream()?;
    let on = Stream::new(&device, &stream)?;
    Ok(Rig { cuda, device, pool, stream, on })
}

/// A kernel `name(float *to, const float *from, int n)` that runs `body` for each `i` below `n`.
fn kernel(cuda: &Arc<CudaContext>, body: &str) -> Result<CudaFunction, Box<dyn std::error::Error>> {
    // SAFETY: loading runs the library's initialisers, which any CUDA program does.
    assert!(unsafe { cudarc::nvrtc::sys::is_culib_present() }, "libnvrtc.so is on the LD_LIBRARY_PATH");
    let source = format!(
        "extern \"C\" __global__ void body(float *to, const float *from, int n) {{\n\
         int i = blockIdx.x * blockDim.x + threadIdx.x;\n\
         if (i < n) {{ {body} }}\n}}"
    );
    let kernel = cuda.load_module(cudarc::nvrtc::compile_ptx(source)?)?.load_function("body")?;
    // Loaded by its first launch, for which the driver may wait for the whole context: not while a stream is held.
    let (stream, nowhere, none) = (cuda.default_stream(), 0_u64, 0_i32);
    let config = LaunchConfig { grid_dim: (1, 1, 1), block_dim: (1, 1, 1), shared_mem_bytes: 0 };
    // SAFETY: of no elements, it touches none.
    unsafe { stream.launch_builder(&kernel).arg(&nowhere).arg(&nowhere).arg(&none).launch(config) }?;
    stream.synchronize()?;
    Ok(kernel)
}

fn launch(on: &CudaStream, kernel: &CudaFunction, to: &mut Buffer<f32>, from: &Buffer<f32>) -> Outcome {
    let n = from.len() as i32;
    let config = LaunchConfig::for_num_elems(n as u32);
    // SAFETY: the kernels of `kernel` take these, and stay within `n` elements.
    unsafe { on.launch_builder(kernel).arg(to).arg(from).arg(&n).launch(config) }?;
    Ok(())
}

/// Keeps a stream busy until the sender is dropped.
fn hold(stream: &Stream) -> Result<mpsc::Sender<()>, Box<dyn std::error::Error>> {
    let (release, held) = mpsc::channel::<()>();
    // An error means that the sender is gone, which is the sign to go on.
    let wait = move || _ = held.recv();
    // SAFETY: the stream lives, and there are no captures.
    unsafe { CudaDevice::new(0)?.launch_host(stream.millpond().handle(), wait) }?;
    Ok(release)
}

#[test]
#[ignore = "needs a CUDA GPU"]
fn copies_go_both_ways_and_between_buffers_and_slices() -> Outcome {
    let Rig { pool, stream, on, .. } = rig()?;
    let elements: Vec<f32> = (0..ELEMENTS).map(|i| i as f32).collect();
    let x = Buffer::from_slice(&pool, &elements, &on)?;
    assert_eq!(stream.clone_dtoh(&x)?, elements);

    let mut y = Buffer::<f32>::zeroed(&pool, ELEMENTS, &on)?;
    assert_eq!(stream.clone_dtoh(&y)?, vec![0.0; ELEMENTS]);
    stream.memcpy_dtod(&x, &mut y)?;
    assert_eq!(stream.clone_dtoh(&y)?, elements);

    let mut slice = stream.alloc_zeros::<f32>(ELEMENTS)?;
    stream.memcpy_dtod(&y, &mut slice)?;
    stream.memset_zeros(&mut y)?;
    stream.memcpy_dtod(&slice, &mut y)?;
    assert_eq!(stream.clone_dtoh(&y)?, elements);

    let half = ELEMENTS / 2;
    stream.memset_zeros(&mut y.slice_mut(..half)?)?;
    assert_eq!(stream.clone_dtoh(&y.slice(half - 1..half + 1)?)?, [0.0, half as f32]);

    let nothing = Buffer::<f32>::zeroed(&pool, 0, &on)?;
    assert!(nothing.is_empty() && nothing.ptr().is_null());
    assert!(stream.clone_dtoh(&nothing)?.is_empty());
    drop((x, y, nothing));
    assert_eq!(pool.allocated().current, 0);
    pool.check()?;
    Ok(())
}

#[test]
#[ignore = "needs a CUDA GPU"]
fn parts_are_written_by_kernels_and_copies_in_order() -> Outcome {
    let Rig { cuda, pool, stream, on, .. } = rig()?;
    let other = cuda.new_stream()?;
    let kernel = kernel(&cuda, "to[i] = 2 * from[i];")?;
    let (quarter, launches) = (ELEMENTS / 4, LaunchConfig::for_num_elems((ELEMENTS / 4) as u32));
    // The second time with the uses of a block that was longer.
    for len in [2 * ELEMENTS, ELEMENTS] {
        let from = Buffer::from_slice(&pool, &vec![3.0_f32; quarter], &on)?;
        let mut buffer = Buffer::<f32>::zeroed(&pool, len, &on)?;
        let mut part = buffer.slice_mut(quarter..2 * quarter)?;
        assert_eq!(part.len(), quarter);
        let n = quarter as i32;
        // SAFETY: the kernel writes as many floats as the part has, and reads as many as the other buffer has.
        unsafe { stream.launch_builder(&kernel).arg(&mut part).arg(&from).arg(&n).launch(launches) }?;
        // On another stream, which waits for the kernel.
        other.memcpy_htod(&[1.0; 5], &mut part.slice_mut(5..10)?)?;
        let (mut front, mut back) = buffer.split_at_mut(len - 1)?;
        other.memset_zeros(&mut front.slice_mut(..1)?)?;
        stream.memcpy_htod(&[7.0], &mut back)?;
        assert_eq!((front.len(), back.len()), (len - 1, 1));

        let mut expected = vec![0.0; len];
        expected[quarter..2 * quarter].fill(6.0);
        expected[quarter + 5..quarter + 10].fill(1.0);
        expected[len - 1] = 7.0;
        assert!(stream.clone_dtoh(&buffer)? == expected);
        let refused = buffer.slice_mut(len - 1..len + 1);
        assert!(matches!(refused, Err(Error::OutOfRange { end, .. }) if end == len + 1));
        assert!(buffer.split_at_mut(len + 1).is_err());
    }
    Ok(())
}

#[test]
#[ignore = "needs a CUDA GPU"]
fn kernels_on_the_buffers_own_stream_run_in_order() -> Outcome {
    let Rig { cuda, pool, stream, on, .. } = rig()?;
    let double = kernel(&cuda, "to[i] = from[i] * 2.0f;")?;
    let mut from = Buffer::from_slice(&pool, &vec![1.0_f32; ELEMENTS], &on)?;
    for _ in 0..10 {
        // Written by the kernel; what it held before was another buffer's.
        let mut to = Buffer::<f32>::zeroed(&pool, ELEMENTS, &on)?;
        launch(&stream, &double, &mut to, &from)?;
        from = to;
    }
    assert_eq!(stream.clone_dtoh(&from)?, vec![1024.0; ELEMENTS]);
    assert!(pool.stats().hits > 0, "{:?}", pool.stats());
    Ok(())
}

#[test]
#[ignore = "needs a CUDA GPU"]
fn a_pool_with_buffers_does_not_sleep_and_one_asleep_gives_none() -> Outcome {
    let Rig { pool, stream, on, .. } = rig()?;
    let buffer = Buffer::from_slice(&pool, &vec![1.0_f32; ELEMENTS], &on)?;
    assert!(matches!(pool.sleep(Keep::InPinnedMemory), Err(Error::CannotSleep { .. })));
    assert_eq!(stream.clone_dtoh(&buffer)?, vec![1.0; ELEMENTS]);
    drop(buffer);
    pool.sleep(Keep::Nothing)?;
    assert!(matches!(Buffer::<f32>::zeroed(&pool, ELEMENTS, &on), Err(Error::Asleep { .. })));
    pool.wake()?;
    let buffer = Buffer::<f32>::zeroed(&pool, ELEMENTS, &on)?;
    assert_eq!(stream.clone_dtoh(&buffer)?, vec![0.0; ELEMENTS]);
    Ok(())
}

#[test]
#[ignore = "needs a CUDA GPU"]
fn plain_buffers_and_addresses_reach_kernels_too() -> Outcome {
    let Rig { cuda, device, pool, stream, .. } = rig()?;
    let double = kernel(&cuda, "to[i] = from[i] * 2.0f;")?;
    let own = device.stream_from_cudarc(&stream)?;
    let from = millpond::Buffer::from_slice(&pool, &vec![3.0_f32; ELEMENTS], &own)?;
    let mut to = millpond::Buffer::<f32>::new(&pool, ELEMENTS, &own)?;
    let (n, config) = (ELEMENTS as i32, LaunchConfig::for_num_elems(ELEMENTS as u32));
    // SAFETY: as in `launch`.
    unsafe { stream.launch_builder(&double).arg(&mut to).arg(&from).arg(&n).launch(config) }?;
    assert_eq!(to.to_vec()?, vec![6.0; ELEMENTS]);
    let (to_ptr, from_ptr) = (to.ptr(), from.ptr());
    // SAFETY: as above, of the same memory.
    unsafe { stream.launch_builder(&double).arg(&to_ptr).arg(&from_ptr).arg(&n).launch(config) }?;
    assert_eq!(to.to_vec()?, vec![6.0; ELEMENTS]);
    Ok(())
}

/// The other stream is held back, so that nothing but the order kept by the free can make this right.
#[test]
#[ignore = "needs a CUDA GPU"]
fn reuse_waits_for_work_on_a_second_stream() -> Outcome {
    let Rig { cuda, device, pool, stream, on } = rig()?;
    let copy = kernel(&cuda, "to[i] = from[i];")?;
    let second = cuda.new_stream()?;
    let on_second = Stream::new(&device, &second)?;
    let mut seen = Buffer::<f32>::zeroed(&pool, ELEMENTS, &on_second)?;
    let held = hold(&on_second)?;

    let source = Buffer::from_slice(&pool, &vec![7.0_f32; ELEMENTS], &on)?;
    let address = source.ptr();
    launch(&second, &copy, &mut seen, &source)?;
    drop(source);
    let mut next = Buffer::<f32>::zeroed(&pool, ELEMENTS, &on)?;
    assert_eq!(next.ptr(), address, "the block is reused at once, behind the work on the second stream");
    stream.memset_zeros(&mut next)?;
    assert!(!on.millpond().is_idle()?, "its stream waits");

    drop(held);
    assert_eq!(second.clone_dtoh(&seen)?, vec![7.0; ELEMENTS]);
    assert_eq!(stream.clone_dtoh(&next)?, vec![0.0; ELEMENTS]);
    Ok(())
}

#[test]
#[ignore = "needs a CUDA GPU"]
fn a_second_stream_waits_for_writes_and_for_the_allocation() -> Outcome {
    let Rig { cuda, device, pool, stream, on } = rig()?;
    let double = kernel(&cuda, "to[i] = from[i] * 2.0f;")?;
    let second = cuda.new_stream()?;
    let on_second = Stream::new(&device, &second)?;
    let from = Buffer::from_slice(&pool, &vec![4.0_f32; ELEMENTS], &on)?;
    let held = hold(&on)?;

    // The write to `doubled`, and the allocation of `to`, are behind the held work.
    // SAFETY: the kernel writes all of it before it is read.
    let mut doubled = unsafe { Buffer::<f32>::uninit(&pool, ELEMENTS, &on) }?;
    launch(&stream, &double, &mut doubled, &from)?;
    // SAFETY: likewise.
    let mut to = unsafe { Buffer::<f32>::uninit(&pool, ELEMENTS, &on) }?;
    launch(&second, &double, &mut to, &doubled)?;
    assert!(!on_second.millpond().is_idle()?);

    drop(held);
    assert_eq!(stream.clone_dtoh(&to)?, vec![16.0; ELEMENTS]);
    on.synchronize()?;
    assert!(on_second.millpond().is_idle()?);
    Ok(())
}

#[test]
#[ignore = "needs a CUDA GPU"]
fn a_gemm_of_cublas_multiplies_pool_buffers() -> Outcome {
    let Rig { pool, stream, on, .. } = rig()?;
    // SAFETY: as in `kernel`.
    assert!(unsafe { cudarc::cublas::sys::is_culib_present() }, "libcublas.so is on the LD_LIBRARY_PATH");
    let n = 64;
    let a: Vec<f64> = (0..n * n).map(|i| (i % 7) as f64).collect();
    let identity: Vec<f64> = (0..n * n).map(|i| f64::from(i % (n + 1) == 0)).collect();
    let (a_on, identity_on) =
        (Buffer::from_slice(&pool, &a, &on)?, Buffer::from_slice(&pool, &identity, &on)?);
    let mut c = Buffer::<f64>::zeroed(&pool, n * n, &on)?;
    let (plain, n) = (cublasOperation_t::CUBLAS_OP_N, n as i32);
    let (transa, transb, m, k, lda, ldb, ldc) = (plain, plain, n, n, n, n, n);
    let config = GemmConfig { transa, transb, m, n, k, alpha: 3.0, lda, ldb, beta: 0.0, ldc };
    // SAFETY: three matrices of `n` by `n`.
    unsafe { CudaBlas::new(stream.clone())?.gemm(config, &a_on, &identity_on, &mut c) }?;
    let expected: Vec<f64> = a.iter().map(|a| 3.0 * a).collect();
    assert_eq!(stream.clone_dtoh(&c)?, expected);
    Ok(())
}

#[test]
#[ignore = "needs a CUDA GPU"]
fn contexts_and_streams_of_another_device_are_refused() -> Outcome {
    let Rig { stream, on, .. } = rig()?;
    let host = Context::host()?;
    let error = Stream::new(&host, &stream).unwrap_err();
    assert!(matches!(error, Error::Device(DeviceError::Invalid { .. })), "{error:?}");
    assert!(error.to_string().contains("CudaContext::new"), "{error}");
    // A pool of another context refuses the stream, as it does any.
    let elsewhere = Pool::builder(&host).build()?;
    let error = Buffer::<f32>::zeroed(&elsewhere, 16, &on).unwrap_err();
    assert!(matches!(error, Error::WrongDevice { what: "stream", .. }), "{error:?}");
    Ok(())
}

#[test]
#[ignore = "needs a CUDA GPU"]
fn a_context_that_is_not_the_primary_one_is_refused() -> Outcome {
    let Rig { device, .. } = rig()?;
    let other = CudaContext::new_non_primary(0, 0)?;
    for error in [
        Context::from_cudarc(&other).unwrap_err(),
        device.stream_from_cudarc(&other.new_stream()?).unwrap_err(),
    ] {
        assert!(error.to_string().contains("primary"), "{error}");
    }
    Ok(())
}

#[test]
#[ignore = "needs a CUDA GPU"]
fn a_stream_of_cudarcs_lives_while_millponds_side_does() -> Outcome {
    let Rig { cuda, device, pool, .. } = rig()?;
    let short_lived = cuda.new_stream()?;
    let weak = Arc::downgrade(&short_lived);
    let own = device.stream_from_cudarc(&short_lived)?;
    drop(short_lived);
    let buffer = millpond::Buffer::<f32>::zeroed(&pool, 16, &own)?;
    drop(own);
    assert!(weak.upgrade().is_some(), "the buffer keeps the stream");
    assert_eq!(buffer.to_vec()?, [0.0; 16]);
    drop(buffer);
    assert!(weak.upgrade().is_none());
    Ok(())
}

/// The default stream alone, one that millpond made, and a context that tracks no events.
#[test]
#[ignore = "needs a CUDA GPU"]
fn buffers_live_on_every_kind_of_stream() -> Outcome {
    let cuda = CudaContext::new(0)?;
    let device = Context::from_cudarc(&cuda)?;
    let pool = Pool::builder(&device).build()?;
    let made_here = device.create_stream()?;
    for tracking in [true, false] {
        if !tracking {
            // SAFETY: each buffer is used on one stream.
            unsafe { cuda.disable_event_tracking() };
        }
        let streams = [
            Stream::new(&device, &cuda.default_stream())?,
            Stream::new(&device, &cuda.per_thread_stream())?,
            // SAFETY: `made_here` outlives all that is made of it here.
            unsafe { Stream::wrap(&cuda, &made_here) }?,
            Stream::new(&device, &cuda.new_stream()?)?,
        ];
        for on in streams {
            for round in 0..3 {
                let buffer = Buffer::from_slice(&pool, &vec![round as f32; ELEMENTS], &on)?;
                assert_eq!(on.cuda().clone_dtoh(&buffer)?, vec![round as f32; ELEMENTS], "{on:?}");
            }
            on.synchronize()?;
        }
    }
    assert_eq!(pool.allocated().current, 0);
    Ok(())
}

#[test]
#[ignore = "needs a CUDA GPU"]
fn pinned_elements_are_read_before_they_can_be_written() -> Outcome {
    let Rig { device, pool, on, .. } = rig()?;
    let pinned = device.pinned()?.build()?;
    let mut elements = millpond::Buffer::<f32>::new(&pinned, 16 * ELEMENTS, on.millpond())?;
    for round in 0..8 {
        let (before, after) = (round as f32, -1.0 - round as f32);
        elements.as_mut_slice()?.fill(before);
        let copy = Buffer::from_slice(&pool, elements.as_slice()?, &on)?;
        elements.as_mut_slice()?.fill(after);
        assert!(on.cuda().clone_dtoh(&copy)?.iter().all(|element| *element == before), "round {round}");
    }
    // What is borrowed as a slice is written without asking the pool.
    let (front, back) = elements.as_mut_slice()?.split_at_mut(8 * ELEMENTS);
    front.fill(1.0);
    back.fill(2.0);
    let copy = Buffer::from_slice(&pool, &*front, &on)?;
    front.fill(3.0);
    assert!(on.cuda().clone_dtoh(&copy)?.iter().all(|element| *element == 1.0));
    Ok(())
}

/// Lets the held stream go on while the call may wait for it.
fn waits<R>(held: mpsc::Sender<()>, call: impl FnOnce() -> R) -> R {
    thread::scope(|scope| {
        scope.spawn(move || {
            thread::sleep(Duration::from_millis(50));
            drop(held);
        });
        call()
    })
}

/// The copy's stream is held back, so that nothing but a wait can make this right.
#[test]
#[ignore = "needs a CUDA GPU"]
fn a_pinned_source_is_written_after_the_copy_has_read_it() -> Outcome {
    let Rig { cuda, device, pool, stream, on } = rig()?;
    let pinned = device.pinned()?.build()?;
    let second = Stream::new(&device, &cuda.new_stream()?)?;
    let mut source = millpond::Buffer::<f32>::new(&pinned, ELEMENTS, on.millpond())?;
    let mut slice = stream.alloc_zeros::<f32>(ELEMENTS)?;
    let mut buffer = Buffer::<f32>::zeroed(&pool, ELEMENTS, &on)?;
    for copies in [&on, &second] {
        source.as_mut_slice()?.fill(1.0);
        let held = hold(copies)?;
        source.copy_to_cudarc(&mut slice, copies)?;
        source.copy_to_cudarc(&mut buffer, copies)?;
        assert!(!copies.millpond().is_idle()?, "the host did not wait");
        waits(held, || source.as_mut_slice().map(|elements| elements.fill(2.0)))?;
        assert_eq!(stream.clone_dtoh(&slice)?, vec![1.0; ELEMENTS], "{copies:?}");
        assert_eq!(stream.clone_dtoh(&buffer)?, vec![1.0; ELEMENTS], "{copies:?}");

        let elements = source.as_mut_slice()?;
        let held = hold(copies)?;
        waits(held, || copies.cuda().memcpy_htod(&Pinned(elements), &mut slice))?;
        elements.fill(3.0);
        assert_eq!(stream.clone_dtoh(&slice)?, vec![2.0; ELEMENTS], "{copies:?}");
    }
    // The free comes after the copy, too, and so does whoever has the memory next.
    let held = hold(&second)?;
    source.copy_to_cudarc(&mut slice, &second)?;
    drop(source);
    let mut next = millpond::Buffer::<f32>::new(&pinned, ELEMENTS, on.millpond())?;
    waits(held, || next.as_mut_slice().map(|elements| elements.fill(4.0)))?;
    assert_eq!(stream.clone_dtoh(&slice)?, vec![3.0; ELEMENTS]);
    Ok(())
}

#[test]
#[ignore = "needs a CUDA GPU"]
fn a_pinned_destination_is_read_after_the_copy_has_written_it() -> Outcome {
    let Rig { cuda, device, pool, stream, on } = rig()?;
    let pinned = device.pinned()?.build()?;
    let second = Stream::new(&device, &cuda.new_stream()?)?;
    let mut destination = millpond::Buffer::<f32>::zeroed(&pinned, ELEMENTS, on.millpond())?;
    let slice = stream.clone_htod(&vec![1.0_f32; ELEMENTS])?;
    let buffer = Buffer::from_slice(&pool, &vec![2.0_f32; ELEMENTS], &on)?;
    for copies in [&on, &second] {
        let held = hold(copies)?;
        destination.copy_from_cudarc(&slice, copies)?;
        assert!(!copies.millpond().is_idle()?, "the host did not wait");
        let found = waits(held, || destination.as_slice().map(<[f32]>::to_vec))?;
        assert_eq!(found, vec![1.0; ELEMENTS], "{copies:?}");

        // Later work on the buffer's own stream comes after the copy.
        let held = hold(copies)?;
        destination.copy_from_cudarc(&buffer, copies)?;
        assert_eq!(waits(held, || destination.to_vec())?, vec![2.0; ELEMENTS], "{copies:?}");

        let elements = destination.as_mut_slice()?;
        let held = hold(copies)?;
        waits(held, || copies.cuda().memcpy_dtoh(&slice, &mut Pinned(elements)))?;
        assert_eq!(elements, vec![1.0; ELEMENTS], "{copies:?}");
        destination.set_zero()?;
    }
    Ok(())
}

/// cudarc records no event then, but for its own pinned memory relies on one.
#[test]
#[ignore = "needs a CUDA GPU"]
fn pinned_copies_are_waited_for_on_the_default_stream_alone() -> Outcome {
    let cuda = CudaContext::new(0)?;
    let device = Context::from_cudarc(&cuda)?;
    let pinned = device.pinned()?.build()?;
    let stream = cuda.default_stream();
    let on = Stream::new(&device, &stream)?;
    let mut staging = millpond::Buffer::<f32>::zeroed(&pinned, ELEMENTS, on.millpond())?;
    let mut slice = stream.alloc_zeros::<f32>(ELEMENTS)?;
    staging.as_mut_slice()?.fill(1.0);
    let held = hold(&on)?;
    staging.copy_to_cudarc(&mut slice, &on)?;
    waits(held, || staging.as_mut_slice().map(|elements| elements.fill(2.0)))?;
    let held = hold(&on)?;
    staging.copy_from_cudarc(&slice, &on)?;
    assert_eq!(waits(held, || staging.as_slice().map(<[f32]>::to_vec))?, vec![1.0; ELEMENTS]);
    Ok(())
}

#[test]
#[ignore = "needs a CUDA GPU"]
fn pinned_copies_of_another_length_or_in_a_capture_are_refused() -> Outcome {
    use cudarc::driver::sys::{CUgraphInstantiate_flags, CUstreamCaptureMode};
    let Rig { device, stream, on, .. } = rig()?;
    let pinned = device.pinned()?.build()?;
    let mut staging = millpond::Buffer::<f32>::zeroed(&pinned, 16, &device.create_stream()?)?;
    let mut slice = stream.alloc_zeros::<f32>(16)?;
    let refused = staging.copy_to_cudarc(&mut slice.slice_mut(..15), &on);
    assert!(matches!(refused, Err(Error::LengthMismatch { found: 15, expected: 16, .. })), "{refused:?}");
    let refused = staging.copy_from_cudarc(&slice.slice(..15), &on);
    assert!(matches!(refused, Err(Error::LengthMismatch { found: 15, expected: 16, .. })), "{refused:?}");

    stream.synchronize()?;
    stream.begin_capture(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL)?;
    let to = staging.copy_to_cudarc(&mut slice, &on);
    let from = staging.copy_from_cudarc(&slice, &on);
    stream.end_capture(CUgraphInstantiate_flags::CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH)?;
    for refused in [to, from] {
        assert!(matches!(refused, Err(Error::Device(DeviceError::Invalid { .. }))), "{refused:?}");
    }
    staging.copy_to_cudarc(&mut slice, &on)?;
    assert_eq!(stream.clone_dtoh(&slice)?, [0.0; 16]);
    Ok(())
}

/// What a pair costs on top of the pool's own, and beside cudarc's. For a person to read.
#[test]
#[ignore = "needs a CUDA GPU"]
fn pairs_are_timed_with_and_without_event_tracking() -> Outcome {
    const PAIRS: u32 = 10_000;
    let each = |what: &str, pair: &mut dyn FnMut() -> Outcome| -> Outcome {
        (0..PAIRS / 10).try_for_each(|_| pair())?;
        let start = std::time::Instant::now();
        (0..PAIRS).try_for_each(|_| pair())?;
        println!("{what:<58} {:>8.1} ns", start.elapsed().as_nanos() as f64 / f64::from(PAIRS));
        Ok(())
    };
    for mode in ["one stream", "several streams", "several streams, no tracking"] {
        let cuda = CudaContext::new(0)?;
        let stream = if mode == "one stream" { cuda.default_stream() } else { cuda.new_stream()? };
        if mode.ends_with("no tracking") {
            // SAFETY: each buffer is used on one stream.
            unsafe { cuda.disable_event_tracking() };
        }
        let device = Context::from_cudarc(&cuda)?;
        let pool = Pool::builder(&device).build()?;
        let on = Stream::new(&device, &stream)?;
        each(&format!("{mode}: cudarc's alloc"), &mut || {
            // SAFETY: nothing reads the elements.
            let slice = unsafe { stream.alloc::<f32>(ELEMENTS) }?;
            drop(slice);
            Ok(())
        })?;
        each(&format!("{mode}: Buffer::uninit"), &mut || {
            // SAFETY: nothing reads the elements.
            let buffer = unsafe { Buffer::<f32>::uninit(&pool, ELEMENTS, &on) }?;
            drop(buffer);
            Ok(())
        })?;
        let own = on.millpond();
        each(&format!("{mode}: Pool::alloc, free"), &mut || {
            Ok(pool.free_block(pool.alloc(ELEMENTS as u64 * 4, own)?, own)?)
        })?;
        cuda.synchronize()?;
    }
    Ok(())
}
