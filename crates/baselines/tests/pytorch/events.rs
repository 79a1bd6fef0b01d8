//! Two traces of real jobs: what PyTorch 2.11 recorded on one NVIDIA H200.

/// A graph neural network on graphs of varying size, six steps.
pub(crate) const GNN: &str = include_str!("gnn.events");
/// Four compute streams fed by a copy stream, forty steps.
pub(crate) const PIPELINE: &str = include_str!("pipeline_streams.events");

/// One line of a trace.
pub(crate) enum Event {
    /// `a BLOCK STREAM BYTES`
    Alloc { block: usize, stream: usize, bytes: u64 },
    /// `f BLOCK`: the block can be reused.
    Free { block: usize },
    /// `s STREAM BYTES`: PyTorch allocated a segment, for the next allocation.
    Segment { bytes: u64 },
}

/// The lines of a trace. Blocks are numbered in the order in which they are allocated.
pub(crate) fn read(trace: &str) -> impl Iterator<Item = Event> + '_ {
    trace.lines().map(|line| {
        let (kind, numbers) = line.split_once(' ').unwrap();
        let numbers: Vec<u64> = numbers.split(' ').map(|number| number.parse().unwrap()).collect();
        match (kind, &numbers[..]) {
            ("a", &[block, stream, bytes]) => {
                Event::Alloc { block: block as usize, stream: stream as usize, bytes }
            }
            ("f", &[block]) => Event::Free { block: block as usize },
            ("s", &[_, bytes]) => Event::Segment { bytes },
            _ => panic!("no event: {line}"),
        }
    })
}
