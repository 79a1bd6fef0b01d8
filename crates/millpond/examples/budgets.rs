//! Three servers share one GPU: with a third of the memory each, and with one budget for all three.
//!
//! Each server gets bursts of requests, at times of its own. A request needs memory for some steps. A step takes as long for
//! many requests as for one. So a server serves as many at once as have memory; with one budget, that is all of it while the
//! others are idle. The example starts itself again, once for each server.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use millpond::{Budget, Buffer, Context, Error, Pool};

type Failure = Box<dyn std::error::Error>;

const MIB: u64 = 1 << 20;
const SERVERS: u64 = 3;

/// What all servers may hold, and what one request needs.
const LIMIT: u64 = 960 * MIB;
const REQUEST: u64 = 20 * MIB;

const BURSTS: u64 = 4;
/// Requests in a burst: together they need five sixths of the limit.
const BURST: u64 = 40;
const STEPS: usize = 20;
const STEP: Duration = Duration::from_millis(5);

fn main() -> Result<(), Failure> {
    let mut arguments = std::env::args().skip(1);
    if let (Some(server), name) = (arguments.next(), arguments.next()) {
        return serve(server.parse()?, name.as_deref());
    }
    let name = format!("example-{}", std::process::id());
    let budget = Budget::named(&name, LIMIT)?;
    let (thirds, _) = run(None, &budget)?;
    println!("a third of the memory each: {:.0} ms", thirds.as_secs_f64() * 1e3);
    let (shared, most) = run(Some(&name), &budget)?;
    println!("one budget for all:         {:.0} ms", shared.as_secs_f64() * 1e3);
    println!("the most that all held: {} of {} MiB", most / MIB, LIMIT / MIB);
    assert!(most <= LIMIT, "the sum never exceeds the limit");
    std::fs::remove_file(budget.path().expect("it has a name"))?;
    Ok(())
}

/// Runs all servers until each has served its bursts; how long the last one took, and the most that was held.
fn run(name: Option<&str>, budget: &Budget) -> Result<(Duration, u64), Failure> {
    let start = |server: u64| {
        let mut command = Command::new(std::env::current_exe()?);
        command.arg(server.to_string()).args(name).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()
    };
    let mut servers: Vec<Child> = (0..SERVERS).map(start).collect::<Result<_, _>>()?;
    // Each says when it is ready. Then all begin.
    for server in &mut servers {
        let mut line = String::new();
        BufReader::new(server.stdout.as_mut().expect("piped")).read_line(&mut line)?;
    }
    let began = Instant::now();
    for server in &mut servers {
        writeln!(server.stdin.take().expect("piped"))?;
    }
    let mut most = 0;
    while !servers.is_empty() {
        let mut left = Vec::new();
        for mut server in servers {
            match server.try_wait()? {
                None => left.push(server),
                Some(status) if status.success() => {}
                Some(status) => return Err(format!("a server ended with {status}").into()),
            }
        }
        servers = left;
        most = most.max(budget.held());
        std::thread::sleep(Duration::from_millis(1));
    }
    Ok((began.elapsed(), most))
}

/// One server: with the budget of this name, or with a third of the memory.
fn serve(server: u64, name: Option<&str>) -> Result<(), Failure> {
    let device = Context::cuda(0).or_else(|_| Context::host())?;
    let budget = match name {
        None => Budget::bytes(LIMIT / SERVERS),
        Some(name) => {
            let budget = Budget::named(name, LIMIT)?;
            budget.set_floor(LIMIT / SERVERS / 4)?; // a quarter of its third is always its own
            budget.set_patience(Duration::ZERO)?; // what others use, it does not wait for
            budget
        }
    };
    let pool = Pool::builder(&device).name(format!("server {server}")).budget(&budget).build()?;
    let stream = device.create_stream()?;
    println!("ready");
    std::io::stdin().read_line(&mut String::new())?;
    for burst in 0..BURSTS {
        // Bursts of different servers come at different times; those of every fourth round, at once.
        let offset = if burst % 4 == 3 { 0 } else { server * 150 };
        std::thread::sleep(Duration::from_millis(offset));
        let mut waiting = BURST;
        // The requests that are served, with the steps that each has left.
        let mut served: Vec<(Buffer<u8>, usize)> = Vec::new();
        for step in 0.. {
            // Every 25 ms it serves as many more as get memory.
            while waiting > 0 && step % 5 == 0 {
                match Buffer::<u8>::new(&pool, REQUEST as usize, &stream) {
                    Ok(memory) => served.push((memory, STEPS)),
                    Err(Error::OutOfMemory(_)) => break,
                    Err(error) => return Err(error.into()),
                }
                waiting -= 1;
            }
            std::thread::sleep(STEP); // of all of them at once
            served.iter_mut().for_each(|(_, left)| *left -= 1);
            served.retain(|(_, left)| *left > 0);
            if waiting == 0 && served.is_empty() {
                break;
            }
        }
        std::thread::sleep(Duration::from_millis(300 - offset));
    }
    Ok(())
}
