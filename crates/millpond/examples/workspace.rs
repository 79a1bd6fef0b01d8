//! Scratch memory for every step of a loop: one block, bump-allocated, reset at no cost.

use millpond::{Context, HumanBytes, Pool, Result, Workspace};

fn main() -> Result<()> {
    let device = Context::host()?;
    let pool = Pool::builder(&device).name("steps").build()?;
    let stream = device.create_stream()?;
    let mut workspace = Workspace::new(&pool, 8 << 20, &stream)?;
    for batch in [256, 64, 128] {
        let activations = workspace.alloc::<f32>(batch * 784)?;
        let gradients = workspace.alloc::<f32>(batch * 784)?;
        assert!(activations.ptr() < gradients.ptr());
        // … give work on both to the stream …
        workspace.reset(); // the next step's work runs after this one's on the same stream
    }
    println!("{} of {} used at most", HumanBytes(workspace.high_water()), HumanBytes(workspace.capacity()));
    assert_eq!(pool.stats().allocations, 1);
    Ok(())
}
