//! One budget for many processes: whatever they do and however they end, the sum is right.
//!
//! The other processes are this program again, as the test [`tenant`]: it does what its standard input says.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::panic::AssertUnwindSafe;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use millpond::device::sim::SimOptions;
use millpond::{Budget, Context, Error, Keep, Pool, Stream};

use crate::processes::{again, alone};
use crate::shared::{Freeing, MIB, Random, sim, sim_with};

/// The budget that a tenant is to have.
const BUDGET: &str = "MILLPOND_TEST_BUDGET";

/// Set for a tenant on the first GPU.
const ON_GPU: &str = "MILLPOND_TEST_ON_GPU";

/// Set for a tenant on the CPU, whose pages a forked child has, too.
const ON_HOST: &str = "MILLPOND_TEST_ON_HOST";

/// What a tenant's answers begin with: the test harness prints, too.
const ANSWER: &str = "answer: ";

/// More than a request can take that waits.
const LONG: Duration = Duration::from_secs(20);

/// A budget that only one test has. Its file goes at the end.
struct Named(String);

impl Named {
    fn new(test: &str) -> Self {
        Self(format!("{test}-{}", std::process::id()))
    }

    fn join(&self, mib: u64) -> Budget {
        Budget::named(&self.0, mib * MIB).unwrap()
    }
}

impl Drop for Named {
    fn drop(&mut self) {
        let budget = Budget::named(&self.0, 0).unwrap();
        std::fs::remove_file(budget.path().unwrap()).unwrap();
    }
}

/// What a process has under a budget.
struct Home {
    pool: Pool,
    stream: Stream,
    _context: Context,
}

impl Home {
    fn new(budget: &Budget) -> Self {
        #[cfg(feature = "cuda")]
        if std::env::var_os(ON_GPU).is_some() {
            return Self::of(Context::cuda(0).unwrap(), budget);
        }
        if std::env::var_os(ON_HOST).is_some() {
            return Self::of(Context::host().unwrap(), budget);
        }
        Self::of(sim(1 << 30).1, budget)
    }

    fn of(context: Context, budget: &Budget) -> Self {
        let stream = context.create_stream().unwrap();
        let pool = Pool::builder(&context).name("home").budget(budget).build().unwrap();
        Self { pool, stream, _context: context }
    }

    fn alloc(&self, mib: u64) -> Result<millpond::device::DevicePtr, Error> {
        self.pool.alloc(mib * MIB, &self.stream)
    }
}

/// Another process under the budget. Killed when dropped.
pub(crate) struct Tenant {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Tenant {
    fn new(budget: &Named, limit_mib: u64) -> Self {
        Self::with(budget, limit_mib, |_| {})
    }

    fn with(budget: &Named, limit_mib: u64, change: impl FnOnce(&mut Command)) -> Self {
        Self::under(&budget.0, limit_mib, change)
    }

    pub(crate) fn under(budget: &str, limit_mib: u64, change: impl FnOnce(&mut Command)) -> Self {
        let mut command = again("tenant");
        command.env(BUDGET, budget);
        change(&mut command);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let (input, output) = (child.stdin.take().unwrap(), BufReader::new(child.stdout.take().unwrap()));
        let mut tenant = Self { child, input, output };
        tenant.tell(&format!("limit {limit_mib}"));
        tenant
    }

    fn tell(&mut self, what: &str) {
        writeln!(self.input, "{what}").unwrap();
    }

    /// Has it do this; what it answers.
    pub(crate) fn ask(&mut self, what: &str) -> String {
        self.tell(what);
        let mut line = String::new();
        while self.output.read_line(&mut line).unwrap() > 0 {
            if let Some((_, answer)) = line.trim_end().split_once(ANSWER) {
                return answer.to_owned();
            }
            line.clear();
        }
        panic!("the tenant ended instead of doing '{what}'");
    }

    pub(crate) fn does(&mut self, what: &str) {
        assert_eq!(self.ask(what), "done", "{what}");
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Kills it. What it forked, or became, goes on until the input ends.
    fn kill_but_not_its_child(mut self) -> ChildStdin {
        self.kill();
        let nothing = Command::new("true").stdin(Stdio::piped()).spawn().map(|mut child| child.stdin.take());
        std::mem::replace(&mut self.input, nothing.unwrap().unwrap())
    }
}

impl Drop for Tenant {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Not a test: what the other processes are.
#[test]
fn tenant() {
    let Ok(name) = std::env::var(BUDGET) else { return };
    let mut lines = std::io::stdin().lines().map(Result::unwrap);
    let limit: u64 = lines.next().unwrap().strip_prefix("limit ").unwrap().parse().unwrap();
    let budget = Budget::named(&name, limit * MIB).unwrap();
    let home = Home::new(&budget);
    let mut blocks = Vec::new();
    for line in lines {
        if line == "leave" {
            break;
        }
        let (what, number) = line.split_once(' ').unwrap_or((line.as_str(), "0"));
        let number: u64 = number.parse().unwrap();
        let mut answer = "done".to_owned();
        match what {
            "alloc" => match home.alloc(number) {
                Ok(block) => blocks.push(block),
                Err(error) => answer = error.to_string(),
            },
            "free" => blocks.drain(..).for_each(|block| home.pool.free_block(block, &home.stream).unwrap()),
            "floor" => match budget.set_floor(number * MIB) {
                Ok(()) => {}
                Err(error) => answer = error.to_string(),
            },
            "claim" => budget.set_claim(number * MIB).unwrap(),
            "patience" => budget.set_patience(Duration::from_millis(number)).unwrap(),
            "trim" => _ = home.pool.trim_to(0).unwrap(),
            "held" => answer = (home.pool.reserved().current / MIB).to_string(),
            // The child has what its parent has, until the input ends.
            // SAFETY: the child does nothing but wait.
            "fork" => match unsafe { libc::fork() } {
                0 => wait_for_the_end_of_input(),
                child => assert!(child > 0),
            },
            // Another program, until the input ends.
            "exec" => panic!("{}", Command::new("cat").exec()),
            "churn" => churn(&name, number, &home),
            other => panic!("{other}?"),
        }
        println!("{ANSWER}{answer}");
    }
    drop((budget, home));
    println!("{ANSWER}done");
    // Ended by who began it.
    wait_for_the_end_of_input();
}

/// In a forked child, where little else can be called. Reads nothing: that may be for its parent.
fn wait_for_the_end_of_input() {
    let mut input = libc::pollfd { fd: 0, events: 0, revents: 0 };
    // SAFETY: one entry, which can be written; `_exit` ends the process.
    unsafe {
        while libc::poll(&raw mut input, 1, -1) != 1 {}
        libc::_exit(0);
    }
}

/// Until this is so, which it will be soon.
fn until(what: &str, is_so: impl Fn() -> bool) {
    let began = Instant::now();
    while !is_so() {
        assert!(began.elapsed() < LONG, "{what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Takes and gives back for ever, and joins and leaves another budget in between.
fn churn(name: &str, seed: u64, home: &Home) {
    let mut random = Random(seed);
    let mut blocks = Vec::new();
    // Some do nothing but use the ledger.
    let only_takes = seed.is_multiple_of(3);
    loop {
        if only_takes {
            if let Ok(block) = home.alloc(1 + random.below(24)) {
                home.pool.free_block(block, &home.stream).unwrap();
            }
            home.pool.trim_to(0).unwrap();
            continue;
        }
        match random.below(8) {
            0..4 => blocks.extend(home.alloc(1 + random.below(24)).ok()),
            4..6 if !blocks.is_empty() => {
                let block = blocks.swap_remove(random.below(blocks.len() as u64) as usize);
                home.pool.free_block(block, &home.stream).unwrap();
            }
            6 => _ = home.pool.trim_to(random.below(32) * MIB).unwrap(),
            _ => drop(Budget::named(&format!("{name}-other"), MIB).unwrap()),
        }
    }
}

#[test]
fn processes_share_one_limit() {
    let named = Named::new("share");
    let budget = named.join(64);
    let home = Home::new(&budget);
    let mut other = Tenant::new(&named, 99);
    other.does("alloc 40");
    assert_eq!((budget.limit(), budget.held()), (64 * MIB, 40 * MIB));
    let Err(Error::OutOfMemory(report)) = home.alloc(30) else { panic!("the other has the memory") };
    assert_eq!((report.tenants.len(), report.tenants[0].pid), (1, other.pid()));
    assert_eq!(report.tenants[0].held, 40 * MIB);
    let text = report.to_string();
    assert!(text.contains("the pools of its budget hold 40.00 MiB of 64.00 MiB"), "{text}");
    let theirs = format!("Under the budget process {} (", other.pid());
    assert!(text.contains(&theirs) && text.ends_with("holds 40.00 MiB"), "{text}");
    let block = home.alloc(24).unwrap();
    assert!(other.ask("alloc 2").contains("out of memory"));
    home.pool.free_block(block, &home.stream).unwrap();
    home.pool.trim_to(0).unwrap();
    other.does("alloc 24");
}

#[test]
fn what_is_idle_elsewhere_goes_to_who_asks() {
    let named = Named::new("idle");
    let budget = named.join(64);
    budget.set_patience(LONG).unwrap();
    let home = Home::new(&budget);
    let mut idle = Tenant::new(&named, 64);
    idle.does("alloc 60");
    idle.does("free");
    assert_eq!(idle.ask("held"), "60");
    let began = Instant::now();
    let block = home.alloc(48).unwrap();
    println!("60 MiB that were idle in another process went back after {:?}", began.elapsed());
    assert!(idle.ask("held").parse::<u64>().unwrap() <= 16);
    // And it can have them again when they are free here.
    let mut again = Tenant::new(&named, 64);
    assert!(again.ask("alloc 48").contains("out of memory"));
    home.pool.free_block(block, &home.stream).unwrap();
    again.does("alloc 48");
}

#[test]
fn a_pool_that_wakes_asks_other_processes() {
    let named = Named::new("wake");
    let budget = named.join(64);
    let home = Home::new(&budget);
    let block = home.alloc(48).unwrap();
    home.pool.sleep(Keep::Nothing).unwrap();
    let mut other = Tenant::new(&named, 64);
    other.does("alloc 60");
    assert!(matches!(home.pool.wake(), Err(Error::OutOfMemory(_))), "the other has the memory");
    assert!(home.pool.is_asleep());
    other.does("free");
    assert_eq!(other.ask("held"), "60");
    budget.set_patience(LONG).unwrap();
    home.pool.wake().unwrap();
    assert_eq!(home.pool.reserved().current, 48 * MIB);
    assert!(other.ask("held").parse::<u64>().unwrap() <= 16);
    home.pool.free_block(block, &home.stream).unwrap();
}

#[test]
fn who_needs_a_little_asks_for_as_much_as_the_device_gives_at_once() {
    for virtual_memory in [true, false] {
        let named = Named::new(&format!("little-{virtual_memory}"));
        // Some of it is left, but too little for a page or a segment.
        let budget = named.join(65);
        budget.set_patience(LONG).unwrap();
        let (_, context, stream) = sim_with(SimOptions::default().virtual_memory(virtual_memory));
        let pool = Pool::builder(&context).budget(&budget).build().unwrap();
        let mut idle = Tenant::new(&named, 65);
        idle.does("alloc 64");
        idle.does("free");
        _ = pool.alloc(4096, &stream).unwrap();
        _ = pool.alloc(3 * MIB, &stream).unwrap();
    }
}

#[test]
fn who_asks_waits_until_something_is_freed() {
    let named = Named::new("wait");
    let budget = named.join(64);
    budget.set_patience(LONG).unwrap();
    let home = Home::new(&budget);
    let mut busy = Tenant::new(&named, 64);
    busy.does("alloc 60");
    std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(Duration::from_millis(100));
            busy.does("free");
        });
        _ = home.alloc(40).unwrap();
    });
    // What cannot come is not waited for.
    let began = Instant::now();
    assert!(home.alloc(40).is_err());
    assert!(began.elapsed() < LONG / 2);
}

#[test]
fn the_sum_never_exceeds_the_limit_and_survives_kills_at_any_moment() {
    const LIMIT: u64 = 96;
    let named = Named::new("kill");
    let others = Named(format!("{}-other", named.0));
    let (budget, _others) = (named.join(LIMIT), others.join(1));
    let mut random = Random(42);
    let churning = |seed| {
        let mut tenant = Tenant::new(&named, LIMIT);
        tenant.tell("patience 5");
        tenant.tell(&format!("churn {seed}"));
        tenant
    };
    let mut tenants: Vec<_> = (0..3).map(churning).collect();
    let mut most = 0;
    for round in 0..40 {
        let until = Instant::now() + Duration::from_micros(2_000 + random.below(30_000));
        while Instant::now() < until {
            let held = budget.held();
            assert!(held <= LIMIT * MIB, "{held} bytes");
            most = most.max(held);
        }
        let at = random.below(3) as usize;
        tenants[at].kill();
        tenants[at] = churning(100 + round);
    }
    assert!(most > LIMIT * MIB / 2, "they did compete: {most} bytes");
    drop(tenants);
    assert_eq!(budget.tenants().len(), 1);
    assert_eq!(budget.held(), 0);
    budget.set_patience(Duration::ZERO).unwrap();
    let home = Home::new(&budget);
    _ = home.alloc(LIMIT).unwrap();
    assert_eq!(budget.held(), LIMIT * MIB);
}

#[cfg(feature = "cuda")]
#[test]
#[ignore = "needs a CUDA GPU"]
fn what_a_killed_process_had_on_a_gpu_is_there_as_soon_as_the_budget_says_so() {
    let named = Named::new("gpu");
    let context = Context::cuda(0).unwrap();
    let free = context.memory_info().unwrap().free / MIB;
    // Room for contexts besides. Two thirds of it can only be had once.
    let (limit, most) = (free * 9 / 10, free * 6 / 10);
    let budget = named.join(limit);
    budget.set_patience(LONG).unwrap();
    let home = Home::of(context, &budget);
    for _ in 0..3 {
        let mut other = Tenant::with(&named, limit, |command| _ = command.env(ON_GPU, "1"));
        other.does(&format!("alloc {most}"));
        assert!(budget.held() >= most * MIB);
        other.child.kill().unwrap();
        let began = Instant::now();
        let block = home.alloc(most).unwrap();
        println!("{most} MiB of a killed process were there after {:?}", began.elapsed());
        home.pool.free_block(block, &home.stream).unwrap();
        // And what is idle here goes to the next one.
        assert!(budget.held() > 0);
    }
}

#[cfg(feature = "cuda")]
#[test]
#[ignore = "needs a CUDA GPU"]
fn memory_on_a_gpu_counts_until_the_last_forked_child_has_ended() {
    let named = Named::new("gpu-heir");
    let context = Context::cuda(0).unwrap();
    let free = context.memory_info().unwrap().free / MIB;
    let (limit, most) = (free * 9 / 10, free * 6 / 10);
    let budget = named.join(limit);
    budget.set_patience(Duration::ZERO).unwrap();
    let home = Home::of(context, &budget);
    let on_gpu = || {
        let mut other = Tenant::with(&named, limit, |command| _ = command.env(ON_GPU, "1"));
        other.does(&format!("alloc {most}"));
        other
    };
    let mut other = on_gpu();
    other.does("fork");
    let input = other.kill_but_not_its_child();
    std::thread::sleep(Duration::from_secs(2));
    assert!(budget.held() >= most * MIB && home.alloc(most).is_err(), "the child has the memory");
    drop(input);
    until("the child ends, and the memory is there", || budget.held() == 0);
    let block = home.alloc(most).expect("what the budget says is free is free on the device");
    home.pool.free_block(block, &home.stream).unwrap();
    home.pool.trim_to(0).unwrap();
    // And one that becomes another program gives it back.
    let mut other = on_gpu();
    other.tell("exec");
    until("its descriptors are closed", || budget.held() == 0);
    assert!(other.child.try_wait().unwrap().is_none(), "the process lives");
    _ = home.alloc(most).expect("what the budget says is free is free on the device");
}

#[test]
fn a_limit_changes_while_processes_run() {
    let named = Named::new("limit");
    let budget = named.join(64);
    let home = Home::new(&budget);
    let mut other = Tenant::new(&named, 64);
    other.does("alloc 60");
    other.does("free");
    budget.set_limit(20 * MIB);
    let began = Instant::now();
    while budget.held() > 20 * MIB {
        assert!(began.elapsed() < LONG, "what is free beyond the limit goes back");
        std::thread::sleep(Duration::from_millis(1));
    }
    println!("a lowered limit was kept after {:?}", began.elapsed());
    assert!(other.ask("alloc 30").contains("the budget is 20.00 MiB"));
    budget.set_limit(100 * MIB);
    other.does("alloc 60");
    _ = home.alloc(40).unwrap();
}

#[test]
fn floors_stay_with_their_processes() {
    let named = Named::new("floor");
    let budget = named.join(64);
    let home = Home::new(&budget);
    let mut other = Tenant::new(&named, 64);
    other.does("floor 32");
    assert!(home.alloc(34).is_err(), "32 MiB are kept for a process that does not use them yet");
    other.does("alloc 40");
    other.does("free");
    let mine = home.alloc(30).unwrap();
    assert!(other.ask("held").parse::<u64>().unwrap() >= 32, "it need not give what is below its floor");
    home.pool.free_block(mine, &home.stream).unwrap();
    let refused = budget.set_floor(33 * MIB).unwrap_err().to_string();
    assert!(refused.contains("use at most 33554432"), "{refused}");
    budget.set_floor(32 * MIB).unwrap();
    // Each has its floor, whatever the other did before.
    other.does("alloc 32");
    _ = home.alloc(32).unwrap();
    let tenants = budget.tenants();
    assert!(tenants.iter().all(|tenant| (tenant.held, tenant.floor) == (32 * MIB, 32 * MIB)), "{tenants:?}");
}

#[test]
fn a_process_never_holds_more_than_its_claim() {
    let named = Named::new("claim");
    let budget = named.join(64);
    let home = Home::new(&budget);
    budget.set_claim(16 * MIB).unwrap();
    let refused = home.alloc(17).unwrap_err().to_string();
    assert!(refused.contains("the budget is 16.00 MiB"), "{refused}");
    _ = home.alloc(16).unwrap();
    assert!(home.alloc(1).unwrap_err().to_string().contains("hold 16.00 MiB of 16.00 MiB"));
    budget.set_claim(64 * MIB).unwrap();
    _ = home.alloc(48).unwrap();
}

#[test]
fn a_killed_process_counts_for_nothing_as_soon_as_it_was_waited_for() {
    let named = Named::new("killed");
    let budget = named.join(64);
    let mut other = Tenant::new(&named, 64);
    other.does("alloc 40");
    assert_eq!(budget.held(), 40 * MIB);
    other.kill();
    // Nothing else asked the budget for anything.
    assert_eq!(budget.held(), 0);
}

#[test]
fn a_killed_process_counts_as_long_as_a_child_that_it_forked_lives() {
    for device in ["MILLPOND_TEST_ON_SIM", ON_HOST] {
        let named = Named::new("heir");
        let budget = named.join(64);
        let home = Home::new(&budget);
        let mut other = Tenant::with(&named, 64, |command| _ = command.env(device, "1"));
        other.does("alloc 40");
        other.does("fork");
        let pid = other.pid();
        let input = other.kill_but_not_its_child();
        assert_eq!(budget.held(), 40 * MIB, "the child has the driver's descriptors");
        let Err(Error::OutOfMemory(report)) = home.alloc(30) else { panic!("the child has the memory") };
        assert_eq!((report.tenants[0].pid, report.tenants[0].held), (pid, 40 * MIB));
        assert_eq!(report.tenants[0].program, "has ended");
        // Who comes later finds the same.
        assert!(Tenant::new(&named, 64).ask("alloc 30").contains("out of memory"));
        drop(input);
        until("the child ends, and the memory is there", || budget.held() == 0);
        _ = home.alloc(64).unwrap();
    }
}

#[test]
fn a_process_that_becomes_another_program_counts_for_nothing() {
    let named = Named::new("exec");
    let budget = named.join(64);
    let mut other = Tenant::new(&named, 64);
    other.does("alloc 40");
    other.tell("exec");
    until("its descriptors are closed", || budget.held() == 0);
    assert!(other.child.try_wait().unwrap().is_none(), "the process lives");
    assert_eq!(budget.tenants().len(), 1);
    Tenant::new(&named, 64).does("alloc 64");
}

#[test]
fn a_child_does_not_keep_what_its_parent_gave_back() {
    let named = Named::new("given-back");
    let budget = named.join(64);
    let mut other = Tenant::new(&named, 64);
    other.does("alloc 40");
    other.does("fork");
    other.does("free");
    other.does("trim");
    assert_eq!(budget.held(), 0);
    other.does("leave");
    assert_eq!(budget.tenants().len(), 1, "it left, and its child has nothing");
    // Its place is another one's meanwhile.
    let mut next = Tenant::new(&named, 64);
    next.does("alloc 64");
}

#[test]
fn a_forked_child_does_not_count_as_its_parent() {
    alone("a_forked_child_does_not_count_as_its_parent", || {
        let named = Named::new("fork");
        let budget = named.join(64);
        let home = Home::new(&budget);
        _ = home.alloc(10).unwrap();
        // The budget's thread may be about to begin, with a lock of the standard library's.
        std::thread::sleep(Duration::from_millis(50));
        // SAFETY: the child calls what the test is about, and ends by `_exit`.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let checked = std::panic::catch_unwind(AssertUnwindSafe(|| {
                let (_, context, stream) = sim(1 << 30);
                let refused = Pool::builder(&context).budget(&budget).build();
                assert_eq!(refused.map(drop), Err(Error::Forked));
                assert_eq!(budget.set_floor(1), Err(Error::Forked));
                assert_eq!(budget.held(), 10 * MIB);
                let own = named.join(64);
                let pool = Pool::builder(&context).budget(&own).build().unwrap();
                _ = pool.alloc(20 * MIB, &stream).unwrap();
                assert_eq!((own.held(), own.tenants().len()), (30 * MIB, 2));
                drop(home);
            }));
            // SAFETY: ends the process.
            unsafe { libc::_exit(i32::from(checked.is_err())) };
        }
        let mut status = 0;
        // SAFETY: the process is our child, and the status can be written.
        assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
        assert_eq!(status, 0);
        // The system may close its files a moment after it has ended.
        until("the child is gone", || (budget.tenants().len(), budget.held()) == (1, 10 * MIB));
    });
}

#[test]
fn a_name_is_the_same_budget_for_the_whole_process() {
    let named = Named::new("same");
    let (first, second) = (named.join(64), named.join(32));
    let (one, _two) = (Home::new(&first), Home::new(&second));
    _ = one.alloc(40).unwrap();
    assert_eq!((second.limit(), second.held(), second.tenants().len()), (64 * MIB, 40 * MIB, 1));
}

#[test]
fn a_budget_that_others_have_is_found() {
    let named = Named::new("find");
    assert!(Budget::find(&named.0).unwrap().is_none());
    let mut other = Tenant::new(&named, 64);
    other.does("alloc 10");
    let found = Budget::find(&named.0).unwrap().unwrap();
    assert_eq!((found.limit(), found.held()), (64 * MIB, 10 * MIB));
    drop(found);
    drop(other);
    assert!(Budget::find(&named.0).unwrap().is_none(), "there is a file, but nobody has it");
}

#[test]
fn nobody_takes_the_name_of_a_budget_first() {
    let named = Named::new("taken");
    // Any user can make this.
    // SAFETY: it only asks.
    let user = unsafe { libc::geteuid() };
    let in_the_way = format!("/dev/shm/millpond-budget-{user}-{}", named.0);
    std::fs::create_dir(&in_the_way).unwrap();
    let joined = Budget::named(&named.0, MIB).map(|budget| budget.path().unwrap().to_owned());
    std::fs::remove_dir(&in_the_way).unwrap();
    let folder = joined.unwrap().parent().unwrap().to_owned();
    let about = std::fs::symlink_metadata(&folder).unwrap();
    assert!(about.is_dir() && (about.uid(), about.mode() & 0o777) == (user, 0o700), "{}", folder.display());
}

#[test]
fn processes_with_the_same_runtime_folder_share_a_budget() {
    let (named, runtime) = (Named::new("runtime"), tempfile::tempdir().unwrap());
    let here = named.join(64);
    let there = |folder: &std::path::Path| {
        Tenant::with(&named, 64, |command| _ = command.env("XDG_RUNTIME_DIR", folder))
    };
    let [mut first, mut second] = [(); 2].map(|()| there(runtime.path()));
    first.does("alloc 40");
    assert!(second.ask("alloc 30").contains("out of memory"));
    assert_eq!(here.held(), 0, "this process has another runtime folder");
    assert!(runtime.path().join("millpond").join(&named.0).is_file());
}

#[test]
fn mistakes_are_errors_that_say_what_to_do() {
    for name in ["", "a/b", "a.b", "ü", &"x".repeat(65)] {
        let refused = Budget::named(name, 1).unwrap_err().to_string();
        assert!(refused.contains("use 1 to 64 letters"), "{refused}");
    }
    let private = Budget::bytes(1);
    for refused in [private.set_floor(1), private.set_claim(1), private.set_patience(LONG)] {
        assert!(refused.unwrap_err().to_string().contains("make it with Budget::named"));
    }
    assert!(private.tenants().is_empty() && private.path().is_none());
}
