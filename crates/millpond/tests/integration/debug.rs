//! What is printed of the objects that programs hold: a line, whatever they hold themselves.

use std::fmt::Debug;

use millpond::device::host::HostDevice;
use millpond::device::sim::{SimDevice, SimOptions};
use millpond::testing::capturing::CapturingDevice;
use millpond::testing::checker::CheckerDevice;
use millpond::{Budget, Buffer, Context, Pool, Workspace};

fn assert_is_a_line(object: &dyn Debug) {
    let text = format!("{object:?}");
    assert!(text.len() < 200 && !text.contains('\n'), "{} bytes: {text}", text.len());
}

#[test]
fn each_object_is_a_line_in_debug_output() {
    let sim = SimDevice::new(SimOptions::default()).unwrap();
    let context = Context::new(CapturingDevice::new(CheckerDevice::new(sim.clone())));
    let budget = Budget::bytes(1 << 30);
    let builder = Pool::builder(&context).name("a pool").budget(&budget);
    let pool = builder.clone().build().unwrap();
    let stream = context.create_stream().unwrap();
    let event = stream.record().unwrap();
    let buffer = Buffer::<f32>::zeroed(&pool, 1 << 20, &stream).unwrap();
    let workspace = Workspace::new(&pool, 1 << 20, &stream).unwrap();
    let slice = workspace.alloc::<u8>(100).unwrap();
    let capture = pool.capture_pool();
    let capturing = capture.begin(&stream).unwrap();
    let host = HostDevice::new().unwrap();
    let objects: [&dyn Debug; 15] = [
        &sim,
        &host,
        &context,
        context.device(),
        &budget,
        &builder,
        &pool,
        &stream,
        &event,
        &buffer,
        &workspace,
        &slice,
        &capture,
        &capturing,
        &pool.reuse(),
    ];
    objects.into_iter().for_each(assert_is_a_line);
    assert!(format!("{pool:?}").contains("\"a pool\""));
}

#[test]
fn the_figures_of_a_pool_print_for_people() {
    let (_, context, stream) = crate::shared::sim_with(SimOptions::default());
    let pool = Pool::builder(&context).build().unwrap();
    let _kept = Buffer::<u8>::new(&pool, 3 << 20, &stream).unwrap();
    drop(Buffer::<u8>::new(&pool, 1 << 20, &stream).unwrap());
    let text = pool.stats().to_string();
    let lines: Vec<_> = text.lines().collect();
    assert_eq!(lines.len(), 3, "{text}");
    let expected =
        "reserved 4.00 MiB (at most 4.00 MiB), allocated 3.00 MiB (4.00 MiB), requested 3.00 MiB (4.00 MiB)";
    assert_eq!(lines[0], expected);
    assert!(lines[1].starts_with("1 blocks (at most 2); 2 allocations, 1 frees"), "{text}");
    assert!(lines[2].contains("0 out of memory"), "{text}");
}
