//! Several GPUs in one process: who may use whose memory, and copies between them.
//!
//! On a machine with two GPUs: `cargo test -p millpond --test integration cuda_peers:: -- --ignored --test-threads=1`, or
//! `scripts/gpu-test`, which leaves the tests of `two_gpus` and `four_gpus` out where there are fewer.

/// What one GPU with two contexts can tell.
mod one_gpu {
    use millpond::device::Device;
    use millpond::device::cuda::CudaDevice;
    use millpond::{Buffer, Context, Pool};

    #[test]
    #[ignore = "needs a CUDA GPU"]
    fn two_contexts_copy_as_two_gpus_do() {
        let contexts = [0, 1].map(|_| Context::new(CudaDevice::new(0).unwrap()));
        let pools = contexts.each_ref().map(|context| Pool::builder(context).build().unwrap());
        let streams = contexts.each_ref().map(|context| context.create_stream().unwrap());
        let len = 40 << 20;
        let mut from = Buffer::<u8>::from_slice(&pools[0], &vec![1; len], &streams[0]).unwrap();
        let mut to = Buffer::<u8>::zeroed(&pools[1], len, &streams[1]).unwrap();
        for round in 1..20_u8 {
            to.copy_from(&from).unwrap();
            // Must not overtake the copy.
            from.copy_from_slice(&vec![round + 1; len]).unwrap();
            assert!(to.to_vec().unwrap().iter().all(|byte| *byte == round), "round {round}");
        }
        let at = from.ptr();
        to.copy_from(&from).unwrap();
        drop(from);
        let next = Buffer::<u8>::zeroed(&pools[0], len, &streams[0]).unwrap();
        assert!(to.to_vec().unwrap().iter().all(|byte| *byte == 20), "the source stayed until it was read");
        assert!(next.ptr() == at || pools[0].reserved().current > len as u64);
        drop(next);
        pools.iter().for_each(|pool| pool.check().unwrap());
    }

    #[test]
    #[ignore = "needs a CUDA GPU"]
    fn a_gpu_reaches_itself_and_no_gpu_that_is_not_there() {
        let gpu = CudaDevice::new(0).unwrap();
        let own = gpu.peer_id().unwrap();
        assert!(gpu.can_be_reached_from(own).unwrap());
        let context = Context::new(gpu);
        let pool = Pool::builder(&context).accessible_from([&context]).build().unwrap();
        pool.allow_access(&context).unwrap();
        pool.take_back_access(&context).unwrap();
        let host = Context::host().unwrap();
        assert!(pool.allow_access(&host).is_err());
        let all = Pool::builder(&context).accessible_from_all().build().unwrap();
        let stream = context.create_stream().unwrap();
        let buffer = Buffer::<u8>::zeroed(&all, 40 << 20, &stream).unwrap();
        assert!(buffer.to_vec().unwrap().iter().all(|byte| *byte == 0));
    }

    #[test]
    #[ignore = "needs a CUDA GPU"]
    fn pinned_and_managed_memory_goes_to_another_context_too() {
        let contexts = [0, 1].map(|_| Context::new(CudaDevice::new(0).unwrap()));
        let streams = contexts.each_ref().map(|context| context.create_stream().unwrap());
        let pool = Pool::builder(&contexts[1]).build().unwrap();
        for builder in [contexts[0].pinned().unwrap(), contexts[0].managed().unwrap()] {
            let staging = builder.build().unwrap();
            let mut from = Buffer::<u8>::zeroed(&staging, 3 << 20, &streams[0]).unwrap();
            from.as_mut_slice().unwrap().fill(7);
            let mut there = Buffer::<u8>::new(&pool, 3 << 20, &streams[1]).unwrap();
            there.copy_from(&from).unwrap();
            from.as_mut_slice().unwrap().fill(8);
            assert!(there.to_vec().unwrap().iter().all(|byte| *byte == 7));
            from.copy_from(&there).unwrap();
            assert!(from.as_slice().unwrap().iter().all(|byte| *byte == 7));
        }
    }
}

mod two_gpus {
    use std::sync::Arc;

    use cudarc::driver::sys::{self, CUmemLocation, CUresult};
    use millpond::device::Device;
    use millpond::device::cuda::{CudaDevice, CudaOptions};
    use millpond::{Buffer, Context, Pool, PoolBuilder, Stream};

    pub(super) const LEN: usize = 3 << 20;

    pub(super) struct Gpu {
        device: Arc<CudaDevice>,
        pub(super) context: Context,
        pub(super) pool: Pool,
        pub(super) stream: Stream,
    }

    impl Gpu {
        /// The memory is for all GPUs.
        fn open(ordinal: usize, options: CudaOptions) -> Self {
            Self::with(ordinal, options, PoolBuilder::accessible_from_all)
        }

        /// The memory is for the GPU alone, until somebody says otherwise.
        pub(super) fn alone(ordinal: usize) -> Self {
            Self::with(ordinal, CudaOptions::default(), |pool| pool)
        }

        fn with(ordinal: usize, options: CudaOptions, pool: fn(PoolBuilder) -> PoolBuilder) -> Self {
            let device = CudaDevice::with_options(ordinal, options).expect("two GPUs");
            let context = Context::new(device.clone());
            let pool = pool(Pool::builder(&context)).build().unwrap();
            let stream = context.create_stream().unwrap();
            Self { device, context, pool, stream }
        }

        pub(super) fn filled(&self, with: u8) -> Buffer<u8> {
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
    fn pages_stay_their_own_gpu_s_until_they_are_given() {
        let (first, second) = (Gpu::alone(0), Gpu::alone(1));
        let (of_first, other, of_second) = (first.filled(1), first.filled(1), second.filled(2));
        assert!(first.may_use(&of_first) && second.may_use(&of_second));
        assert!(!second.may_use(&of_first) && !first.may_use(&of_second));
        of_first.allow_access(&second.context).unwrap();
        assert!(second.may_use(&of_first) && !first.may_use(&of_second));
        second.writes_to(&of_first);
        first.pool.allow_access(&second.context).unwrap();
        second.writes_to(&other);
        second.writes_to(&first.filled(3));
        first.pool.take_back_access(&second.context).unwrap();
        assert!(!second.may_use(&of_first) && !second.may_use(&other) && first.may_use(&other));
        assert!(first.filled(4).to_vec().unwrap().iter().all(|byte| *byte == 4));
    }

    #[test]
    #[ignore = "needs two CUDA GPUs"]
    fn remapped_pages_need_to_be_given_again() {
        let (first, second) = (Gpu::alone(0), Gpu::alone(1));
        for round in 1..20 {
            let small: Vec<_> = (0..4).map(|_| first.filled(1)).collect();
            small.iter().for_each(|buffer| buffer.allow_access(&second.context).unwrap());
            drop(small);
            let long = Buffer::<u8>::new(&first.pool, round * LEN, &first.stream).unwrap();
            long.allow_access(&second.context).unwrap();
            assert!(second.may_use(&long));
            assert!(first.pool.is_accessible_from(long.ptr(), &second.context).unwrap());
        }
    }

    #[test]
    #[ignore = "needs two CUDA GPUs"]
    fn copies_between_gpus_come_in_stream_order() {
        let (first, second) = (Gpu::alone(0), Gpu::alone(1));
        let (mut from, mut to) = (first.filled(0), second.filled(0));
        for round in 1..50_u8 {
            from.copy_from_slice(&vec![round; LEN]).unwrap();
            to.copy_from(&from).unwrap();
            from.set_zero().unwrap(); // must not overtake the copy
            let mut back = Buffer::<u8>::new(&first.pool, LEN, &first.stream).unwrap();
            back.copy_from(&to).unwrap();
            assert!(back.to_vec().unwrap().iter().all(|byte| *byte == round), "round {round}");
        }
        assert!(second.may_use(&from) && first.may_use(&to), "the copies gave access");
    }

    /// A pool that is for its own GPU alone, and a source to which no access can be given: the driver goes by the host.
    #[test]
    #[ignore = "needs two CUDA GPUs"]
    fn a_copy_needs_no_access() {
        let (first, second) = (Gpu::alone(0), Gpu::alone(1));
        let (from, to) = (first.filled(5), second.filled(0));
        let source = first.device.peer_id().unwrap();
        // SAFETY: both blocks are live, and nothing else uses them before the synchronise.
        let copied = unsafe {
            second.device.copy_from_peer(to.ptr(), from.ptr(), LEN as u64, source, second.stream.handle())
        };
        copied.unwrap();
        second.stream.synchronize().unwrap();
        assert!(!second.may_use(&from));
        assert!(to.to_vec().unwrap().iter().all(|byte| *byte == 5));
    }

    #[test]
    #[ignore = "needs two CUDA GPUs"]
    fn segments_are_copied_too() {
        let segments = CudaOptions::default().virtual_memory(false);
        let gpus = [0, 1].map(|ordinal| Gpu::with(ordinal, segments, |pool| pool));
        let (from, mut to) = (gpus[0].filled(6), gpus[1].filled(0));
        to.copy_from(&from).unwrap();
        assert!(to.to_vec().unwrap().iter().all(|byte| *byte == 6));
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

mod four_gpus {
    use millpond::Buffer;

    use super::two_gpus::{Gpu, LEN};

    #[test]
    #[ignore = "needs four CUDA GPUs"]
    fn bytes_go_round_all_of_them_without_a_wait() {
        let gpus: Vec<_> = (0..4).map(Gpu::alone).collect();
        let mut buffers: Vec<_> = gpus.iter().map(|gpu| gpu.filled(0)).collect();
        for round in 1..20_u8 {
            buffers[0].copy_from_slice(&vec![round; LEN]).unwrap();
            for at in 1..=4 {
                let (from, to) = (at - 1, at % 4);
                let (before, behind) = buffers.split_at_mut(from.max(to));
                let (low, high) = (&mut before[from.min(to)], &mut behind[0]);
                if from < to { high.copy_from(low) } else { low.copy_from(high) }.unwrap();
            }
            buffers[1].set_zero().unwrap(); // must not overtake
            assert!(buffers[0].to_vec().unwrap().iter().all(|byte| *byte == round), "round {round}");
        }
    }

    #[test]
    #[ignore = "needs four CUDA GPUs"]
    fn a_pool_is_for_those_that_are_named() {
        let gpus: Vec<_> = (0..4).map(Gpu::alone).collect();
        gpus[0].pool.allow_access(&gpus[1].context).unwrap();
        gpus[0].pool.allow_access(&gpus[3].context).unwrap();
        let buffer = Buffer::<u8>::zeroed(&gpus[0].pool, LEN, &gpus[0].stream).unwrap();
        let may_use: Vec<_> = gpus
            .iter()
            .map(|gpu| gpus[0].pool.is_accessible_from(buffer.ptr(), &gpu.context).unwrap())
            .collect();
        assert_eq!(may_use, [true, true, false, true]);
    }
}
