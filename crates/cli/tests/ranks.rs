//! `millpond train` by several processes, with the environment that launchers give them: they train as one, and end as one.

use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::shared::{command, read_json, stderr, stdout};

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
    command.args(SMALL).args(args);
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

/// Far more epochs than there is time for, with the checkpoints that tell that all ranks train.
const LONG: [&str; 6] = ["--epochs", "100000", "--save", "kept", "--save-every", "1"];

fn until_they_train(dir: &Path) {
    let began = Instant::now();
    while !dir.join("kept/checkpoint.safetensors").exists() {
        assert!(began.elapsed() < Duration::from_secs(60), "no checkpoint is written");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_rank_that_is_killed_ends_the_others_with_one_message() {
    for killed in [1, 2, 0] {
        let dir = tempfile::tempdir().unwrap();
        let mut ranks = spawned(3, &LONG, dir.path());
        until_they_train(dir.path());
        // SIGKILL.
        ranks[killed].kill().unwrap();
        let began = Instant::now();
        let outputs = ended(ranks);
        assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
        let (text, mut statuses) = said(&outputs);
        let expected = format!(
            "millpond: rank {killed} has died: it was killed, or its machine is gone; --resume goes on from a checkpoint\n"
        );
        assert_eq!(text, expected);
        statuses.remove(killed);
        assert_eq!(statuses, [Some(1); 2]);
        // Rank 0 says it, and rank 1 if rank 0 is gone.
        assert_eq!(stderr(&outputs[usize::from(killed == 0)]), expected);
    }
}

#[test]
fn a_rank_that_fails_is_heard_by_rank_0() {
    let dir = tempfile::tempdir().unwrap();
    let port = free_port();
    let args: [&[&str]; 3] = [&LONG, &LONG, &["--epochs", "100000", "--data", "nowhere"]];
    let ranks = (0..3).map(|number| rank(number, 3, port, args[number]).current_dir(&dir).spawn().unwrap());
    let outputs = ended(ranks.collect());
    let (text, statuses) = said(&outputs);
    assert!(text.starts_with("millpond: rank 2: nowhere: cannot find the data: no such folder"), "{text}");
    assert_eq!(text.lines().count(), 1, "{text}");
    assert_eq!(statuses, [Some(1); 3]);
    assert_eq!(stderr(&outputs[0]), text);
}

#[test]
fn ctrl_c_to_any_rank_stops_all_after_the_same_step() {
    let dir = tempfile::tempdir().unwrap();
    let ranks = spawned(3, &LONG, dir.path());
    until_they_train(dir.path());
    let stopped = ranks[2].id().to_string();
    assert!(Command::new("kill").args(["-s", "INT", &stopped]).status().unwrap().success());
    let outputs = ended(ranks);
    let (text, statuses) = said(&outputs);
    assert!(text.starts_with("millpond: stopped by Ctrl-C: ") && text.lines().count() == 1, "{text}");
    assert_eq!((statuses, stderr(&outputs[0])), (vec![Some(130); 3], text));
}

#[test]
fn a_rank_that_does_not_come_is_named() {
    let port = free_port();
    let mut command = rank(0, 3, port, &[]);
    let output = command.env("MILLPOND_RENDEZVOUS_TIMEOUT", "1").output().unwrap();
    let expected = format!("millpond: ranks 1, 2 of 3 have not come to 127.0.0.1:{} within 1 s;", port + 1);
    assert!(stderr(&output).starts_with(&expected), "{}", stderr(&output));
    assert_eq!(output.status.code(), Some(1));
}

#[test]
fn environments_that_make_no_sense_are_wrong_usage() {
    let output = rank(2, 2, 1, &[]).output().unwrap();
    assert_eq!(stderr(&output), "millpond: RANK is 2, but WORLD_SIZE is 2: ranks count from 0\n");
    assert_eq!(output.status.code(), Some(2));
    let wrong = [0, 1].map(|number| rank(number, 2, 1, &["--epohcs", "1"]).output().unwrap());
    let (text, statuses) = said(&wrong);
    assert!(text.starts_with("millpond: --epohcs: there is no such flag"), "{text}");
    assert_eq!((text.lines().count(), statuses), (1, vec![Some(2); 2]));
    let output = command().args(SMALL).args(["--shard", "optimizer"]).output().unwrap();
    assert!(stderr(&output).contains("--shard splits over several processes: start them with"));
    assert_eq!(output.status.code(), Some(2));
    let (text, statuses) = said(&ended(spawned(2, &["--steps", "captured"], Path::new("."))));
    assert!(text.starts_with("millpond: --steps captured is for a training of one process"), "{text}");
    assert_eq!((text.lines().count(), statuses), (1, vec![Some(2); 2]));
    let args = ["--shard", "gradients", "--micro-batches", "2"];
    let outputs = ended(spawned(2, &args, Path::new(".")));
    let (text, statuses) = said(&outputs);
    assert!(text.starts_with("millpond: --shard gradients sums each batch at once"), "{text}");
    assert_eq!((text.lines().count(), statuses), (1, vec![Some(2); 2]));
}

#[test]
fn a_world_that_is_killed_goes_on_with_another_number_of_ranks() {
    let dir = tempfile::tempdir().unwrap();
    let args = ["--epochs", "4", "--momentum", "0.5"];
    let expected = alone(dir.path(), &args);
    let saving =
        ["--save", "kept", "--save-every", "1", "--resume", "--json", "run.json", "--shard", "gradients"];
    let args = [&args[..], &saving].concat();
    for world in [2, 3, 4] {
        let file = dir.path().join("kept/checkpoint.safetensors");
        let kept = || std::fs::metadata(&file).and_then(|file| file.modified()).ok();
        let before = kept();
        let mut ranks = spawned(world, &args, dir.path());
        while kept() == before && ranks[0].try_wait().unwrap().is_none() {
            std::thread::sleep(Duration::from_millis(5));
        }
        // It may be done already.
        ranks[1].kill().unwrap();
        ended(ranks);
    }
    let outputs = ended(spawned(2, &args, dir.path()));
    assert_eq!(said(&outputs), (String::new(), vec![Some(0); 2]));
    assert_close(&losses(&dir.path().join("run.json")), &expected);
}

#[test]
fn the_account_has_the_memory_of_each_rank() {
    let (port, dir) = (free_port(), tempfile::tempdir().unwrap());
    let loud = |number| {
        let mut command = command();
        command.args(&SMALL[..SMALL.len() - 1]).args(["--epochs", "1"]).current_dir(&dir);
        command.env("OMPI_COMM_WORLD_RANK", number).env("OMPI_COMM_WORLD_SIZE", "2");
        command.env("OMPI_COMM_WORLD_LOCAL_SIZE", "2").env("OMPI_COMM_WORLD_LOCAL_RANK", number);
        command.env("MILLPOND_RENDEZVOUS_PORT", port.to_string());
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    };
    let outputs = ended(vec![loud("0"), loud("1")]);
    let text = stdout(&outputs[0]);
    assert!(text.contains("\nranks:  2, each with its part of every batch; this is rank 0\n"), "{text}");
    let account = text.split("\nmemory of each rank, at most:\n").nth(1).unwrap_or_else(|| panic!("{text}"));
    let lines: Vec<_> = account.lines().collect();
    assert!(lines[0].starts_with("rank") && lines[0].ends_with("reserved"), "{account}");
    let begin = |line: &str| line.split_whitespace().take(3).collect::<Vec<_>>().join(" ");
    assert_eq!([begin(lines[1]), begin(lines[2])], ["0 host of", "1 host of"], "{account}");
    assert_eq!(stdout(&outputs[1]), "");
}
