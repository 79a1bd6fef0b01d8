//! What other processes see of a process's pools, whatever becomes of either.

use std::io::{Read, Write};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::time::{Duration, Instant};

use millpond::live::{self, LookError, SeenPool, SeenProcess};
use millpond::{Buffer, Context, Pool};

use crate::processes::{Other, alone, hear, say, until};
use crate::shared::{Freeing, MIB, sim};

/// Long enough for any process that answers, on a busy machine.
const PATIENCE: Duration = Duration::from_secs(10);

fn seen(pid: u32) -> Option<SeenProcess> {
    live::processes(PATIENCE).unwrap().into_iter().find(|process| process.pid == pid)
}

fn own() -> Vec<SeenPool> {
    seen(std::process::id()).map(|process| process.pools).unwrap_or_default()
}

fn names(pools: &[SeenPool]) -> Vec<&str> {
    pools.iter().map(|pool| pool.name.as_str()).collect()
}

/// A socket that has another process's name, and takes no more questions: whose it is, the system does not say.
#[test]
fn a_socket_with_anothers_name_is_nobodys() {
    use std::os::fd::OwnedFd;

    use rustix::net::{
        AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, connect, listen, socket_with,
    };

    let make = || socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::NONBLOCK, None).unwrap();
    // Of the first process, which has no pool.
    let name = format!("millpond/{}/1-deadbeef-0", rustix::process::geteuid().as_raw());
    let address = SocketAddrUnix::new_abstract_name(name.as_bytes()).unwrap();
    let squatter = make();
    bind(&squatter, &address).unwrap();
    listen(&squatter, 0).unwrap();
    let mut waiting: Vec<OwnedFd> = Vec::new();
    loop {
        waiting.push(make());
        if connect(waiting.last().unwrap(), &address).is_err() {
            break;
        }
    }
    assert!(seen(1).is_none());
}

#[test]
fn another_process_sees_the_figures_and_trims_a_pool() {
    Other::with(
        "another_process_sees_the_figures_and_trims_a_pool",
        |other| {
            hear(&other.socket);
            let process = seen(other.process.id()).unwrap();
            assert!(process.answers && !process.program.is_empty());
            assert_eq!(names(&process.pools), ["weights", "weights/cache", "pinned"]);
            let [weights, cache, _] = &process.pools[..] else { unreachable!() };
            assert_eq!((weights.device.as_str(), weights.stats.requested.current), ("host", 1000));
            assert!(weights.stats.reserved.current > 0 && weights.device_time > Duration::ZERO);
            let sizes = process.sizes(weights.number, PATIENCE).unwrap();
            assert_eq!((sizes.rows[0].from, sizes.rows[0].blocks, sizes.rows[0].bytes), (512, 1, 1000));
            assert_eq!(process.trim(cache.number, 0, PATIENCE).unwrap(), cache.stats.reserved.current);
            assert!(
                matches!(process.trim(1 << 40, 0, PATIENCE), Err(LookError::Refused(why)) if why.contains("gone"))
            );
            let after = seen(other.process.id()).unwrap();
            assert_eq!(after.pools[1].stats.reserved.current, 0);
            say(&other.socket);
        },
        |socket| {
            let device = Context::host().unwrap();
            let (pool, stream) =
                (Pool::builder(&device).name("weights").build().unwrap(), device.create_stream().unwrap());
            let _block = Buffer::<u8>::new(&pool, 1000, &stream).unwrap();
            pool.tagged("cache").unwrap().reserve(8 * MIB, &stream).unwrap();
            let _pinned = device.pinned().unwrap().build().unwrap();
            let _hidden = Pool::builder(&device).live(false).build().unwrap();
            say(&socket);
            hear(&socket);
        },
    );
}

#[test]
fn a_killed_process_is_not_seen() {
    Other::with(
        "a_killed_process_is_not_seen",
        |other| {
            hear(&other.socket);
            assert!(seen(other.process.id()).is_some());
            other.kill();
            assert_eq!(seen(other.process.id()), None);
        },
        |socket| {
            let (_sim, context, _stream) = sim(64 * MIB);
            let _pool = Pool::builder(&context).build().unwrap();
            say(&socket);
            hear(&socket);
        },
    );
}

#[test]
fn what_a_killed_process_ran_out_of_is_seen() {
    Other::with(
        "what_a_killed_process_ran_out_of_is_seen",
        |other| {
            hear(&other.socket);
            // Its number alone could be that of an earlier process, which left a file, too.
            let id = seen(other.process.id()).unwrap().id();
            let all = || live::errors().into_iter().filter(|seen| seen.id == id);
            assert_eq!(all().count(), 1, "while it runs");
            other.kill();
            let [seen] = &all().collect::<Vec<_>>()[..] else { panic!("it left one file") };
            assert_eq!((seen.errors, seen.pools.len()), (2, 1));
            assert!(
                seen.last.starts_with("out of memory in pool 'doomed': 100.00 MiB requested"),
                "{}",
                seen.last
            );
            assert_eq!((seen.pools[0].name.as_str(), seen.pools[0].stats.out_of_memory), ("doomed", 2));
            assert_eq!(seen.who.user, rustix::process::geteuid().as_raw());
            assert!(seen.last_at > 0 && !seen.who.script.is_empty());
            std::fs::remove_file(&seen.file).unwrap();
        },
        |socket| {
            let (_sim, context, stream) = sim(64 * MIB);
            let pool = Pool::builder(&context).name("doomed").build().unwrap();
            for mib in [200, 100] {
                assert!(pool.alloc(mib * MIB, &stream).is_err());
            }
            say(&socket);
            hear(&socket);
        },
    );
}

/// A child that is stopped, as long as this lives.
struct Stopped(libc::pid_t);

impl Stopped {
    fn new(pid: libc::pid_t) -> Self {
        let mut status = 0;
        // SAFETY: our child, which was not waited for, and a place for its status.
        unsafe {
            assert_eq!(libc::kill(pid, libc::SIGSTOP), 0);
            assert_eq!(libc::waitpid(pid, &raw mut status, libc::WUNTRACED), pid);
        }
        assert!(libc::WIFSTOPPED(status));
        Self(pid)
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        // SAFETY: as above.
        unsafe { libc::kill(self.0, libc::SIGCONT) };
    }
}

#[test]
fn a_stopped_process_is_told_from_one_without_pools() {
    Other::with(
        "a_stopped_process_is_told_from_one_without_pools",
        |other| {
            hear(&other.socket);
            let (pid, (_sim, context, _stream)) = (other.process.id(), sim(64 * MIB));
            let _own = Pool::builder(&context).name("own").build().unwrap();
            let stopped = Stopped::new(pid.cast_signed());
            // More questions than it has room for.
            for _ in 0..20 {
                let Ok(all) = live::processes(Duration::ZERO) else { panic!("the list is there") };
                assert!(all.iter().any(|process| process.pid == pid && !process.answers));
            }
            let short = Duration::from_millis(50);
            let all = live::processes(short).unwrap();
            let find = |pid| all.iter().find(|process| process.pid == pid).unwrap();
            assert!(find(std::process::id()).answers, "the others answer all the same");
            assert!(matches!(find(pid).sizes(1, short), Err(LookError::Silent)));
            drop(stopped);
            until("it answers again", || seen(pid).is_some_and(|process| process.answers));
            say(&other.socket);
        },
        |socket| {
            let (_sim, context, _stream) = sim(64 * MIB);
            let _pool = Pool::builder(&context).build().unwrap();
            say(&socket);
            hear(&socket);
        },
    );
}

#[test]
fn a_forked_child_shows_its_own_pools_only() {
    alone("a_forked_child_shows_its_own_pools_only", || {
        let (_sim, context, _stream) = sim(64 * MIB);
        let pool = Pool::builder(&context).name("the parent's").build().unwrap();
        let (here, there) = UnixStream::pair().unwrap();
        // SAFETY: the child calls what the tests are about; the system's allocator is made for it.
        let pid = unsafe { libc::fork() };
        if pid == 0 {
            say(&there);
            hear(&there);
            let (_sim, context, _stream) = sim(64 * MIB);
            let _pool = Pool::builder(&context).name("the child's").build().unwrap();
            say(&there);
            hear(&there);
            // SAFETY: it ends the child.
            unsafe { libc::_exit(0) };
        }
        let child = pid.cast_unsigned();
        hear(&here);
        assert_eq!((names(&own()), seen(child)), (vec!["the parent's"], None));
        say(&here);
        hear(&here);
        assert_eq!(names(&seen(child).unwrap().pools), ["the child's"]);
        drop(pool);
        assert_eq!(seen(std::process::id()), None, "the child has no copy of the parent's socket");
        say(&here);
        let mut status = 1;
        // SAFETY: our child, and a place for its status.
        assert_eq!((unsafe { libc::waitpid(pid, &mut status, 0) }, status), (pid, 0));
    });
}

fn threads() -> usize {
    std::fs::read_dir("/proc/self/task").unwrap().count()
}

#[test]
fn nothing_is_left_after_the_last_pool() {
    alone("nothing_is_left_after_the_last_pool", || {
        let (_sim, context, _stream) = sim(64 * MIB);
        let (before, _) = (threads(), Pool::builder(&context).live(false).build().unwrap());
        assert_eq!(threads(), before, "a hidden pool starts no thread");
        for _ in 0..3 {
            let pools = [(); 2].map(|()| Pool::builder(&context).build().unwrap());
            assert_eq!((threads(), own().len()), (before + 1, 2));
            drop(pools);
            assert_eq!(seen(std::process::id()), None);
            // The system lists a thread for a moment after it was joined.
            until("its thread is gone", || threads() == before);
        }
        live::hide_all();
        let _pool = Pool::builder(&context).build().unwrap();
        assert_eq!(threads(), before);
    });
}

#[test]
fn a_pool_that_outlives_its_handle_is_seen() {
    alone("a_pool_that_outlives_its_handle_is_seen", || {
        let (_sim, context, stream) = sim(64 * MIB);
        let pool = Pool::builder(&context).build().unwrap();
        let block = pool.alloc(MIB, &stream).unwrap();
        drop(pool);
        assert_eq!(own()[0].stats.blocks.current, 1);
        context.free_block(block, &stream).unwrap();
        until("it is gone", || seen(std::process::id()).is_none());
    });
}

/// A socket as a pool's process has, that does something else.
fn impostor(number: u32, answer: impl Fn(UnixStream) + Send + 'static) {
    // SAFETY: it only asks.
    let name = format!("millpond/{}/{number}-test", unsafe { libc::geteuid() });
    let listener = UnixListener::bind_addr(&SocketAddr::from_abstract_name(name).unwrap()).unwrap();
    std::thread::spawn(move || {
        for socket in listener.incoming() {
            let mut socket = socket.unwrap();
            socket.read_exact(&mut [0; "figures\n".len()]).unwrap();
            answer(socket);
        }
    });
}

#[test]
fn a_process_that_answers_anything_harms_nobody() {
    alone("a_process_that_answers_anything_harms_nobody", || {
        impostor(1, |mut socket| {
            while socket.write_all(br#"[{"name": "\u001b[2J", "number": 99999999999999999999},"#).is_ok() {}
        });
        impostor(2, |mut socket| {
            while socket.write_all(b"[").is_ok() {
                std::thread::sleep(Duration::from_millis(1));
            }
        });
        impostor(3, |mut socket| drop(socket.write_all(b"[{\"name\": \"\xff\"}]")));
        impostor(4, drop);
        impostor(5, |mut socket| {
            let level = r#"{"current": -5, "high": 18446744073709551615}"#;
            let pool = format!(r#"[{{"name": "\u001b[2J", "stats": {{"allocated": {level}}}}}]"#);
            drop(socket.write_all(pool.as_bytes()))
        });
        let began = Instant::now();
        let all = live::processes(Duration::from_millis(200)).unwrap();
        assert!(began.elapsed() < PATIENCE);
        // The system says whose sockets they are, whatever their names.
        let answered: Vec<_> = all.iter().filter(|process| process.pid == std::process::id()).collect();
        assert_eq!(answered.len(), 5);
        let pools: Vec<_> = answered.iter().flat_map(|process| &process.pools).collect();
        let [pool] = pools[..] else { panic!("{pools:?}") };
        assert_eq!((pool.name.as_str(), pool.stats.allocated.current), ("\u{fffd}[2J", 0));
        assert!(pool.stats.allocated.high < u64::MAX / 1000);
    });
}

#[test]
fn questions_that_make_no_sense_are_answered_with_an_error() {
    alone("questions_that_make_no_sense_are_answered_with_an_error", || {
        let (_sim, context, _stream) = sim(64 * MIB);
        let _pool = Pool::builder(&context).build().unwrap();
        let list = std::fs::read_to_string("/proc/net/unix").unwrap();
        let own = format!("/{}-", std::process::id());
        let name = list.lines().find_map(|line| line.split_once('@').filter(|(_, name)| name.contains(&own)));
        let address = SocketAddr::from_abstract_name(name.unwrap().1).unwrap();
        for question in [&b"\xff\xff"[..], b"trim 1", b"sizes x", b"make tea\n", &[b'x'; 4096], b""] {
            let mut socket = UnixStream::connect_addr(&address).unwrap();
            socket.write_all(question).unwrap();
            socket.shutdown(std::net::Shutdown::Write).unwrap();
            let mut answer = String::new();
            // The rest of a long question is not read: the system says so to who sent it.
            if socket.read_to_string(&mut answer).is_ok() {
                assert!(answer.starts_with("error "), "{answer}");
            }
        }
        // Who never asks is not waited for.
        let _silent = UnixStream::connect_addr(&address).unwrap();
        assert!(seen(std::process::id()).unwrap().answers);
    });
}
