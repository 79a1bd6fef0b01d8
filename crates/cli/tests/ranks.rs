//! `millpond train` by several processes, with the environment that launchers give them: they train as one, and end as one.

mod shared;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use shared::{command, read_json, stderr, stdout};

/// A model whose epochs take some milliseconds.
const SMALL: [&str; 10] =
    ["train", "--device", "host", "--num-layers", "2", "--feat-dim", "32", "--batch-size", "500", "--quiet"];

fn free_port() -> u16 {
    loop {
        // The ranks meet at the port after it.
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        if port < u16::MAX && TcpListener::bind(("127.0.0.1", port + 1)).is_ok() {
            return port;
        }
    }
}

/// A rank, with the environment that torchrun gives it.
fn rank(rank: usize, world: usize, port: u16, args: &[&str]) -> Command {
    let mut command = command();
    let [rank, world, port] = [rank.to_string(), world.to_string(), port.to_string()];
    command.args(&SMALL).args(args);
    command.env("RANK", &rank).env("LOCAL_RANK", &rank).env("WORLD_SIZE", &world);
    command.env("LOCAL_WORLD_SIZE", &world).env("MASTER_ADDR", "127.0.0.1").env("MASTER_PORT", &port);
    command.env("MILLPOND_RENDEZVOUS_TIMEOUT", "60").env("RAYON_NUM_THREADS", "1");
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn spawned(world: usize, args: &[&str], dir: &Path) -> Vec<Child> {
    let port = free_port();
    (0..world).map(|number| rank(number, world, port, args).current_dir(dir).spawn().unwrap()).collect()
}

fn ended(ranks: Vec<Child>) -> Vec<Output> {
    ranks.into_iter().map(|rank| rank.wait_with_output().unwrap()).collect()
}

/// What all ranks said on stderr, and their statuses.
fn said(outputs: &[Output]) -> (String, Vec<Option<i32>>) {
    (outputs.iter().map(stderr).collect(), outputs.iter().map(|output| output.status.code()).collect())
}

fn losses(file: &Path) -> Vec<[f64; 3]> {
    let of =
        |epoch: &Value| ["train_loss", "val_loss", "val_accuracy"].map(|key| epoch[key].as_f64().unwrap());
    read_json(file)["epochs"].as_array().unwrap().iter().map(of).collect()
}

fn bits(losses: &[[f64; 3]]) -> Vec<[u64; 3]> {
    losses.iter().map(|losses| losses.map(f64::to_bits)).collect()
}

fn assert_close(found: &[[f64; 3]], expected: &[[f64; 3]]) {
    assert_eq!(found.len(), expected.len());
    for (found, expected) in found.as_flattened().iter().zip(expected.as_flattened()) {
        assert!((found - expected).abs() <= 1e-6 * expected.abs(), "{found} and {expected}");
    }
}

/// The losses of a training by one process.
fn alone(dir: &Path, args: &[&str]) -> Vec<[f64; 3]> {
    let file = dir.join("alone.json");
    let output = command().args(SMALL).args(["--json", "alone.json"]).args(args).current_dir(dir).output();
    stdout(&output.unwrap());
    losses(&file)
}

#[test]
fn processes_train_as_one_does_and_rank_0_speaks() {
    let dir = tempfile::tempdir().unwrap();
    let expected = alone(dir.path(), &["--epochs", "3"]);
    for world in [2, 4] {
        let outputs = ended(spawned(world, &["--epochs", "3", "--json", "run.json"], dir.path()));
        assert_eq!(said(&outputs), (String::new(), vec![Some(0); world]));
        assert!(outputs.iter().all(|output| output.stdout.is_empty()), "quiet");
        let found = losses(&dir.path().join("run.json"));
        assert_close(&found, &expected);
        let parts = world.to_string();
        let parts = alone(dir.path(), &["--epochs", "3", "--micro-batches", &parts]);
        assert_eq!(bits(&found), bits(&parts), "one process that adds up in the same order");
        let json = read_json(&dir.path().join("run.json"));
        let ranks = json["ranks"].as_array().unwrap();
        assert_eq!(ranks.len(), world);
        for (number, rank) in ranks.iter().enumerate() {
            assert_eq!((rank["rank"].as_u64(), rank["device"].as_str()), (Some(number as u64), Some("host")));
            assert!(rank["peak_requested"].as_u64().unwrap() > 0, "{rank}");
        }
    }
}
