//! Each reader with bytes that anybody could have written, and the pools under any program.
//!
//! `cargo test -p millpond-fuzz` tries the corpora, and some random inputs. `scripts/fuzz` runs one target for long, with a fuzzer
//! that follows the code's branches. Each find becomes a file of the corpus, and is mended.

use std::io::Write;
use std::net::Shutdown;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{FileExt, symlink};
use std::os::unix::net::UnixStream;
use std::panic::AssertUnwindSafe;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{LazyLock, Once};

use bolero::check;
use millpond::device::host::{HostDevice, HostOptions};
use millpond::device::sim::{SimDevice, SimOptions};
use millpond::record::format::{MAGIC, VERSION};
use millpond::{Budget, Context, Pool, Received, SharedToken};
use millpond_mlp::data::Dataset;
use millpond_replay::read::{Limits, read, read_from};
use millpond_soak::{Program, repeat};
use rustix::fs::{MemfdFlags, memfd_create};

/// What a trace may take here, so that no input takes long.
const LIMITS: Limits = Limits { bytes: 1 << 20, values: 100_000, memory: 64 << 20 };

/// A file in memory, which is filled again and again.
struct Scratch(std::fs::File);

impl Scratch {
    fn new() -> Self {
        Self(memfd_create("millpond-fuzz", MemfdFlags::CLOEXEC).expect("a file in memory").into())
    }

    fn fill(&self, bytes: &[u8]) {
        self.0.set_len(bytes.len() as u64).expect("it grows");
        self.0.write_all_at(bytes, 0).expect("it is written");
    }

    fn path(&self) -> PathBuf {
        format!("/proc/self/fd/{}", self.0.as_raw_fd()).into()
    }
}

/// An error says something, and in one paragraph.
fn said(error: &dyn std::fmt::Display) {
    assert!(!error.to_string().trim().is_empty());
}

fn trace(bytes: &[u8]) {
    match read_from(&mut &*bytes, "fuzz", LIMITS) {
        Ok(traces) => assert!(!traces.is_empty()),
        Err(error) => said(&error),
    }
}

// ---- traces ----------------------------------------------------------------------------------------

#[test]
fn any_pickle_is_read_or_refused() {
    check!().for_each(|bytes: &[u8]| trace(&[b"\x80\x04", bytes].concat()));
}

#[test]
fn any_log_of_rmm_is_read_or_refused() {
    check!().for_each(|bytes: &[u8]| {
        trace(&[b"Thread,Time,Action,Pointer,Size,Stream\n", bytes].concat());
    });
}

/// CRC-32 (IEEE), bit by bit, of a chunk's length and payload.
fn checksum(bytes: &[u8]) -> u32 {
    let step = |crc: u32, byte: &u8| {
        (0..8).fold(crc ^ u32::from(*byte), |crc, _| crc >> 1 ^ if crc & 1 == 1 { 0xEDB8_8320 } else { 0 })
    };
    !bytes.iter().fold(!0, step)
}

#[test]
fn any_recording_is_read_or_refused() {
    check!().for_each(|bytes: &[u8]| {
        let mut file = [&MAGIC[..], &VERSION.to_le_bytes()].concat();
        // Two chunks whose checksums are right, and what comes behind them.
        for payload in bytes.chunks(bytes.len() / 2 + 1) {
            let length = (payload.len() as u32).to_le_bytes();
            let sum = checksum(&[&length, payload].concat());
            file.extend([&length[..], &sum.to_le_bytes(), payload].concat());
        }
        trace(&file);
    });
}

/// Gzip, zstd, and whatever the first bytes promise.
#[test]
fn any_file_is_a_trace_or_refused() {
    let scratch = Scratch::new();
    check!().for_each(|bytes: &[u8]| {
        scratch.fill(bytes);
        if let Err(error) = read(&scratch.path(), LIMITS) {
            said(&error);
        }
    });
}

// ---- settings and data -----------------------------------------------------------------------------

#[test]
fn any_file_of_settings_is_read_or_refused() {
    let scratch = Scratch::new();
    check!().for_each(|bytes: &[u8]| {
        scratch.fill(bytes);
        if let Err(error) = millpond_mlp::Config::read(&scratch.path()) {
            said(&error);
        }
        if let Err(error) = millpond_probe::cost_table::read(&scratch.path()) {
            said(&error);
        }
    });
}

#[test]
fn any_idx_file_is_read_or_refused() {
    static FILES: LazyLock<[Scratch; 2]> = LazyLock::new(|| [Scratch::new(), Scratch::new()]);
    let folder = std::env::temp_dir().join(format!("millpond-fuzz-{}", std::process::id()));
    static MADE: Once = Once::new();
    MADE.call_once(|| {
        std::fs::create_dir_all(&folder).expect("a folder");
        for split in ["train", "t10k"] {
            for (kind, file) in ["images-idx3-ubyte", "labels-idx1-ubyte"].into_iter().zip(&*FILES) {
                symlink(file.path(), folder.join(format!("{split}-{kind}"))).expect("a link");
            }
        }
    });
    check!().for_each(|bytes: &[u8]| {
        let at = bytes.first().map_or(0, |first| usize::from(*first)).min(bytes.len());
        FILES[0].fill(&bytes[at..]);
        FILES[1].fill(&bytes[..at]);
        if let Err(error) = Dataset::from_dir(&folder) {
            said(&error);
        }
    });
    std::fs::remove_dir_all(&folder).expect("the folder goes");
}

// ---- what other processes send ---------------------------------------------------------------------

#[test]
fn any_token_is_refused_or_comes_back_the_same() {
    check!().for_each(|bytes: &[u8]| match SharedToken::from_bytes(bytes) {
        Ok(token) => assert_eq!(token.to_bytes(), bytes),
        Err(error) => said(&error),
    });
}

#[test]
fn any_message_on_a_socket_is_received_or_refused() {
    check!().for_each(|bytes: &[u8]| {
        let (mut from, to) = UnixStream::pair().expect("sockets");
        from.write_all(&bytes[..bytes.len().min(60_000)]).expect("there is room");
        from.shutdown(Shutdown::Write).expect("it ends");
        if let Err(error) = Received::receive(&to) {
            said(&error);
        }
    });
}

/// A token that is well formed, with descriptors that are anything.
#[test]
fn any_shared_memory_is_opened_or_refused() {
    let device = HostDevice::with_options(HostOptions::default().capacity(64 << 20)).expect("a device");
    let context = Context::new(device);
    let stream = context.create_stream().expect("a stream");
    let place = AssertUnwindSafe((context, stream));
    check!().for_each(|bytes: &[u8]| {
        let (context, stream) = &*place;
        // Of this device, or nothing is looked at.
        let Ok(identity) = context.device().identity() else { return };
        let mut bytes = bytes.to_vec();
        if let Some(device) = bytes.get_mut(8..24) {
            device.copy_from_slice(&identity.0);
        }
        let Ok(token) = SharedToken::from_bytes(&bytes) else { return };
        if token.descriptors() > 16 {
            return;
        }
        let descriptor = |at: usize| -> OwnedFd {
            if at < 2 {
                return UnixStream::pair().expect("sockets").0.into();
            }
            let file = Scratch::new();
            file.0.set_len(u64::from(bytes[at % bytes.len()]) << 16).expect("it grows");
            file.0.into()
        };
        let descriptors = (0..token.descriptors()).map(descriptor).collect();
        let received = Received::new(token, descriptors).expect("as many as it says");
        if let Err(error) = context.open_shared::<u8>(received, stream) {
            said(&error);
        }
    });
}

/// A named budget, whose memory another process of the user has written anything to.
#[test]
fn a_budget_works_or_is_refused_whatever_is_in_its_memory() {
    // A new one each time: a thread that answers others may have the last one for a moment longer.
    let number = AtomicU64::new(0);
    let context = Context::new(SimDevice::new(SimOptions::default().capacity(64 << 20)).expect("a device"));
    let stream = context.create_stream().expect("a stream");
    let place = AssertUnwindSafe((context, stream));
    check!().for_each(|bytes: &[u8]| {
        let (context, stream) = &*place;
        let Some(([at, lower, upper], bytes)) = bytes.split_first_chunk() else { return };
        // Relaxed: only uniqueness matters.
        let name = format!("fuzz-{}-{}", std::process::id(), number.fetch_add(1, Ordering::Relaxed));
        let budget = Budget::named(&name, 32 << 20).expect("it is new");
        let path = budget.path().expect("it is a file").to_owned();
        budget.set_patience(std::time::Duration::ZERO).expect("it has a patience");
        let pool = Pool::builder(context).live(false).budget(&budget).build().expect("a pool");
        let file = std::fs::OpenOptions::new().write(true).open(&path).expect("it is ours");
        let at = (u64::from(*at) << 4 | u64::from(*lower & 15)) & 4095;
        let mut bytes = bytes[..bytes.len().min(4096 - at as usize)].to_vec();
        // Who holds the lock is waited for, a second long; that has tests of its own.
        if *upper > 0 {
            let lock = 40_u64.saturating_sub(at) as usize..48_u64.saturating_sub(at) as usize;
            bytes.iter_mut().enumerate().filter(|(at, _)| lock.contains(at)).for_each(|(_, byte)| *byte = 0);
        }
        file.write_all_at(&bytes, at).expect("it is written");
        let _ = (budget.held(), budget.most(), budget.limit(), budget.tenants());
        match pool.alloc(1 << 20, stream) {
            // SAFETY: nobody else has the block.
            Ok(block) => unsafe { pool.free(block, stream) }.expect("a free works whatever others do"),
            Err(error) => said(&error),
        }
        drop(pool);
        drop(budget);
        if let Err(error) = Budget::find(&name) {
            said(&error);
        }
        std::fs::remove_file(&path).expect("it is ours");
    });
}

// ---- pools -----------------------------------------------------------------------------------------

fn run(bytes: &[u8], with_faults: bool) {
    if let Err(found) = repeat(&Program::of_bytes(bytes, with_faults)) {
        panic!("{:?}: {}", found.kind, found.what);
    }
}

#[test]
fn no_program_breaks_a_rule() {
    check!().for_each(|bytes: &[u8]| run(bytes, false));
}

#[test]
fn no_program_breaks_a_rule_when_calls_fail() {
    check!().for_each(|bytes: &[u8]| run(bytes, true));
}
