//! One budget for several containers: other PID, user and mount namespaces, with a folder that all of them have.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use millpond::{Budget, live};

use crate::budgets::Tenant;
use crate::processes::alone;

/// The variable that names the folder.
const FOLDER: &str = "MILLPOND_BUDGET_DIR";

/// What makes a container's namespaces, and ends what is in them with itself.
const UNSHARE: [&str; 5] = ["--map-root-user", "--pid", "--mount-proc", "--fork", "--kill-child"];

/// Whether this system lets a user make namespaces.
fn has_namespaces() -> bool {
    let tried = Command::new("unshare").args(UNSHARE).arg("true").stderr(Stdio::null()).status();
    let has = tried.is_ok_and(|status| status.success());
    if !has {
        eprintln!("not run: this system lets nobody make namespaces (unshare)");
    }
    has
}

/// A process under the budget, in a container of its own.
fn contained(folder: &Path, limit_mib: u64) -> Tenant {
    begun_by(&[&["unshare"], &UNSHARE[..]].concat(), folder, limit_mib)
}

/// A process under the budget that another program begins.
fn begun_by(beginner: &[&str], folder: &Path, limit_mib: u64) -> Tenant {
    Tenant::under("job", limit_mib, |command| {
        let mut outer = Command::new(beginner[0]);
        outer.args(&beginner[1..]).arg(command.get_program()).args(command.get_args());
        outer.envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))));
        outer.env(FOLDER, folder);
        *command = outer;
    })
}

#[test]
fn containers_share_one_limit_and_what_is_killed_gives_back() {
    if !has_namespaces() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let mut outside = Tenant::under("job", 64, |command| _ = command.env(FOLDER, folder.path()));
    // It sets the limit.
    outside.does("alloc 20");
    let [mut one, mut two] = [contained(folder.path(), 99), contained(folder.path(), 99)];
    one.does("alloc 30");
    let refused = two.ask("alloc 20");
    assert!(refused.contains("the pools of its budget hold 50.00 MiB of 64.00 MiB"), "{refused}");
    assert!(refused.contains("in another PID namespace) holds 30.00 MiB"), "{refused}");
    // What is idle in one container goes to another.
    one.does("free");
    two.does("patience 20000");
    two.does("alloc 30");
    // Whoever is killed gives back, inside and outside.
    two.kill();
    outside.does("patience 20000");
    outside.does("alloc 40");
    outside.kill();
    one.does("patience 20000");
    one.does("alloc 60");
}

#[test]
fn a_budget_of_containers_is_seen_without_joining_it() {
    alone("a_budget_of_containers_is_seen_without_joining_it", || {
        if !has_namespaces() {
            return;
        }
        let folder = tempfile::tempdir().unwrap();
        // SAFETY: the process has this test's thread, and the harness', which waits.
        unsafe { std::env::set_var(FOLDER, folder.path()) };
        Budget::keep_limit("job", 64 << 20).unwrap();
        let mut one = contained(folder.path(), 99);
        one.does("alloc 30");
        for _ in 0..3 {
            // Root sees those of all folders.
            let all = Budget::all().into_iter();
            let seen: Vec<_> = all.filter(|seen| seen.path.starts_with(folder.path())).collect();
            assert_eq!((seen.len(), seen[0].name.as_str(), seen[0].limit), (1, "job", 64 << 20));
            assert_eq!((seen[0].tenants.len(), seen[0].held()), (1, 30 << 20), "no look takes a place");
        }
        one.kill();
        crate::processes::until("what was killed holds nothing", || {
            Budget::look("job").unwrap().unwrap().tenants.is_empty()
        });
        assert_eq!(Budget::look("job").unwrap().unwrap().limit, 64 << 20);
        assert!(Budget::remove("job").unwrap());
    });
}

/// Whether this user is root, and `beginner` can begin a program.
fn root_can(beginner: &[&str]) -> bool {
    let program = std::env::current_exe().unwrap();
    let tried = Command::new(beginner[0]).args(&beginner[1..]).arg(program).arg("--list").output();
    let can = rustix::process::geteuid().is_root() && tried.is_ok_and(|output| output.status.success());
    if !can {
        eprintln!("not run: this needs root, and {}", beginner.join(" "));
    }
    can
}

#[test]
fn root_sees_the_pools_of_all_users_in_all_namespaces() {
    use std::os::unix::fs::PermissionsExt;
    let container =
        ["unshare", "--net", "--map-root-user", "--pid", "--mount-proc", "--fork", "--kill-child"];
    let user = ["setpriv", "--reuid=12345", "--regid=12345", "--clear-groups"];
    let users_container = [&user[..], &container[..]].concat();
    for (beginner, user) in [(&container[..], 0), (&user[..], 12345), (&users_container[..], 12345)] {
        if !root_can(beginner) {
            continue;
        }
        let folder = tempfile::tempdir().unwrap();
        std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o1777)).unwrap();
        let mut tenant = begun_by(beginner, folder.path(), 77);
        tenant.does("alloc 30");
        let all = live::look(Duration::from_secs(10)).unwrap();
        let beginner_pid = tenant.pid();
        let has_parent = |pid: u32| {
            let parents = std::iter::successors(Some(pid), |pid| parent(*pid));
            parents.take_while(|pid| *pid > 1).any(|pid| pid == beginner_pid)
        };
        let seen: Vec<_> = all.all.iter().filter(|process| has_parent(process.pid)).collect();
        let [seen] = &seen[..] else { panic!("{beginner:?}: {seen:?}") };
        assert!(seen.answers && seen.pools[0].name == "home", "{seen:?}");
        assert_eq!((seen.who.user, seen.pools[0].stats.reserved.current), (user, 30 << 20));
        let pool = seen.pools[0].number;
        let sizes = seen.sizes(pool, Duration::from_secs(10)).unwrap();
        assert_eq!(sizes.rows.iter().map(|row| row.bytes).sum::<u64>(), 30 << 20);
        assert_eq!(all.hidden, 0);
        tenant.kill();
    }
}

#[test]
fn a_process_that_proc_hides_counts_as_running() {
    use std::os::unix::fs::PermissionsExt;
    // An administrator may have each user see their own processes only.
    let hides = "mount -t proc -o hidepid=2 proc /proc && \
                 exec setpriv --reuid=12345 --regid=12345 --clear-groups \"$0\" \"$@\"";
    let beginner = ["unshare", "--mount", "sh", "-c", hides];
    if !root_can(&beginner) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o1777)).unwrap();
    let mut hidden = Tenant::under("job", 64, |command| _ = command.env(FOLDER, folder.path()));
    hidden.does("alloc 40");
    let refused = begun_by(&beginner, folder.path(), 99).ask("alloc 30");
    assert!(refused.contains("hold 40.00 MiB of 64.00 MiB"), "{refused}");
    assert!(!refused.contains("has ended"), "{refused}");
}

fn parent(pid: u32) -> Option<u32> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    status.lines().find_map(|line| line.strip_prefix("PPid:"))?.trim().parse().ok()
}
