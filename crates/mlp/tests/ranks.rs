//! One training by several ranks, here threads with a device each: losses, memory, checkpoints, and the end of a rank.

use std::io::Write;
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use millpond::device::DeviceName;
use millpond_baselines::{Allocator, MILLPOND, by_name};
use millpond_mlp::data::Dataset;
use millpond_mlp::ranks::{LastResort, Place, Ranks, Shard};
use millpond_mlp::{
    Epoch, Error, Hyper, Machine, Memory, Observer, Precision, Result, Saving, Step, Steps, Task, Upload,
    train,
};

const HYPER: Hyper = Hyper {
    num_layers: 4,
    feat_dim: 40,
    learning_rate: 0.1,
    momentum: 0.0,
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
    Place { timeout: Duration::from_secs(60), ..Place::here(rank, world, port) }
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
        let mut backend = machine.backend(memory, Precision::Float32).unwrap();
        let upload = Upload::new(machine.context()).unwrap();
        let team = ranks.map(|ranks| machine.team(ranks, self.shard)).transpose()?;
        let team = team.map(|team| team.bucket_bytes(self.bucket_bytes));
        let saving = self.saving.filter(|_| team.as_ref().is_none_or(|team| team.rank() == 0));
        let observer = &mut StopsAfter(self.steps);
        let epochs = train(
            backend.as_mut(),
            &upload,
            Task { data: self.data, hyper: &self.hyper, saving, team: team.as_ref(), steps: Steps::Auto },
            observer,
        )?;
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

#[test]
fn losses_are_the_same_whatever_is_split() {
    let data = data();
    for momentum in [0.0, 0.9] {
        let hyper = Hyper { momentum, learning_rate: 0.05, ..HYPER };
        let how = How { hyper, ..How::of(&data) };
        for world in [2, 4] {
            let whole = how.in_a_world(world);
            assert_close(&whole, &losses(&how.train(None).unwrap().0));
            for shard in [Shard::Optimizer, Shard::Gradients] {
                let split = How { shard, ..how }.in_a_world(world);
                assert_eq!(bits(&split), bits(&whole), "{momentum} {world} {shard:?}");
            }
        }
    }
}

#[test]
fn what_is_split_takes_as_much_less_memory() {
    let data = data();
    let hyper = Hyper { num_layers: 25, feat_dim: 128, momentum: 0.9, epochs: 1, batch_size: 16, ..HYPER };
    let layer = 128 * 128 * 4_u64;
    // Of layers: the first reads images, the others do not. The head's few weights are in a bucket with the last of them.
    let first = 784 * 128 * 4_u64;
    let all = first + 24 * layer + 128 * 10 * 4;
    for world in [2, 4] {
        let most = |shard| {
            let how = How { hyper, shard, bucket_bytes: 40 << 10, ..How::of(&data) };
            in_a_world(world, |ranks| how.train(Some(&ranks)).unwrap().1)
        };
        let [whole, optimizer, gradients] = [Shard::Nothing, Shard::Optimizer, Shard::Gradients].map(most);
        for rank in 0..world {
            let rest = all - all / world as u64;
            let saved = [whole[rank] - optimizer[rank], optimizer[rank] - gradients[rank]];
            // Instead of all gradients there is a piece of each, and two buckets that take turns.
            let expected = [rest, rest - first - layer];
            for (saved, expected) in saved.into_iter().zip(expected) {
                assert!(
                    saved.abs_diff(expected) < 32 << 10,
                    "{rank} of {world}: saved {saved}, expected {expected}"
                );
            }
        }
    }
}

#[test]
fn a_training_goes_on_with_another_number_of_ranks() {
    let data = data();
    let hyper = Hyper { momentum: 0.9, learning_rate: 0.05, ..HYPER };
    let how = How { hyper, ..How::of(&data) };
    let whole = losses(&how.train(None).unwrap().0);
    for (shard, next, steps) in [(Shard::Nothing, 4, 3), (Shard::Optimizer, 1, 9), (Shard::Gradients, 3, 11)]
    {
        let dir = tempfile::tempdir().unwrap();
        let saving = Saving::new(dir.path(), Some(1)).unwrap();
        let stopped = How { shard, saving: Some(&saving), steps, ..how };
        in_a_world(2, |ranks| stopped.train(Some(&ranks)).unwrap().0.len());
        let saving = saving.resume(&hyper, &data).unwrap();
        let from = saving.resumed_from().unwrap();
        let done = from.epochs().len() * 8 + from.images().div_ceil(64);
        // All ranks stop after the same step, some steps after the first is asked to.
        assert!(done >= steps && (done < 16 || steps > 8), "{done}");
        let resumed = How { shard, saving: Some(&saving), ..how };
        let found = match next {
            1 => losses(&resumed.train(None).unwrap().0),
            _ => resumed.in_a_world(next),
        };
        assert_close(&found, &whole);
    }
}

const SHARDS: [Shard; 3] = [Shard::Nothing, Shard::Optimizer, Shard::Gradients];

#[test]
fn one_rank_alone_trains_as_without_ranks() {
    let data = data();
    // Without momentum, one process alone adds to the weights what ranks have as gradients first: that rounds otherwise.
    for (momentum, shard) in [0.0, 0.5].into_iter().flat_map(|momentum| SHARDS.map(|shard| (momentum, shard)))
    {
        let hyper = Hyper { momentum, ..HYPER };
        let alone = losses(&How { hyper, ..How::of(&data) }.train(None).unwrap().0);
        let (machine, _) = Machine::open(DeviceName::HOST.into()).unwrap();
        let allocator: Arc<dyn Allocator> = Arc::from(by_name(MILLPOND, machine.context()).unwrap());
        let memory = Memory::new(allocator.clone(), machine.context().create_stream().unwrap());
        let mut backend = machine.backend(memory, Precision::Float32).unwrap();
        let upload = Upload::new(machine.context()).unwrap();
        let team = machine.team_of_one(shard).unwrap().bucket_bytes(4096);
        let observer = &mut StopsAfter(usize::MAX);
        let epochs = train(
            backend.as_mut(),
            &upload,
            Task { team: Some(&team), ..Task::new(&data, &hyper) },
            observer,
        )
        .unwrap();
        assert_close(&losses(&epochs), &alone);
        if momentum > 0.0 {
            assert_eq!(bits(&losses(&epochs)), bits(&alone), "{shard:?}");
        }
    }
}

/// The error of a training whose rank 1 ends like this.
fn error_of_rank_0(end: impl Fn(Arc<Ranks>) + Sync) -> (Error, Duration) {
    let data = data();
    let hyper = Hyper { epochs: 100_000, ..HYPER };
    let began = Instant::now();
    let mut all = in_a_world(3, |ranks| {
        let how = How { hyper, ..How::of(&data) };
        if ranks.place().rank == 1 {
            end(ranks);
            return None;
        }
        Some((how.train(Some(&ranks)).unwrap_err(), began.elapsed()))
    });
    let others = all.remove(2).unwrap();
    assert!(matches!(others.0, Error::RankLost { rank: 1, .. }), "{others:?}");
    all.remove(0).unwrap()
}

#[test]
fn a_rank_that_goes_ends_the_others() {
    let (error, took) = error_of_rank_0(drop);
    assert!(
        error.to_string().starts_with("rank 1 has died: it was killed, or its machine is gone"),
        "{error}"
    );
    assert!(took < Duration::from_secs(5), "{took:?}");
    let (error, _) = error_of_rank_0(|ranks| ranks.leave(Some("no memory")));
    assert_eq!(error.to_string(), "rank 1: no memory");
}

#[test]
fn other_settings_on_one_rank_are_refused() {
    let data = data();
    let errors = in_a_world(2, |ranks| {
        let seed = if ranks.place().rank == 1 { 6 } else { 5 };
        let how = How { hyper: Hyper { seed, ..HYPER }, ..How::of(&data) };
        how.train(Some(&ranks)).unwrap_err().to_string()
    });
    assert!(
        errors[0].starts_with("rank 1 has other settings than rank 0: start all ranks with"),
        "{errors:?}"
    );
    let tiny = Hyper { batch_size: 1, ..HYPER };
    let errors = in_a_world(2, |ranks| {
        How { hyper: tiny, ..How::of(&data) }.train(Some(&ranks)).unwrap_err().to_string()
    });
    assert!(
        errors.iter().any(|error| error.starts_with("a batch of 1 cannot be cut into 2 parts")),
        "{errors:?}"
    );
}

#[test]
fn a_rank_that_does_not_come_is_named() {
    let port = free_port();
    let meet = |rank| Ranks::meet(Place { timeout: Duration::from_secs(1), ..place(rank, 4, port) }, NEVER);
    std::thread::scope(|scope| {
        let came = scope.spawn(|| meet(2).unwrap_err().to_string());
        let error = meet(0).unwrap_err().to_string();
        let expected = format!(
            "ranks 1, 3 of 4 have not come to 127.0.0.1:{port} within 1 s; MILLPOND_RENDEZVOUS_TIMEOUT sets another time"
        );
        assert_eq!(error, expected);
        let error = came.join().unwrap();
        assert!(error.contains("went away before all ranks had come"), "{error}");
    });
    let error = meet(3).unwrap_err().to_string();
    assert!(error.starts_with(&format!("rank 3: rank 0 at 127.0.0.1:{port} did not answer")), "{error}");
}

fn until_connected(port: u16) -> TcpStream {
    let began = Instant::now();
    loop {
        match TcpStream::connect(("127.0.0.1", port)) {
            Ok(stream) => return stream,
            Err(error) => assert!(began.elapsed() < Duration::from_secs(60), "{error}"),
        }
    }
}

#[test]
fn strangers_are_not_answered() {
    let port = free_port();
    std::thread::scope(|scope| {
        let first = scope.spawn(|| Ranks::meet(place(0, 2, port), NEVER).unwrap());
        let (silent, mut loud) = (until_connected(port), until_connected(port));
        loud.write_all(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
        let error = Ranks::meet(place(1, 3, port), NEVER).unwrap_err().to_string();
        assert!(error.contains("rank 0 belongs to a world of 2 ranks, and this is rank 1 of 3"), "{error}");
        let other = Ranks::meet(place(1, 2, port), NEVER).unwrap();
        let first = first.join().unwrap();
        let said = scope.spawn(move || (other.gather(&7).unwrap(), other.leave(None)).0);
        assert_eq!(first.gather(&5).unwrap(), [5, 7]);
        assert_eq!(said.join().unwrap(), [5, 7]);
        first.leave(None);
        drop(silent);
    });
}
