//! Memory that two processes share, on the host device: the other process is this program again.
//!
//! Tests that judge who has a block open run alone: a process that another test has just begun holds copies of all descriptors,
//! until it is a program of its own.

use std::fs::File;
use std::io::{Read, Write, pipe};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::mpsc;
use std::thread::sleep;
use std::time::Duration;

use millpond::device::host::{HostDevice, HostOptions};
use millpond::device::sim::{Call, SimDevice, SimOptions};
use millpond::device::{Device, DeviceError};
use millpond::testing::checker::CheckerDevice;
use millpond::{Budget, Buffer, Context, Error, Opened, Pool, Received, SharedToken, Stream};

use crate::processes::{Other, alone, hear, open_here, say, until};
use crate::shared::{Freeing, MIB};

fn over(device: Arc<dyn Device>) -> (Context, Pool, Stream) {
    let context = Context::new(device);
    let pool = Pool::builder(&context).build().unwrap();
    let stream = context.create_stream().unwrap();
    (context, pool, stream)
}

fn host() -> (Context, Pool, Stream) {
    over(HostDevice::with_options(HostOptions::default().capacity(1 << 30)).unwrap())
}

/// What was sent arrives, in this process.
fn pass(shared: &millpond::Shared) -> Received {
    let (from, to) = UnixStream::pair().unwrap();
    shared.send(&from).unwrap();
    Received::receive(&to).unwrap()
}

/// What was imported is unmapped once its stream is done, and what was shared is its owner's then.
fn settle(stream: &Stream) {
    stream.synchronize().unwrap();
    stream.synchronize().unwrap();
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

#[test]
fn work_of_each_process_waits_for_the_others() {
    const PATIENCE: Duration = Duration::from_millis(200);
    Other::with(
        "work_of_each_process_waits_for_the_others",
        |other| {
            let device = HostDevice::new().unwrap();
            let (_context, pool, stream) = over(device.clone());
            let mut buffer = Buffer::from_slice(&pool, &[1_u32; 1024], &stream).unwrap();
            device.launch(stream.handle_here().unwrap(), || sleep(PATIENCE)).unwrap();
            buffer.copy_from_slice(&[2; 1024]).unwrap();
            let shared = buffer.share().unwrap();
            assert!(!shared.event().query().unwrap(), "its work is pending");
            shared.send(&other.socket).unwrap();
            hear(&other.socket);
            // Recorded by the other, whose work is pending.
            shared.event().wait(&stream).unwrap();
            assert_eq!(buffer.to_vec().unwrap(), [3; 1024]);
            assert!(shared.event().query().unwrap());
            // And once more, from here.
            device.launch(stream.handle_here().unwrap(), || sleep(PATIENCE)).unwrap();
            buffer.copy_from_slice(&[4; 1024]).unwrap();
            shared.event().record(&stream).unwrap();
            say(&other.socket);
            hear(&other.socket);
        },
        |socket| {
            let device = HostDevice::new().unwrap();
            let (context, _pool, stream) = over(device.clone());
            let Opened { mut buffer, event, .. } =
                context.open_shared::<u32>(Received::receive(&socket).unwrap(), &stream).unwrap();
            assert_eq!(buffer.to_vec().unwrap(), [2; 1024]);
            device.launch(stream.handle_here().unwrap(), || sleep(PATIENCE)).unwrap();
            buffer.copy_from_slice(&[3; 1024]).unwrap();
            event.record(&stream).unwrap();
            say(&socket);
            hear(&socket);
            event.wait(&stream).unwrap();
            assert_eq!(buffer.to_vec().unwrap(), [4; 1024]);
            say(&socket);
        },
    );
}

#[test]
fn a_process_that_is_killed_leaves_nothing_behind() {
    Other::with(
        "sharing::a_process_that_is_killed_leaves_nothing_behind",
        |other| {
            let (context, pool, stream) = host();
            let before = open_here().0;
            let buffer = Buffer::from_slice(&pool, &numbers(1 << 20), &stream).unwrap();
            let ptr = buffer.ptr();
            let shared = buffer.share().unwrap();
            shared.send(&other.socket).unwrap();
            hear(&other.socket);
            drop((buffer, shared));
            pool.trim_to(0).unwrap();
            assert_eq!((pool.allocated().current, pool.reserved().current), (4 * MIB, 4 * MIB), "it is kept");
            assert!(pool.is_shared(ptr).unwrap());
            other.kill();
            until("the memory goes back", || {
                pool.trim_to(0).unwrap();
                pool.reserved().current == 0
            });
            pool.check().unwrap();
            assert_eq!(pool.allocated().current, 0);
            assert_eq!(context.memory_info().unwrap().free, 1024 * MIB);
            assert_eq!(open_here().0, before);
        },
        |socket| {
            let device = HostDevice::new().unwrap();
            let (context, _pool, stream) = over(device.clone());
            let opened = context.open_shared::<u32>(Received::receive(&socket).unwrap(), &stream).unwrap();
            device.launch(stream.handle_here().unwrap(), || sleep(Duration::from_secs(1000))).unwrap();
            opened.event.record(&stream).unwrap();
            say(&socket);
            sleep(Duration::from_secs(1000));
        },
    );
}

#[test]
fn nobody_waits_for_work_of_a_process_that_died() {
    Other::with(
        "nobody_waits_for_work_of_a_process_that_died",
        |other| {
            let (_context, pool, stream) = host();
            let buffer = Buffer::from_slice(&pool, &[1_u32; 1024], &stream).unwrap();
            let shared = buffer.share().unwrap();
            shared.send(&other.socket).unwrap();
            hear(&other.socket);
            shared.event().wait(&stream).unwrap();
            assert!(!stream.is_idle().unwrap());
            other.kill();
            assert_eq!(buffer.to_vec().unwrap(), [1; 1024]);
        },
        |socket| {
            let device = HostDevice::new().unwrap();
            let (context, _pool, stream) = over(device.clone());
            let opened = context.open_shared::<u32>(Received::receive(&socket).unwrap(), &stream).unwrap();
            device.launch(stream.handle_here().unwrap(), || sleep(Duration::from_secs(1000))).unwrap();
            opened.event.record(&stream).unwrap();
            say(&socket);
            sleep(Duration::from_secs(1000));
        },
    );
}

#[test]
fn memory_outlives_the_process_that_shared_it() {
    Other::with(
        "sharing::memory_outlives_the_process_that_shared_it",
        |other| {
            let (context, _pool, stream) = host();
            let before = open_here().0;
            let received = Received::receive(&other.socket).unwrap();
            let Opened { mut buffer, event, .. } = context.open_shared::<u32>(received, &stream).unwrap();
            let never_opened = Received::receive(&other.socket).unwrap();
            other.kill();
            assert!(buffer.to_vec().unwrap() == numbers(1 << 20));
            buffer.set_zero().unwrap();
            assert!(buffer.to_vec().unwrap().iter().all(|number| *number == 0));
            assert_eq!(event.record(&stream), Err(Error::OwnerGone));
            assert_eq!(event.wait(&stream), Err(Error::OwnerGone));
            let late = context.open_shared::<u32>(never_opened, &stream);
            assert!(matches!(late, Err(Error::OwnerGone)));
            drop((buffer, event));
            stream.synchronize().unwrap();
            assert_eq!(open_here().0, before);
        },
        |socket| {
            let (_context, pool, stream) = host();
            let buffer = Buffer::from_slice(&pool, &numbers(1 << 20), &stream).unwrap();
            // What it has not done when it dies is never done.
            stream.synchronize().unwrap();
            let shared = buffer.share().unwrap();
            shared.send(&socket).unwrap();
            shared.send(&socket).unwrap();
            sleep(Duration::from_secs(1000));
        },
    );
}

/// A child of this process that does nothing, with all that this process has. It is there, and ready, when this returns.
struct IdleChild(libc::pid_t);

impl IdleChild {
    fn fork() -> Self {
        // SAFETY: the child makes system calls only.
        Self::by(|| unsafe { libc::fork() })
    }

    /// By a raw `clone`, of which nobody is told.
    fn clone_raw() -> Self {
        // SAFETY: as a fork; zeros are no stack and no addresses.
        Self::by(|| unsafe { libc::syscall(libc::SYS_clone, libc::SIGCHLD, 0, 0, 0, 0) } as libc::pid_t)
    }

    fn by(make: impl FnOnce() -> libc::pid_t) -> Self {
        let (mut heard, mut said) = pipe().unwrap();
        let child = make();
        assert!(child >= 0);
        if child == 0 {
            said.write_all(&[1]).unwrap();
            loop {
                // SAFETY: it waits until it is killed.
                unsafe { libc::pause() };
            }
        }
        heard.read_exact(&mut [0]).unwrap();
        Self(child)
    }

    /// Tells another process, which kills it.
    fn entrust(self, mut to: &UnixStream) {
        to.write_all(&self.0.to_le_bytes()).unwrap();
        std::mem::forget(self);
    }

    fn entrusted(mut by: &UnixStream) -> Self {
        let mut child = [0; 4];
        by.read_exact(&mut child).unwrap();
        Self(libc::pid_t::from_le_bytes(child))
    }
}

impl Drop for IdleChild {
    fn drop(&mut self) {
        // SAFETY: it waits to be killed. Where it is another's child, that one or the system waits for it.
        unsafe {
            libc::kill(self.0, libc::SIGKILL);
            libc::waitpid(self.0, std::ptr::null_mut(), 0);
        }
    }
}

/// Shares a buffer whose event has work that is never done, makes a child, and waits to be killed.
fn share_and_leave(socket: &UnixStream, child: fn() -> IdleChild) {
    let device = HostDevice::new().unwrap();
    let (_context, pool, stream) = over(device.clone());
    let buffer = Buffer::from_slice(&pool, &[7_u32; 1024], &stream).unwrap();
    device.launch(stream.handle_here().unwrap(), || sleep(Duration::from_secs(1000))).unwrap();
    let shared = buffer.share().unwrap();
    child().entrust(socket);
    shared.send(socket).unwrap();
    sleep(Duration::from_secs(1000));
}

#[test]
fn an_owner_is_gone_though_a_child_of_its_lives() {
    Other::with(
        "an_owner_is_gone_though_a_child_of_its_lives",
        |other| {
            let (context, _pool, stream) = host();
            let child = IdleChild::entrusted(&other.socket);
            let received = Received::receive(&other.socket).unwrap();
            let opened = context.open_shared::<u32>(received, &stream).unwrap();
            assert!(!opened.event.query().unwrap());
            other.kill();
            assert_eq!(opened.event.record(&stream), Err(Error::OwnerGone));
            assert_eq!(opened.event.wait(&stream), Err(Error::OwnerGone));
            assert_eq!(opened.event.query(), Err(Error::OwnerGone));
            // The stream waits for the event since the buffer was opened.
            opened.buffer.to_vec().unwrap();
            drop(child);
        },
        |socket| share_and_leave(&socket, IdleChild::fork),
    );
}

#[test]
fn an_owner_is_gone_though_a_raw_clone_of_it_lives() {
    Other::with(
        "an_owner_is_gone_though_a_raw_clone_of_it_lives",
        |other| {
            let (context, _pool, stream) = host();
            let child = IdleChild::entrusted(&other.socket);
            let received = Received::receive(&other.socket).unwrap();
            let opened = context.open_shared::<u32>(received, &stream).unwrap();
            other.kill();
            assert_eq!(opened.event.record(&stream), Err(Error::OwnerGone));
            assert_eq!(opened.event.query(), Err(Error::OwnerGone));
            // The clone keeps the event locked.
            drop(child);
            opened.buffer.to_vec().unwrap();
        },
        |socket| share_and_leave(&socket, IdleChild::clone_raw),
    );
}

#[test]
fn an_owner_that_becomes_another_program_is_gone() {
    use std::os::unix::process::CommandExt;
    Other::with(
        "an_owner_that_becomes_another_program_is_gone",
        |other| {
            let (context, _pool, stream) = host();
            let received = Received::receive(&other.socket).unwrap();
            let opened = context.open_shared::<u32>(received, &stream).unwrap();
            say(&other.socket);
            until("it is another program", || opened.event.record(&stream) == Err(Error::OwnerGone));
            assert_eq!(opened.buffer.to_vec().unwrap(), [7; 1024]);
            other.kill();
        },
        |socket| {
            let (_context, pool, stream) = host();
            let buffer = Buffer::from_slice(&pool, &[7_u32; 1024], &stream).unwrap();
            stream.synchronize().unwrap();
            let shared = buffer.share().unwrap();
            shared.send(&socket).unwrap();
            hear(&socket);
            panic!("{}", std::process::Command::new("sleep").arg("1000").exec());
        },
    );
}

#[test]
fn nobody_waits_for_a_killed_process_whose_child_lives() {
    Other::with(
        "nobody_waits_for_a_killed_process_whose_child_lives",
        |other| {
            let (_context, pool, stream) = host();
            let buffer = Buffer::from_slice(&pool, &[1_u32; 1024], &stream).unwrap();
            let shared = buffer.share().unwrap();
            shared.send(&other.socket).unwrap();
            let child = IdleChild::entrusted(&other.socket);
            shared.event().wait(&stream).unwrap();
            other.kill();
            assert_eq!(buffer.to_vec().unwrap(), [1; 1024]);
            assert!(shared.event().query().unwrap());
            drop(child);
        },
        |socket| {
            let device = HostDevice::new().unwrap();
            let (context, _pool, stream) = over(device.clone());
            let opened = context.open_shared::<u32>(Received::receive(&socket).unwrap(), &stream).unwrap();
            device.launch(stream.handle_here().unwrap(), || sleep(Duration::from_secs(1000))).unwrap();
            opened.event.record(&stream).unwrap();
            IdleChild::fork().entrust(&socket);
            sleep(Duration::from_secs(1000));
        },
    );
}

#[test]
fn a_child_of_the_owner_keeps_nothing_shared() {
    alone("a_child_of_the_owner_keeps_nothing_shared", || {
        let (_context, pool, stream) = host();
        let buffer = Buffer::<u8>::zeroed(&pool, 4 << 20, &stream).unwrap();
        let (ptr, shared) = (buffer.ptr(), buffer.share().unwrap());
        let _child = IdleChild::fork();
        assert!(pool.is_shared(ptr).unwrap());
        drop(shared);
        assert!(!pool.is_shared(ptr).unwrap());
        drop(buffer);
        assert_eq!(pool.allocated().current, 0);
    });
}

/// A budget for one test, of 64 MiB, which its process removes.
fn budget_of(name: &str, pid: u32) -> Budget {
    Budget::named(&format!("{name}-{pid}"), 64 * MIB).unwrap()
}

#[test]
fn what_a_killed_process_shared_counts_as_long_as_it_is_open() {
    const NAME: &str = "what_a_killed_process_shared_counts_as_long_as_it_is_open";
    Other::with(
        &format!("sharing::{NAME}"),
        |other| {
            let budget = budget_of("heir", std::process::id());
            let (context, _, stream) = host();
            let pool = Pool::builder(&context).budget(&budget).build().unwrap();
            other.socket.write_all(&std::process::id().to_le_bytes()).unwrap();
            let [first, same, small, also_small, unopened] =
                [(); 5].map(|()| Received::receive(&other.socket).unwrap());
            let exposed = first.token().exposed_bytes();
            assert!(
                exposed >= 40 * MIB && small.token().exposed_bytes() == also_small.token().exposed_bytes()
            );
            let open = |received| context.open_shared::<u8>(received, &stream).unwrap();
            let (first, same) = (open(first), open(same));
            let (small, also_small) = (open(small), open(also_small));
            let of_small = unopened.token().exposed_bytes();
            assert!(budget.held() >= 60 * MIB);
            assert_eq!(budget.tenants().len(), 2, "who opens memory holds none while its owner lives");
            let theirs = budget.tenants().iter().find(|tenant| tenant.held > 0).unwrap().pid;
            other.kill();
            // The small ones lie on pages of their own, or on one.
            let counted = budget.held();
            assert!(
                (exposed..=exposed + of_small).contains(&counted),
                "{counted} bytes, {exposed} of the large"
            );
            let tenants = budget.tenants();
            let left = tenants.iter().find(|tenant| tenant.held > 0).unwrap();
            assert_eq!((left.pid, left.program.as_str(), left.held), (theirs, "has ended", counted));
            assert!(pool.alloc(30 * MIB, &stream).is_err(), "others have the memory open");
            pool.free_block(pool.alloc(10 * MIB, &stream).unwrap(), &stream).unwrap();
            pool.trim_to(0).unwrap();
            // As long as anybody has it.
            drop((first, also_small));
            settle(&stream);
            assert_eq!(budget.held(), counted);
            drop(same);
            settle(&stream);
            assert_eq!(budget.held(), of_small);
            drop(small);
            settle(&stream);
            assert_eq!(budget.held(), of_small, "it was received, and not opened");
            drop(unopened);
            assert_eq!(budget.held(), 0);
            assert_eq!(budget.tenants().len(), 1);
            _ = pool.alloc(64 * MIB, &stream).unwrap();
            std::fs::remove_file(budget.path().unwrap()).unwrap();
        },
        |mut socket| {
            let mut pid = [0; 4];
            socket.read_exact(&mut pid).unwrap();
            let budget = budget_of("heir", u32::from_le_bytes(pid));
            let (context, _, stream) = host();
            let pool = Pool::builder(&context).budget(&budget).build().unwrap();
            let large = Buffer::<u8>::zeroed(&pool, 40 << 20, &stream).unwrap();
            let _not_shared = Buffer::<u8>::zeroed(&pool, 18 << 20, &stream).unwrap();
            let small = Buffer::<u8>::zeroed(&pool, 4096, &stream).unwrap();
            let shared = [&large, &large, &small, &small, &small].map(|buffer| buffer.share().unwrap());
            shared.iter().for_each(|shared| shared.send(&socket).unwrap());
            sleep(Duration::from_secs(1000));
        },
    );
}

#[test]
fn a_descriptor_that_is_no_budgets_is_refused() {
    let budget = budget_of("no-file", std::process::id());
    let (context, _, stream) = host();
    let pool = Pool::builder(&context).budget(&budget).build().unwrap();
    let buffer = Buffer::<u8>::zeroed(&pool, 4096, &stream).unwrap();
    let shared = buffer.share().unwrap();
    let descriptors = || -> Vec<OwnedFd> {
        shared.descriptors().iter().map(|file| file.try_clone_to_owned().unwrap()).collect()
    };
    let mut others = descriptors();
    *others.last_mut().unwrap() = File::open("/dev/null").unwrap().into();
    let refused = context.open_shared::<u8>(Received::new(shared.token().clone(), others).unwrap(), &stream);
    assert!(matches!(refused.map(drop), Err(Error::BadToken { .. })));
    // Who has it can read the ledger, and not write there.
    let ledger = File::from(descriptors().pop().unwrap());
    assert!((&ledger).write_all(&[1]).is_err() && ledger.set_len(0).is_err());
    std::fs::remove_file(budget.path().unwrap()).unwrap();
}

/// After thousands of imports: no descriptor more, and of mappings those that the heap may have made.
fn assert_nothing_left((descriptors, mappings): (usize, usize), before: (usize, usize)) {
    assert_eq!(descriptors, before.0);
    assert!(mappings <= before.1 + 10, "{mappings} mappings, and {} before", before.1);
}

#[test]
fn ten_thousand_imports_leave_nothing_behind() {
    const ROUNDS: usize = 10_000;
    Other::with(
        "sharing::ten_thousand_imports_leave_nothing_behind",
        |other| {
            let (_context, pool, stream) = host();
            let buffer = Buffer::from_slice(&pool, &numbers(1 << 20), &stream).unwrap();
            let shared = buffer.share().unwrap();
            let before = open_here();
            for _ in 0..ROUNDS {
                shared.send(&other.socket).unwrap();
                hear(&other.socket);
            }
            assert_nothing_left(open_here(), before);
            drop((shared, buffer));
            pool.trim_to(0).unwrap();
            assert_eq!((pool.allocated().current, pool.reserved().current), (0, 0));
        },
        |socket| {
            let (context, _pool, stream) = host();
            let mut before = None;
            for round in 0..ROUNDS {
                let opened =
                    context.open_shared::<u32>(Received::receive(&socket).unwrap(), &stream).unwrap();
                if round % 1000 == 0 {
                    assert!(opened.buffer.to_vec().unwrap() == numbers(1 << 20));
                }
                drop(opened);
                stream.synchronize().unwrap();
                // The first one makes the pool.
                if round == 0 {
                    before = Some(open_here());
                }
                if round + 1 == ROUNDS {
                    assert_nothing_left(open_here(), before.unwrap());
                    assert_eq!(context.memory_info().unwrap().free, 1024 * MIB);
                }
                say(&socket);
            }
        },
    );
}

#[test]
fn a_freed_block_is_nobody_elses_while_it_is_open() {
    alone("sharing::a_freed_block_is_nobody_elses_while_it_is_open", || {
        let (context, pool, stream) = host();
        let buffer = Buffer::from_slice(&pool, &vec![7_u8; 4 << 20], &stream).unwrap();
        let ptr = buffer.ptr();
        let first = context.open_shared::<u8>(pass(&buffer.share().unwrap()), &stream).unwrap();
        let second = context.open_shared::<u8>(pass(&buffer.share().unwrap()), &stream).unwrap();
        assert!(pool.is_shared(ptr).unwrap());
        drop(buffer);
        // Whatever the pool does for memory.
        let others: Vec<_> =
            (0..20).map(|_| Buffer::<u8>::zeroed(&pool, 3 << 20, &stream).unwrap()).collect();
        pool.trim_to(0).unwrap();
        drop(others);
        pool.trim_to(0).unwrap();
        pool.check().unwrap();
        assert_eq!(first.buffer.to_vec().unwrap(), vec![7; 4 << 20]);
        assert_eq!(pool.allocated().current, 4 * MIB);
        drop(first);
        settle(&stream);
        pool.trim_to(0).unwrap();
        assert_eq!(pool.allocated().current, 4 * MIB, "the second has it");
        assert_eq!(second.buffer.to_vec().unwrap(), vec![7; 4 << 20]);
        drop(second);
        settle(&stream);
        pool.trim_to(0).unwrap();
        assert_eq!((pool.allocated().current, pool.reserved().current), (0, 0));
    });
}

#[test]
fn a_block_that_nobody_opened_is_freed_as_any_other() {
    alone("sharing::a_block_that_nobody_opened_is_freed_as_any_other", || {
        let (_context, pool, stream) = host();
        let buffer = Buffer::<u8>::zeroed(&pool, 4 << 20, &stream).unwrap();
        let (ptr, shared) = (buffer.ptr(), buffer.share().unwrap());
        let never_opened = pass(&shared);
        assert!(pool.is_shared(ptr).unwrap());
        drop((shared, never_opened));
        assert!(!pool.is_shared(ptr).unwrap());
        drop(buffer);
        assert_eq!(pool.allocated().current, 0);
        // What is shared when its owner frees it, and let go of after.
        let buffer = Buffer::<u8>::zeroed(&pool, 4 << 20, &stream).unwrap();
        let shared = buffer.share().unwrap();
        drop(buffer);
        assert_eq!(pool.allocated().current, 4 * MIB);
        drop(shared);
        assert_eq!(pool.allocated().current, 0);
        pool.check().unwrap();
    });
}

#[test]
fn a_plain_block_is_shared_once_and_freed_once() {
    alone("sharing::a_plain_block_is_shared_once_and_freed_once", || {
        let (context, pool, stream) = host();
        let block = pool.alloc(5000, &stream).unwrap();
        let shared = pool.share(block, &stream).unwrap();
        assert_eq!((shared.token().byte_len(), shared.token().element_size()), (5000, 1));
        let opened = context.open_shared::<u8>(pass(&shared), &stream).unwrap();
        assert_eq!(opened.buffer.len(), 5000);
        pool.free_block(block, &stream).unwrap();
        assert!(matches!(pool.free_block(block, &stream), Err(Error::DoubleFree { .. })));
        assert!(matches!(pool.share(block, &stream), Err(Error::DoubleFree { .. })));
        drop((shared, opened));
        settle(&stream);
        assert_eq!(pool.allocated().current, 0);
        pool.check().unwrap();
    });
}

#[test]
fn memory_under_pressure_comes_from_what_others_let_go_of() {
    alone("sharing::memory_under_pressure_comes_from_what_others_let_go_of", || {
        let (context, _, stream) = host();
        let pool = Pool::builder(&context).hard_limit(64 * MIB).build().unwrap();
        let buffer = Buffer::<u8>::zeroed(&pool, 40 << 20, &stream).unwrap();
        let opened = context.open_shared::<u8>(pass(&buffer.share().unwrap()), &stream).unwrap();
        drop(buffer);
        let refused = Buffer::<u8>::new(&pool, 40 << 20, &stream);
        assert!(matches!(refused, Err(Error::OutOfMemory(_))), "it is not taken from who has it");
        drop(opened);
        settle(&stream);
        _ = Buffer::<u8>::new(&pool, 40 << 20, &stream).unwrap();
    });
}

#[test]
fn more_pages_than_one_message_carries_arrive() {
    let (context, _, stream) = host();
    let pool = Pool::builder(&context).for_sharing().build().unwrap();
    let buffer = Buffer::<u32>::new(&pool, 150 << 20, &stream).unwrap();
    let shared = buffer.share().unwrap();
    assert_eq!(shared.token().descriptors(), 303, "one for each page, two for the lease, one for the event");
    assert_eq!(shared.token().exposed_bytes(), 600 * MIB);
    let (from, to) = UnixStream::pair().unwrap();
    let received = std::thread::scope(|scope| {
        scope.spawn(|| shared.send(&from).unwrap());
        Received::receive(&to).unwrap()
    });
    let opened = context.open_shared::<u32>(received, &stream).unwrap();
    assert_eq!(opened.buffer.len(), buffer.len());
}

#[test]
fn buffers_of_a_pool_for_sharing_have_pages_of_their_own() {
    let (context, pool, stream) = host();
    let for_sharing = Pool::builder(&context).for_sharing().build().unwrap();
    for bytes in [1, 100_000, 3 << 20] {
        let _neighbours: Vec<_> =
            (0..3).map(|_| Buffer::<u8>::new(&for_sharing, 1 << 20, &stream).unwrap()).collect();
        let buffer = Buffer::<u8>::new(&for_sharing, bytes, &stream).unwrap();
        let shared = buffer.share().unwrap();
        assert_eq!(shared.token().exposed_bytes(), (bytes as u64).next_multiple_of(2 * MIB));
    }
    let small = Buffer::<u8>::new(&pool, 1, &stream).unwrap();
    assert!(small.share().unwrap().token().exposed_bytes() >= 2 * MIB);
}

#[test]
fn what_cannot_be_shared_is_refused() {
    let (context, pool, stream) = host();
    let refused = |buffer: &Buffer<u8>, why: &str| {
        let error = buffer.share().unwrap_err();
        assert!(matches!(error, Error::NotShareable { .. }) && error.to_string().contains(why), "{error}");
    };
    refused(&Buffer::new(&pool, 0, &stream).unwrap(), "no bytes");
    for other in [context.pinned().unwrap(), context.managed().unwrap()] {
        refused(&Buffer::new(&other.build().unwrap(), 100, &stream).unwrap(), "a device's own memory");
    }
    let buffer = Buffer::<u8>::new(&pool, 100, &stream).unwrap();
    let opened = context.open_shared::<u8>(pass(&buffer.share().unwrap()), &stream).unwrap();
    refused(&opened.buffer, "a device's own memory");
    let memory = pool.capture_pool();
    let capturing = memory.begin(&stream).unwrap();
    refused(&Buffer::new(&pool, 100, &stream).unwrap(), "a capture");
    drop(capturing);
    let without = HostOptions::default().capacity(1 << 30).virtual_memory(false);
    let (_context, pool, stream) = over(HostDevice::with_options(without).unwrap());
    refused(&Buffer::new(&pool, 100, &stream).unwrap(), "virtual memory");
}

#[test]
fn what_was_not_shared_like_that_is_not_opened() {
    alone("sharing::what_was_not_shared_like_that_is_not_opened", || {
        let (context, pool, stream) = host();
        let buffer = Buffer::<u32>::zeroed(&pool, 1 << 20, &stream).unwrap();
        let shared = buffer.share().unwrap();
        let descriptors =
            || shared.descriptors().iter().map(|file| file.try_clone_to_owned().unwrap()).collect::<Vec<_>>();
        let bad = |error: &Error| matches!(error, Error::BadToken { .. } | Error::Device(_));
        let before = open_here();
        // Elements of another size.
        let error = context.open_shared::<u64>(pass(&shared), &stream).unwrap_err();
        assert!(error.to_string().contains("its elements have 4 bytes, and those asked for 8"), "{error}");
        // A device of another kind.
        let (sim, _, of_sim) = over(SimDevice::new(SimOptions::default()).unwrap());
        let error = sim.open_shared::<u32>(pass(&shared), &of_sim).unwrap_err();
        assert!(error.to_string().contains("cannot reach"), "{error}");
        // A stream of another context.
        let error = context.open_shared::<u32>(pass(&shared), &of_sim).unwrap_err();
        assert!(matches!(error, Error::WrongDevice { .. }), "{error}");
        // Too few descriptors, and those of others in each place.
        assert!(matches!(Received::new(shared.token().clone(), Vec::new()), Err(Error::BadToken { .. })));
        for at in 0..shared.token().descriptors() {
            for other in ["/dev/null", "/proc/self/maps", "/proc/self/exe"] {
                let mut wrong = descriptors();
                wrong[at] = OwnedFd::from(File::open(other).unwrap());
                let received = Received::new(shared.token().clone(), wrong).unwrap();
                let error = context.open_shared::<u32>(received, &stream).unwrap_err();
                assert!(bad(&error), "{at}, {other}: {error}");
            }
        }
        let mut reversed = descriptors();
        reversed.reverse();
        let received = Received::new(shared.token().clone(), reversed).unwrap();
        assert!(bad(&context.open_shared::<u32>(received, &stream).unwrap_err()));
        // Pages that are longer than their file, and no multiple of a page.
        let mut bytes = shared.token().to_bytes();
        let last = bytes.len() - 8;
        for (length, what) in [(1_u64 << 40, "beyond its file"), ((4 << 20) + 512, "no multiple")] {
            bytes[last..].copy_from_slice(&length.to_le_bytes());
            let token = SharedToken::from_bytes(&bytes).unwrap();
            let received = Received::new(token, descriptors()).unwrap();
            let error = context.open_shared::<u32>(received, &stream).unwrap_err();
            assert!(bad(&error), "{what}: {error}");
        }
        drop((sim, of_sim));
        assert_eq!(open_here().0, before.0);
        context.open_shared::<u32>(pass(&shared), &stream).unwrap();
    });
}

#[test]
fn nonsense_over_a_socket_is_an_error() {
    for sent in [&[0; 8][..], &[255; 8], &[16, 0, 0, 0, 1, 0, 0, 0, 1], b"not a token, but some text", &[]] {
        let (mut from, to) = UnixStream::pair().unwrap();
        from.write_all(sent).unwrap();
        drop(from);
        let received = Received::receive(&to);
        assert!(matches!(received, Err(Error::BadToken { .. } | Error::Socket { .. })), "{sent:?}");
    }
    // Nobody waits for a token that is longer than any.
    let (mut from, to) = UnixStream::pair().unwrap();
    from.write_all(&[0, 0, 0, 255]).unwrap();
    assert!(matches!(Received::receive(&to), Err(Error::BadToken { .. })));
}

#[test]
fn a_receiver_that_moves_in_a_file_moves_no_other() {
    let (context, pool, stream) = host();
    // So that the next begins further on in the file.
    let _before = Buffer::from_slice(&pool, &vec![1_u32; 5 << 20], &stream).unwrap();
    let buffer = Buffer::from_slice(&pool, &numbers(1 << 20), &stream).unwrap();
    let shared = buffer.share().unwrap();
    let [first, second] = [pass(&shared), pass(&shared)];
    for file in first.into_descriptors() {
        let _ = rustix::fs::seek(&file, rustix::fs::SeekFrom::Start(0));
    }
    let opened = context.open_shared::<u32>(second, &stream).unwrap();
    assert!(opened.buffer.to_vec().unwrap() == numbers(1 << 20));
}

/// The descriptors of an event and of a page, as another process has them.
fn event_and_page(shared: &millpond::Shared) -> (OwnedFd, OwnedFd) {
    let mut descriptors = pass(shared).into_descriptors();
    let page = descriptors.pop().unwrap();
    (descriptors.pop().unwrap(), page)
}

#[test]
fn a_peer_that_locks_an_event_ends_in_an_error() {
    let device = HostDevice::new().unwrap();
    let (_context, pool, stream) = over(device.clone());
    let buffer = Buffer::from_slice(&pool, &[1_u32; 1024], &stream).unwrap();
    let shared = buffer.share().unwrap();
    stream.synchronize().unwrap();
    let (event, _) = event_and_page(&shared);
    // With locks of its own.
    let peer =
        File::options().read(true).write(true).open(format!("/proc/self/fd/{}", event.as_raw_fd())).unwrap();
    let lock = |kind: libc::c_int| {
        // SAFETY: numbers, of which zeros are valid: the whole file.
        let mut range: libc::flock = unsafe { std::mem::zeroed() };
        range.l_type = kind as libc::c_short;
        // SAFETY: the descriptor is open, and the description readable.
        assert_eq!(unsafe { libc::fcntl(peer.as_raw_fd(), libc::F_OFD_SETLK, &range) }, 0);
    };
    lock(libc::F_WRLCK);
    let error = shared.event().record(&stream).unwrap_err();
    assert!(error.to_string().contains("another process keeps the event locked"), "{error}");
    lock(libc::F_UNLCK);
    shared.event().record(&stream).unwrap();
    stream.synchronize().unwrap();
    assert!(shared.event().query().unwrap());
}

#[test]
fn any_number_in_an_event_is_survived() {
    let (_context, pool, stream) = host();
    let buffer = Buffer::from_slice(&pool, &[1_u32; 1024], &stream).unwrap();
    let shared = buffer.share().unwrap();
    let event = File::from(event_and_page(&shared).0);
    for number in [u64::MAX, i64::MAX as u64, 1 << 63, i64::MAX as u64 - 1, 0] {
        rustix::io::pwrite(&event, &number.to_le_bytes(), 0).unwrap();
        shared.event().query().unwrap();
        shared.event().wait(&stream).unwrap();
        shared.event().record(&stream).unwrap();
        shared.event().wait(&stream).unwrap();
        stream.synchronize().unwrap();
    }
}

#[test]
fn a_peer_cannot_make_the_file_of_a_device_useless() {
    use rustix::fs::SealFlags;
    let (_context, pool, stream) = host();
    let buffer = Buffer::from_slice(&pool, &[1_u32; 1024], &stream).unwrap();
    let shared = buffer.share().unwrap();
    let (event, page) = event_and_page(&shared);
    for file in [&event, &page] {
        for seal in [SealFlags::GROW, SealFlags::FUTURE_WRITE, SealFlags::WRITE] {
            assert_eq!(rustix::fs::fcntl_add_seals(file, seal), Err(rustix::io::Errno::PERM));
        }
        assert_eq!(rustix::fs::ftruncate(file, 0), Err(rustix::io::Errno::PERM));
        rustix::fs::ftruncate(file, 1 << 40).unwrap();
    }
    // It still grows, and is still mapped.
    let more = Buffer::from_slice(&pool, &vec![2_u8; 40 << 20], &stream).unwrap();
    assert_eq!(more.to_vec().unwrap(), vec![2; 40 << 20]);
    assert_eq!(buffer.to_vec().unwrap(), [1; 1024]);
    shared.event().record(&stream).unwrap();
}

#[test]
fn a_file_of_huge_pages_is_refused() {
    let (context, pool, stream) = host();
    let shared = Buffer::<u32>::zeroed(&pool, 1024, &stream).unwrap().share().unwrap();
    let flags = rustix::fs::MemfdFlags::HUGETLB | rustix::fs::MemfdFlags::ALLOW_SEALING;
    // A system may have none.
    let Ok(huge) = rustix::fs::memfd_create("huge", flags) else { return };
    rustix::fs::ftruncate(&huge, 1 << 30).unwrap();
    rustix::fs::fcntl_add_seals(&huge, rustix::fs::SealFlags::SHRINK).unwrap();
    for at in 1..shared.token().descriptors() {
        let mut descriptors = pass(&shared).into_descriptors();
        descriptors[at] = huge.try_clone().unwrap();
        let received = Received::new(shared.token().clone(), descriptors).unwrap();
        let error = context.open_shared::<u32>(received, &stream).unwrap_err();
        assert!(error.to_string().contains("not what another process of millpond exported"), "{at}: {error}");
    }
}

#[test]
fn a_lease_cannot_be_hidden_in_its_own_socket() {
    use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
    let (_context, pool, stream) = host();
    let buffer = Buffer::<u8>::zeroed(&pool, 4 << 20, &stream).unwrap();
    let (ptr, shared) = (buffer.ptr(), buffer.share().unwrap());
    let lease = pass(&shared).into_descriptors().remove(0);
    let rights = [std::os::fd::AsFd::as_fd(&lease)];
    let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    assert!(control.push(SendAncillaryMessage::ScmRights(&rights)));
    let sent = sendmsg(&lease, &[std::io::IoSlice::new(&[0])], &mut control, SendFlags::NOSIGNAL);
    assert_eq!(sent, Err(rustix::io::Errno::PIPE));
    drop((lease, shared));
    assert!(!pool.is_shared(ptr).unwrap(), "nobody has it");
}

#[test]
fn an_imported_buffer_is_ordered_by_its_stream() {
    alone("sharing::an_imported_buffer_is_ordered_by_its_stream", || {
        let device = HostDevice::new().unwrap();
        let (context, pool, stream) = over(device.clone());
        let buffer = Buffer::from_slice(&pool, &[1_u32; 1024], &stream).unwrap();
        let opened = context.open_shared::<u32>(pass(&buffer.share().unwrap()), &stream).unwrap();
        let (let_go, held) = mpsc::channel::<()>();
        device.launch(stream.handle_here().unwrap(), move || held.recv().unwrap()).unwrap();
        let Opened { buffer: mut imported, event, .. } = opened;
        imported.copy_from_slice(&[2; 1024]).unwrap();
        // Unmapped only after the copy.
        drop((imported, event));
        assert!(pool.is_shared(buffer.ptr()).unwrap());
        let_go.send(()).unwrap();
        settle(&stream);
        assert_eq!(buffer.to_vec().unwrap(), [2; 1024]);
        assert!(!pool.is_shared(buffer.ptr()).unwrap());
    });
}

#[test]
fn the_end_of_pools_and_contexts_waits_for_nobody() {
    alone("sharing::the_end_of_pools_and_contexts_waits_for_nobody", || {
        let (context, pool, stream) = host();
        let buffer = Buffer::from_slice(&pool, &[1_u32; 1024], &stream).unwrap();
        let opened = {
            let (others, _pool, stream) = host();
            let opened = others.open_shared::<u32>(pass(&buffer.share().unwrap()), &stream).unwrap();
            settle(&stream);
            opened
        };
        // Its context has no handle any more.
        assert_eq!(opened.buffer.to_vec().unwrap(), [1; 1024]);
        drop(buffer);
        assert!(matches!(pool.destroy(), Err(Error::LiveBlocks { blocks: 1, .. })));
        drop(pool);
        assert_eq!(opened.buffer.to_vec().unwrap(), [1; 1024]);
        drop(opened);
        context.synchronize().unwrap();
        assert_eq!(context.memory_info().unwrap().free, 1024 * MIB, "the destroyed pool gave it back");
    });
}

/// A simulated device under a checker.
fn checked() -> (Arc<SimDevice>, Arc<CheckerDevice>, Context, Pool, Stream) {
    let sim = SimDevice::new(SimOptions::default().capacity(256 * MIB)).unwrap();
    let checker = CheckerDevice::new(sim.clone());
    let (context, pool, stream) = over(checker.clone());
    (sim, checker, context, pool, stream)
}

#[test]
fn the_checker_sees_no_byte_with_two_owners() {
    alone("sharing::the_checker_sees_no_byte_with_two_owners", || {
        let (sim, checker, context, pool, stream) = checked();
        let other = context.create_stream().unwrap();
        let buffer = Buffer::<u8>::new(&pool, 20 << 20, &stream).unwrap();
        let block = checker.allocated(buffer.ptr(), 20 * MIB, stream.handle());
        checker.used(block, stream.handle());
        let _ = checker.freed(block, stream.handle());
        let opened = context.open_shared::<u8>(pass(&buffer.share().unwrap()), &other).unwrap();
        drop(buffer);
        // From here on the memory is that of who opened it.
        let theirs = checker.allocated(opened.buffer.ptr(), 20 * MIB, other.handle());
        let hold = sim.hold(other.handle()).unwrap();
        checker.used(theirs, other.handle());
        let mut live = Vec::new();
        for mib in [3, 20, 100, 7, 20] {
            let bytes = mib * MIB;
            let ptr = pool.alloc(bytes, &stream).unwrap();
            live.push((ptr, checker.allocated(ptr, bytes, stream.handle())));
        }
        for (ptr, block) in live {
            let _ = checker.freed(block, stream.handle());
            pool.free_block(ptr, &stream).unwrap();
        }
        pool.trim_to(0).unwrap();
        checker.verify().unwrap();
        let _ = checker.freed(theirs, other.handle());
        drop(opened);
        pool.trim_to(0).unwrap();
        assert_eq!(pool.allocated().current, 20 * MIB, "work of the other is pending");
        sim.release(hold);
        context.synchronize().unwrap();
        pool.trim_to(0).unwrap();
        assert_eq!(pool.allocated().current, 0);
        drop((pool, stream, other, context));
        checker.verify_nothing_left().unwrap();
    });
}

#[test]
fn whatever_fails_nothing_is_lost() {
    alone("sharing::whatever_fails_nothing_is_lost", || {
        const CALLS: [Call; 13] = [
            Call::Identity,
            Call::ExportPage,
            Call::ImportPage,
            Call::CreateSharedEvent,
            Call::OpenEvent,
            Call::RecordEvent,
            Call::WaitEvent,
            Call::Reserve,
            Call::Map,
            Call::SetAccess,
            Call::Unmap,
            Call::Unreserve,
            Call::ReleasePage,
        ];
        let mut failed = 0;
        for call in CALLS {
            for nth in 1..=4 {
                let (sim, checker, context, pool, stream) = checked();
                // Several pages.
                let buffer = Buffer::<u8>::new(&pool, 100 << 20, &stream).unwrap();
                sim.fail_next(call, nth, DeviceError::Unavailable("asked for".to_owned()));
                let run = || -> Result<(), Error> {
                    let shared = buffer.share()?;
                    let opened = context.open_shared::<u8>(pass(&shared), &stream)?;
                    shared.event().record(&stream)?;
                    opened.event.wait(&stream)?;
                    Ok(())
                };
                let done = run();
                failed += usize::from(done.is_err());
                assert!(matches!(done, Ok(()) | Err(Error::Device(_))), "{done:?}");
                // What could not be unmapped is, the next time.
                context.synchronize().unwrap();
                sim.fail_no_more();
                context.synchronize().unwrap();
                assert!(!pool.is_shared(buffer.ptr()).unwrap(), "{} {nth}", call.name());
                drop(buffer);
                pool.check().unwrap();
                pool.trim_to(0).unwrap();
                assert_eq!((pool.allocated().current, pool.reserved().current), (0, 0));
                drop((pool, stream, context));
                checker
                    .verify_nothing_left()
                    .unwrap_or_else(|error| panic!("{} {nth}: {error}", call.name()));
            }
        }
        assert!(failed >= 20, "{failed}");
    });
}

/// The owner's device goes on writing to it, whatever memory the one who opens it has else.
#[test]
fn what_was_opened_beside_pinned_memory_is_no_slice() {
    let (context, pool, stream) = host();
    let pinned = Context::new(context.pinned().unwrap().build().unwrap().device().clone());
    let there = pinned.create_stream().unwrap();
    let owner = Buffer::from_slice(&pool, &[1_u32; 1024], &stream).unwrap();
    let shared = owner.share().unwrap();
    let (send, receive) = std::os::unix::net::UnixStream::pair().unwrap();
    shared.send(&send).unwrap();
    let mut opened = pinned.open_shared::<u32>(Received::receive(&receive).unwrap(), &there).unwrap();
    assert!(matches!(opened.buffer.as_slice(), Err(Error::NoHostAccess { .. })));
    assert!(matches!(opened.buffer.as_mut_slice(), Err(Error::NoHostAccess { .. })));
    assert_eq!(opened.buffer.to_vec().unwrap(), [1; 1024]);
}
