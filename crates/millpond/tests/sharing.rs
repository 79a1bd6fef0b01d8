//! Memory that two processes share, on the host device: the other process is this program again.

mod shared;

use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::process::{Child, Command};
use std::time::Duration;

use millpond::device::host::{HostDevice, HostOptions};
use millpond::{Buffer, Context, Opened, Pool, Received, Stream};

use shared::MIB;

/// Which test a process has a part in.
const TEST: &str = "MILLPOND_TEST_SHARING";
/// Where it finds the other process.
const SOCKET: &str = "MILLPOND_TEST_SHARING_SOCKET";

/// Another process, which runs the same test, and a socket to it.
struct Other {
    process: Child,
    socket: UnixStream,
}

impl Other {
    /// Does one part of the test in this process, and the other in another one.
    fn with(name: &str, here: impl FnOnce(&mut Self), there: impl FnOnce(UnixStream)) {
        if std::env::var(TEST).is_ok_and(|asked| asked == name) {
            return there(UnixStream::connect(std::env::var_os(SOCKET).unwrap()).unwrap());
        }
        let mut other = Self::start(name);
        here(&mut other);
        let status = other.process.wait().unwrap();
        assert!(status.success(), "the other process: {status}");
    }

    fn start(name: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("socket");
        let listener = UnixListener::bind(&path).unwrap();
        let process = Command::new(std::env::current_exe().unwrap())
            .args([name, "--exact", "--nocapture", "--test-threads=1"])
            .env(TEST, name)
            .env(SOCKET, &path)
            .spawn()
            .unwrap();
        let (socket, _) = listener.accept().unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        Self { process, socket }
    }
}

fn say(mut socket: &UnixStream) {
    socket.write_all(&[1]).unwrap();
}

fn hear(mut socket: &UnixStream) {
    socket.read_exact(&mut [0]).unwrap();
}

fn host() -> (Context, Pool, Stream) {
    let context = Context::new(HostDevice::with_options(HostOptions::default().capacity(1 << 30)).unwrap());
    let pool = Pool::builder(&context).build().unwrap();
    let stream = context.create_stream().unwrap();
    (context, pool, stream)
}

fn numbers(count: usize) -> Vec<u32> {
    (0..count as u32).map(|number| number.wrapping_mul(2_654_435_761)).collect()
}

#[test]
fn bytes_go_both_ways() {
    const COUNT: usize = 5 << 20;
    Other::with(
        "bytes_go_both_ways",
        |other| {
            let (_context, pool, stream) = host();
            // So that the next begins inside a page.
            let _before = Buffer::<u8>::new(&pool, 3 << 20, &stream).unwrap();
            let buffer = Buffer::from_slice(&pool, &numbers(COUNT), &stream).unwrap();
            let shared = buffer.share().unwrap();
            shared.send(&other.socket).unwrap();
            hear(&other.socket);
            shared.event().wait(&stream).unwrap();
            let doubled: Vec<_> = numbers(COUNT).iter().map(|number| number.wrapping_mul(2)).collect();
            assert!(buffer.to_vec().unwrap() == doubled);
            pool.check().unwrap();
        },
        |socket| {
            let (context, pool, stream) = host();
            let Opened { mut buffer, event, .. } =
                context.open_shared::<u32>(Received::receive(&socket).unwrap(), &stream).unwrap();
            let mut found = buffer.to_vec().unwrap();
            assert!(found == numbers(COUNT));
            found.iter_mut().for_each(|number| *number = number.wrapping_mul(2));
            buffer.copy_from_slice(&found).unwrap();
            event.record(&stream).unwrap();
            say(&socket);
            // What was imported takes no memory here.
            assert_eq!(pool.reserved().current, 0);
            assert_eq!(context.memory_info().unwrap().free, 1024 * MIB);
        },
    );
}
