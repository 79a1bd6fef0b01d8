//! Two processes share a buffer: one writes, the other one doubles each number, and nothing is copied between them.
//!
//! `cargo run -p millpond --example sharing` uses the CPU as a device; with `-- cuda`, the first GPU. The other process is this
//! program again. docs/sharing.md has what both can rely on.

use std::error::Error;
use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::process::Command;

use millpond::device::DeviceName;
use millpond::{Buffer, Context, Pool, Received};

const COUNT: u32 = 1 << 20;

type Outcome = Result<(), Box<dyn Error>>;

fn main() -> Outcome {
    let mut arguments = std::env::args().skip(1);
    let device: DeviceName = arguments.next().as_deref().unwrap_or("host").parse()?;
    let context = Context::new(device.open()?);
    match arguments.next() {
        Some(path) => other(&context, &mut UnixStream::connect(path)?),
        None => owner(&context, device),
    }
}

fn owner(context: &Context, device: DeviceName) -> Outcome {
    let path = std::env::temp_dir().join(format!("millpond-sharing-{}", std::process::id()));
    let listener = UnixListener::bind(&path)?;
    let mut process = Command::new(std::env::current_exe()?).arg(device.to_string()).arg(&path).spawn()?;
    let (mut socket, _) = listener.accept()?;
    std::fs::remove_file(&path)?;

    let pool = Pool::builder(context).for_sharing().build()?;
    let stream = context.create_stream()?;
    let numbers: Vec<u32> = (0..COUNT).collect();
    let buffer = Buffer::from_slice(&pool, &numbers, &stream)?;
    // After the copy, for which the host does not wait.
    let shared = buffer.share()?;
    shared.send(&socket)?;

    // The other process has recorded the event.
    socket.read_exact(&mut [0])?;
    shared.event().wait(&stream)?;
    let doubled = buffer.to_vec()?;
    assert!(doubled.iter().zip(&numbers).all(|(found, number)| *found == 2 * number));
    println!("{COUNT} numbers were doubled by process {}", process.id());
    socket.write_all(&[0])?;
    assert!(process.wait()?.success());
    Ok(())
}

fn other(context: &Context, socket: &mut UnixStream) -> Outcome {
    let stream = context.create_stream()?;
    let mut opened = context.open_shared::<u32>(Received::receive(socket)?, &stream)?;
    let numbers = opened.buffer.to_vec()?;
    let doubled: Vec<u32> = numbers.iter().map(|number| 2 * number).collect();
    opened.buffer.copy_from_slice(&doubled)?;
    opened.event.record(&stream)?;
    socket.write_all(&[0])?;
    // An event of a process that ended is gone: wait until the owner has waited for it.
    socket.read_exact(&mut [0])?;
    Ok(())
}
