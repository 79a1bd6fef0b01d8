//! Replays on a GPU: real memory, real streams, the driver's own counts.
//!
//! `cargo test --release -p millpond-replay --test integration cuda:: -- --ignored --test-threads 1`

use millpond::Context;
use millpond::device::cuda::CudaDevice;
use millpond_replay::replay::{FreeWhen, Program, UNLIMITED, on_device, on_sim};

use crate::shared::{GNN, PIPELINE, data, only};

#[test]
#[ignore = "needs a CUDA GPU with 16 GiB free"]
fn a_gpu_agrees_with_the_simulation_and_its_driver() {
    for name in [GNN, PIPELINE] {
        let trace = only(&data(name));
        let program = Program::new(&trace, FreeWhen::Completed);
        for allocator in ["millpond", "caching", "expandable"] {
            let choose = |context: &Context| millpond_baselines::by_name(allocator, context);
            let simulated = on_sim(&trace, &program, &choose, UNLIMITED).unwrap();
            let (real, marks) =
                on_device(&trace, &program, &choose, CudaDevice::new(0).unwrap(), true).unwrap();
            println!("{name} {allocator}: {real:?}");
            assert!(marks > 1000, "{name} {allocator}: {marks}");
            let off = (real.ratio / simulated.ratio - 1.0).abs();
            assert!(
                off <= 0.01,
                "{name} {allocator}: {} on the GPU, {} in simulation",
                real.ratio,
                simulated.ratio
            );
            let driver = real.driver.unwrap();
            let off = driver.disagreement(real.peak_reserved);
            assert!(off.abs() <= 0.01, "{name} {allocator}: {off:+.4}, {driver:?}");
        }
    }
}
