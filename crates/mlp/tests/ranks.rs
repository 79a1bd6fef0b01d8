//! One training by several ranks, here threads with a device each: losses, memory, checkpoints, and the end of a rank.

use std::net::TcpListener;
use std::sync::Arc;
use std::time::Duration;

use millpond::device::DeviceName;
use millpond_baselines::{Allocator, MILLPOND, by_name};
use millpond_mlp::data::Dataset;
use millpond_mlp::ranks::{LastResort, Place, Ranks, Shard};
use millpond_mlp::{Epoch, Hyper, Machine, Memory, Observer, Result, Saving, Step, Upload, train};

const HYPER: Hyper = Hyper {
    num_layers: 4,
    feat_dim: 40,
    learning_rate: 0.1,
    batch_size: 64,
    micro_batches: 1,
    epochs: 2,
    seed: 5,
};

/// Nothing is stuck here.
const NEVER: LastResort = |loss, place| panic!("{place:?} is stuck: {loss:?}");

/// Stops after so many steps, or never.
struct StopsAfter(usize);

impl Observer for StopsAfter {
    fn wants_loss(&mut self, _: Step) -> bool {
        self.0 = self.0.saturating_sub(1);
        false
    }
    fn loss(&mut self, _: Step, _: f64) {}
    fn epoch(&mut self, _: &Epoch) {}
    fn stops(&mut self) -> bool {
        self.0 == 0
    }
}

fn data() -> Dataset {
    let mut data = Dataset::bundled().unwrap();
    // The last batch of an epoch has two images.
    data.train.truncate(7 * 64 + 2);
    data.validation.truncate(200);
    data
}

fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

fn place(rank: usize, world: usize, port: u16) -> Place {
    let (host, timeout) = ("127.0.0.1".to_owned(), Duration::from_secs(60));
    Place { rank, world, local_rank: rank, host, port, timeout }
}

/// What a rank has to say, for each rank of a world.
fn in_a_world<T: Send>(world: usize, rank: impl Fn(Arc<Ranks>) -> T + Sync) -> Vec<T> {
    let (port, rank) = (free_port(), &rank);
    std::thread::scope(|scope| {
        let ranks = (0..world).map(|number| {
            scope.spawn(move || rank(Arc::new(Ranks::meet(place(number, world, port), NEVER).unwrap())))
        });
        let ranks: Vec<_> = ranks.collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    })
}

/// How one rank trains.
#[derive(Clone, Copy)]
struct How<'a> {
    data: &'a Dataset,
    hyper: Hyper,
    shard: Shard,
    bucket_bytes: usize,
    saving: Option<&'a Saving>,
    steps: usize,
}

impl<'a> How<'a> {
    fn of(data: &'a Dataset) -> Self {
        let (shard, bucket_bytes) = (Shard::Nothing, 4096);
        Self { data, hyper: HYPER, shard, bucket_bytes, saving: None, steps: usize::MAX }
    }

    /// The epochs, and the most that was asked of the pool at one moment.
    fn train(&self, ranks: Option<&Arc<Ranks>>) -> Result<(Vec<Epoch>, u64)> {
        let (machine, _) = Machine::open(DeviceName::HOST.into()).unwrap();
        let allocator: Arc<dyn Allocator> = Arc::from(by_name(MILLPOND, machine.context()).unwrap());
        let memory = Memory::new(allocator.clone(), machine.context().create_stream().unwrap());
        let mut backend = machine.backend(memory, false).unwrap();
        let upload = Upload::new(machine.context()).unwrap();
        let team =
            ranks.map(|ranks| machine.team(ranks, self.shard).unwrap().bucket_bytes(self.bucket_bytes));
        let saving = self.saving.filter(|_| team.as_ref().is_none_or(|team| team.rank() == 0));
        let observer = &mut StopsAfter(self.steps);
        let epochs =
            train(backend.as_mut(), &upload, self.data, &self.hyper, saving, team.as_ref(), observer)?;
        if let Some(ranks) = ranks {
            ranks.gather(&()).unwrap();
            ranks.leave(None);
        }
        assert_eq!(allocator.usage().requested.current, 0, "training leaves nothing behind");
        Ok((epochs, allocator.usage().requested.high))
    }

    /// The losses, which all ranks agree on.
    fn in_a_world(&self, world: usize) -> Vec<[f64; 3]> {
        let all = in_a_world(world, |ranks| losses(&self.train(Some(&ranks)).unwrap().0));
        assert!(all.windows(2).all(|pair| bits(&pair[0]) == bits(&pair[1])), "{all:?}");
        all.into_iter().next().unwrap()
    }
}

fn losses(epochs: &[Epoch]) -> Vec<[f64; 3]> {
    epochs.iter().map(|epoch| [epoch.train_loss, epoch.val_loss, epoch.val_accuracy]).collect()
}

fn bits(losses: &[[f64; 3]]) -> Vec<[u64; 3]> {
    losses.iter().map(|losses| losses.map(f64::to_bits)).collect()
}

fn assert_close(found: &[[f64; 3]], expected: &[[f64; 3]]) {
    assert_eq!(found.len(), expected.len());
    for (found, expected) in found.iter().flatten().zip(expected.iter().flatten()) {
        assert!((found - expected).abs() <= 1e-6 * expected.abs(), "{found} and {expected}");
    }
}

#[test]
fn losses_of_many_ranks_are_those_of_one() {
    let data = data();
    let alone = losses(&How::of(&data).train(None).unwrap().0);
    for world in [2, 4] {
        let found = How::of(&data).in_a_world(world);
        assert_close(&found, &alone);
        // One process that adds up the same parts in the same order.
        let hyper = Hyper { micro_batches: world, ..HYPER };
        let parts = losses(&How { hyper, ..How::of(&data) }.train(None).unwrap().0);
        assert_eq!(bits(&found), bits(&parts), "{world} ranks and {world} parts");
    }
}

#[test]
fn parts_of_ranks_are_added_up_too() {
    let data = data();
    let alone = losses(&How::of(&data).train(None).unwrap().0);
    let hyper = Hyper { micro_batches: 3, ..HYPER };
    for shard in [Shard::Nothing, Shard::Optimizer] {
        assert_close(&How { hyper, shard, ..How::of(&data) }.in_a_world(2), &alone);
    }
}

#[test]
fn the_size_of_buckets_changes_nothing() {
    let data = data();
    let losses = |bucket_bytes| bits(&How { bucket_bytes, ..How::of(&data) }.in_a_world(2));
    assert_eq!(losses(1), losses(1 << 30));
}
