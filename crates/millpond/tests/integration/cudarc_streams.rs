//! Which streams wait for which uses of cudarc's buffers, over a stand-in for the driver (`crates/run/tests/c/standin.c`).
//!
//! There, work is a number that counts up. It is done once the host waits for its stream, or for one that waits for it. Each program is
//! this test itself, in a process of its own.

use std::ffi::{CString, c_char, c_ulong};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, OnceLock};
use std::thread;

use cudarc::driver::{
    CudaContext, CudaFunction, CudaStream, DevicePtr, DevicePtrMut, LaunchConfig, PushKernelArg, sys,
};
use cudarc::nvrtc::Ptx;
use millpond::cudarc::{Buffer, Stream};
use millpond::{Advice, Context, Pool};

const ELEMENTS: usize = 1024;

/// The folder with the stand-in; `None` where there is no compiler.
fn stand_in() -> Option<&'static Path> {
    static BUILT: OnceLock<Option<PathBuf>> = OnceLock::new();
    let build = || {
        if Command::new("cc").arg("--version").output().is_err() {
            assert!(std::env::var_os("MILLPOND_REQUIRE_TOOLS").is_none(), "cc is not installed");
            eprintln!("not run: cc is not installed");
            return None;
        }
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("cudarc-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("cargo made the folder above");
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../run/tests/c/standin.c");
        let mut compiler = Command::new("cc");
        compiler.args(["-std=gnu11", "-O1", "-pthread", "-shared", "-fPIC", "-Wl,-soname,libcuda.so.1"]);
        let output =
            compiler.arg(source).arg("-o").arg(folder.join("libcuda.so.1")).output().expect("cc runs");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        Some(folder)
    };
    BUILT.get_or_init(build).as_deref()
}

fn succeeds(program: &str) {
    let Some(folder) = stand_in() else { return };
    let mut command = Command::new(std::env::current_exe().expect("a running test has a path"));
    command.args(["--exact", &format!("cudarc_streams::{program}"), "--ignored", "--nocapture"]);
    let output = command.env("LD_LIBRARY_PATH", folder).output().expect("it runs");
    let stdout = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{program}: {stdout}{}", String::from_utf8_lossy(&output.stderr));
    assert!(stdout.contains("1 passed"), "{program}: {stdout}");
}

macro_rules! programs {
    ($($(#[$about:meta])* $test:ident runs $program:ident $body:block)*) => {
        $($(#[$about])*
        #[test]
        fn $test() {
            succeeds(stringify!($program));
        }

        #[test]
        #[ignore = "a program, run by the test before it"]
        fn $program() $body)*
    };
}

/// A function of the stand-in's.
fn function<F: Copy>(name: &str) -> F {
    // SAFETY: the stand-in has the function, with the type that the caller names.
    unsafe {
        let library = libloading::Library::new("libcuda.so.1").expect("the stand-in");
        *library.get::<F>(name).expect("the stand-in has it")
    }
}

/// How often a function of the driver was called.
fn calls(name: &str) -> u64 {
    let name = CString::new(name).expect("no zero");
    // SAFETY: its type.
    unsafe { function::<unsafe extern "C" fn(*const c_char) -> c_ulong>("standin_calls")(name.as_ptr()) }
}

/// Records, waits and new events of a call.
fn events_of(call: impl FnOnce()) -> [u64; 3] {
    let count = || ["cuEventRecord", "cuStreamWaitEvent", "cuEventCreate"].map(calls);
    let before = count();
    call();
    let after = count();
    std::array::from_fn(|at| after[at] - before[at])
}

/// Work that takes until the host waits for it.
fn work(stream: &CudaStream) {
    // SAFETY: its type; the stream lives.
    unsafe { function::<unsafe extern "C" fn(sys::CUstream)>("standin_work")(stream.cu_stream()) }
}

struct Rig {
    cuda: Arc<CudaContext>,
    pool: Pool,
    on: Stream,
    kernel: CudaFunction,
}

impl Rig {
    /// With buffers on a stream that the program made.
    fn new() -> Self {
        let cuda = CudaContext::new(0).unwrap();
        let stream = cuda.new_stream().unwrap();
        Self::on(&cuda, &stream)
    }

    fn on(cuda: &Arc<CudaContext>, stream: &Arc<CudaStream>) -> Self {
        let device = Context::from_cudarc(cuda).unwrap();
        let pool = Pool::builder(&device).build().unwrap();
        let on = Stream::new(&device, stream).unwrap();
        let kernel = cuda.load_module(Ptx::from_src("")).unwrap().load_function("kernel").unwrap();
        Self { cuda: cuda.clone(), pool, on, kernel }
    }

    fn buffer(&self) -> Buffer<f32> {
        Buffer::zeroed(&self.pool, ELEMENTS, &self.on).unwrap()
    }

    fn streams<const N: usize>(&self) -> [Arc<CudaStream>; N] {
        std::array::from_fn(|_| self.cuda.new_stream().unwrap())
    }
}

/// Launches on a stream, with one argument.
macro_rules! launch {
    ($rig:expr, $stream:expr, $argument:expr) => {{
        // SAFETY: the kernel does nothing.
        unsafe { $stream.launch_builder(&$rig.kernel).arg($argument).launch(LaunchConfig::for_num_elems(1)) }
            .unwrap();
    }};
}

/// Whether all work of the stream is done.
fn is_idle(stream: &CudaStream) -> bool {
    // SAFETY: the stream lives.
    unsafe { sys::cuStreamQuery(stream.cu_stream()) == sys::CUresult::CUDA_SUCCESS }
}

/// A read in each way that there is.
type Read = fn(&Rig, &CudaStream, &Buffer<f32>);

const READS: [Read; 5] = [
    |rig, stream, buffer| launch!(rig, stream, buffer),
    |rig, stream, buffer| launch!(rig, stream, &buffer.slice(3..5).unwrap()),
    |_, stream, buffer| {
        let (_, _read) = buffer.device_ptr(stream);
        work(stream);
    },
    |_, stream, buffer| {
        let view = buffer.as_view();
        let (_, _read) = view.device_ptr(stream);
        work(stream);
    },
    |rig, stream, buffer| {
        // SAFETY: it is used on this stream only.
        let view = unsafe { buffer.as_view().as_cuda_view(stream) };
        launch!(rig, stream, &view);
    },
];

programs! {
    a_drop_waits_for_reads_on_every_stream runs program_drop_after_reads {
        let rig = Rig::new();
        for first in READS {
            for second in READS {
                let streams = rig.streams::<2>();
                let buffer = rig.buffer();
                first(&rig, &streams[0], &buffer);
                second(&rig, &streams[1], &buffer);
                drop(buffer);
                rig.on.synchronize().unwrap();
                assert_eq!(streams.each_ref().map(|stream| is_idle(stream)), [true; 2]);
            }
        }
    }

    a_write_waits_for_reads_on_every_stream runs program_write_after_reads {
        let rig = Rig::new();
        let mut buffer = rig.buffer();
        for read in READS {
            let [writing, streams @ ..] = rig.streams::<4>();
            streams.iter().for_each(|stream| read(&rig, stream, &buffer));
            launch!(rig, writing, &mut buffer);
            writing.synchronize().unwrap();
            assert_eq!(streams.each_ref().map(|stream| is_idle(stream)), [true; 3]);
        }
        assert_eq!(rig.pool.allocated().current, ELEMENTS as u64 * 4);
    }

    reads_wait_for_the_write_and_not_for_each_other runs program_reads {
        let rig = Rig::new();
        for read in READS {
            let mut buffer = rig.buffer();
            let [writing, one, other] = rig.streams();
            launch!(rig, writing, &mut buffer);
            read(&rig, &one, &buffer);
            read(&rig, &other, &buffer);
            other.synchronize().unwrap();
            assert_eq!([&writing, &one].map(|stream| is_idle(stream)), [true, false]);
        }
    }

    /// As two threads do, whose waits come before both writes.
    two_parts_are_written_at_once_and_both_are_waited_for runs program_parts {
        let rig = Rig::new();
        for is_launched in [true, false] {
            let [one, other] = rig.streams();
            let mut buffer = rig.buffer();
            let (mut front, mut back) = buffer.split_at_mut(ELEMENTS / 2).unwrap();
            if is_launched {
                thread::scope(|scope| {
                    scope.spawn(|| launch!(rig, one, &mut front));
                    scope.spawn(|| launch!(rig, other, &mut back));
                });
            } else {
                let (_, first) = front.device_ptr_mut(&one);
                let (_, second) = back.device_ptr_mut(&other);
                [&one, &other].into_iter().for_each(|stream| work(stream));
                drop((first, second));
            }
            drop(buffer);
            rig.on.synchronize().unwrap();
            assert_eq!([&one, &other].map(|stream| is_idle(stream)), [true; 2]);
        }
    }

    /// The threads' default streams have one handle.
    the_default_streams_of_two_threads_are_told_apart runs program_threads {
        let rig = Rig::new();
        let buffer = rig.buffer();
        let on_threads: Vec<_> = thread::scope(|scope| {
            let threads = [(), ()].map(|()| scope.spawn(|| {
                let stream = rig.cuda.per_thread_stream();
                launch!(rig, stream, &buffer);
                calls("cuEventCreate")
            }));
            threads.map(|thread| thread.join().unwrap()).into()
        });
        assert_eq!(on_threads.len(), 2);
        // The write of the allocation was recorded before.
        assert_eq!(events_of(|| drop(buffer))[1], 2, "one wait for each thread's stream");
    }

    /// cudarc's own slices take two events, and each use of theirs a wait or two.
    on_its_own_stream_a_buffer_waits_for_nothing runs program_own_stream {
        let rig = Rig::new();
        let own = rig.on.cuda();
        let mut buffer = rig.buffer();
        launch!(rig, own, &buffer);
        launch!(rig, own, &mut buffer);
        // The wait is cudarc's, for an event that nobody records.
        assert_eq!(events_of(|| launch!(rig, own, &buffer)), [1, 1, 0]);
        assert_eq!(events_of(|| launch!(rig, own, &mut buffer)), [1, 1, 0]);
        assert_eq!(events_of(|| drop(buffer)), [0, 0, 0]);
        // The next one at this address finds the events.
        let events = events_of(|| drop(rig.buffer()));
        assert_eq!((events[0], events[2]), (1, 0), "{events:?}");
    }

    /// Its handle may have been that of a stream that is gone, whose read the event told of.
    a_read_waits_for_the_one_before_on_the_same_handle runs program_same_handle {
        let rig = Rig::new();
        let (buffer, [stream]) = (rig.buffer(), rig.streams());
        launch!(rig, stream, &buffer);
        // For the write, for the read before, and cudarc's own.
        assert_eq!(events_of(|| launch!(rig, stream, &buffer)), [1, 3, 0]);
    }

    without_a_stream_of_cudarcs_there_are_no_events runs program_no_events {
        let cuda = CudaContext::new(0).unwrap();
        let rig = Rig::on(&cuda, &cuda.default_stream());
        let events = events_of(|| {
            let mut buffer = rig.buffer();
            launch!(rig, rig.on.cuda(), &buffer);
            launch!(rig, rig.on.cuda(), &mut buffer);
            launch!(rig, rig.on.cuda(), &mut buffer.slice_mut(1..5).unwrap());
        });
        assert_eq!(events, [0, 0, 0]);
    }

    /// The context has no stream of its own any more then.
    a_drop_waits_for_a_stream_that_is_gone runs program_stream_gone {
        let cuda = CudaContext::new(0).unwrap();
        let rig = Rig::on(&cuda, &cuda.default_stream());
        let stream = cuda.new_stream().unwrap();
        let buffer = rig.buffer();
        launch!(rig, stream, &buffer);
        drop(stream);
        assert_eq!(events_of(|| drop(buffer))[1], 1);
    }

    /// Else the memory's next owner would have it.
    advice_of_a_plain_buffer_is_taken_back_whatever_it_became runs program_advice {
        let rig = Rig::new();
        let managed = rig.pool.context().managed().unwrap().build().unwrap();
        let became: [fn(millpond::Buffer<f32>, &Stream); 3] = [
            |plain, on| drop(Buffer::from_plain(plain, on).unwrap()),
            |plain, on| drop(Buffer::from_plain(plain, on).unwrap().into_plain().unwrap()),
            |plain, _| drop(plain.cast::<u32>().unwrap()),
        ];
        for drop_as in became {
            let plain = || millpond::Buffer::<f32>::uninit(&managed, ELEMENTS, rig.on.millpond()).unwrap();
            let before = calls("cuMemAdvise");
            drop_as(plain(), &rig.on);
            assert_eq!(calls("cuMemAdvise"), before, "there is none");
            let advised = plain();
            advised.advise(Advice::ReadMostly(true)).unwrap();
            let given = calls("cuMemAdvise");
            drop_as(advised, &rig.on);
            assert!(given > before && calls("cuMemAdvise") > given);
        }
        assert_eq!(managed.allocated().current, 0);
    }
}
