//! Several GPUs in one process: their memory is within each other's reach, as `cudaMalloc`'s is where peer access is on.
//!
//! On a machine with two GPUs: `cargo test -p millpond --test cuda_peers -- --ignored --test-threads=1`, or
//! `scripts/gpu-test`, which leaves the tests of `two_gpus` out where there is one.
#![cfg(feature = "cuda")]

mod two_gpus {
    use std::sync::Arc;

    use cudarc::driver::sys::{self, CUmemLocation, CUresult};
    use millpond::device::Device;
    use millpond::device::cuda::{CudaDevice, CudaOptions};
    use millpond::{Buffer, Context, Pool, Stream};

    const LEN: usize = 3 << 20;

    struct Gpu {
        device: Arc<CudaDevice>,
        pool: Pool,
        stream: Stream,
    }

    impl Gpu {
        fn open(ordinal: usize, options: CudaOptions) -> Self {
            let device = CudaDevice::with_options(ordinal, options).expect("two GPUs");
            let context = Context::new(device.clone());
            let pool = Pool::builder(&context).build().unwrap();
            let stream = context.create_stream().unwrap();
            Self { device, pool, stream }
        }

        fn filled(&self, with: u8) -> Buffer<u8> {
            let mut buffer = Buffer::new(&self.pool, LEN, &self.stream).unwrap();
            buffer.copy_from_slice(&vec![with; LEN]).unwrap();
            self.stream.synchronize().unwrap();
            buffer
        }

        /// This GPU writes to a block of the other one's, and the other one reads it back.
        fn writes_to(&self, other: &Buffer<u8>) {
            // SAFETY: the block is live, and nothing else uses it before the synchronise.
            unsafe { self.device.memset(other.ptr(), 7, LEN as u64, self.stream.handle()) }.unwrap();
            self.stream.synchronize().unwrap();
            assert!(other.to_vec().unwrap().iter().all(|byte| *byte == 7));
        }

        /// Whether this GPU may use the page that the block begins on.
        fn may_use(&self, other: &Buffer<u8>) -> bool {
            let mut flags = 0;
            // SAFETY: in cuda.h a location is a kind and a number, both of the size of an int; 1 is a device.
            let location =
                unsafe { std::mem::transmute::<[i32; 2], CUmemLocation>([1, self.device.raw_device()]) };
            // SAFETY: the flags are writable, and the address is mapped.
            let asked = unsafe { sys::cuMemGetAccess(&mut flags, &location, other.ptr().raw()) };
            assert_eq!(asked, CUresult::CUDA_SUCCESS);
            flags != 0
        }
    }

    #[test]
    #[ignore = "needs two CUDA GPUs"]
    fn each_reaches_what_the_other_has_mapped_and_maps_later() {
        let first = Gpu::open(0, CudaOptions::default());
        let before = first.filled(1);
        let second = Gpu::open(1, CudaOptions::default());
        assert!(!second.may_use(&before), "access costs much, and the second GPU has no memory yet");
        let of_second = second.filled(2);
        let after = first.filled(3);
        second.writes_to(&before);
        second.writes_to(&after);
        first.writes_to(&of_second);
    }

    #[test]
    #[ignore = "needs two CUDA GPUs"]
    fn pages_that_move_stay_within_reach() {
        let first = Gpu::open(0, CudaOptions::default());
        let second = Gpu::open(1, CudaOptions::default());
        let of_second = second.filled(2);
        for round in 1..20 {
            let small: Vec<_> = (0..4).map(|_| first.filled(1)).collect();
            drop(small);
            let long = Buffer::<u8>::new(&first.pool, round * LEN, &first.stream).unwrap();
            assert!(second.may_use(&long));
            second.writes_to(&first.filled(3));
        }
        first.writes_to(&of_second);
    }

    #[test]
    #[ignore = "needs two CUDA GPUs"]
    fn without_peer_access_pages_stay_their_own_gpu_s() {
        let alone = CudaOptions::default().peer_access(false);
        let (first, second) = (Gpu::open(0, alone), Gpu::open(1, CudaOptions::default()));
        let (of_first, of_second) = (first.filled(1), second.filled(2));
        assert!(first.may_use(&of_first) && second.may_use(&of_second));
        assert!(!second.may_use(&of_first) && !first.may_use(&of_second));
    }

    #[test]
    #[ignore = "needs two CUDA GPUs"]
    fn a_gpu_that_is_closed_is_given_no_more() {
        let first = Gpu::open(0, CudaOptions::default());
        let second = Gpu::open(1, CudaOptions::default());
        drop((first.filled(1), second.filled(2)));
        let raw = second.device.raw_device();
        drop(second);
        first.pool.trim_to(0).unwrap();
        let fresh = first.filled(3);
        let again = Gpu::open(1, CudaOptions::default());
        assert_eq!(again.device.raw_device(), raw);
        assert!(!again.may_use(&fresh));
        drop(again.filled(4));
        assert!(again.may_use(&fresh));
    }

    #[test]
    #[ignore = "needs two CUDA GPUs"]
    fn segments_are_within_reach_too() {
        let segments = CudaOptions::default().virtual_memory(false);
        let (first, second) = (Gpu::open(0, segments), Gpu::open(1, segments));
        let (of_first, of_second) = (first.filled(1), second.filled(2));
        second.writes_to(&of_first);
        first.writes_to(&of_second);
    }
}
