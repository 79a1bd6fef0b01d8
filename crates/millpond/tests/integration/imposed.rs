//! Limits from outside: the environment, or a file of the machine, limits the pools of a program that asks for none.

use std::path::Path;
use std::process::Command;

use millpond::{Budget, Error, Limit, Pool};

use crate::processes::again;
use crate::shared::{MIB, sim};

/// What the program is to find.
const EXPECTED: &str = "MILLPOND_TEST_EXPECTED";

/// Not a test: a program that allocates until it is refused, and says how much it got.
#[test]
fn limited_program() {
    let Ok(expected) = std::env::var(EXPECTED) else { return };
    let (_, context, stream) = sim(256 * MIB);
    let build = |budget: Option<&Budget>| {
        let builder = Pool::builder(&context);
        budget.map_or(builder.clone(), |budget| builder.budget(budget)).build()
    };
    let pools = [build(None), build(Some(&Budget::bytes(200 * MIB)))];
    let [pool, own] = match pools {
        [Ok(pool), Ok(own)] => [pool, own],
        [Err(error), _] | [_, Err(error)] => {
            assert!(error.to_string().contains(&expected), "{error}");
            return;
        }
    };
    let expected: u64 = expected.parse().unwrap();
    // Two pools, of which one has a budget of its own: the limit is of both.
    let mut got = 0;
    for (pool, most) in [(&own, expected / 2), (&pool, u64::MAX)] {
        let mut of_it = 0;
        while of_it < most {
            match pool.alloc(2 * MIB, &stream) {
                Ok(_) => of_it += 2,
                Err(Error::OutOfMemory(report)) => {
                    assert_eq!(report.limit, Limit::Budget { limit: expected * MIB, held: expected * MIB });
                    break;
                }
                Err(error) => panic!("{error}"),
            }
        }
        got += of_it;
    }
    assert_eq!(got, expected);
    // The one with a budget of its own is refused as well, and told which limit it is.
    let Err(Error::OutOfMemory(report)) = own.alloc(2 * MIB, &stream) else { panic!("it is refused") };
    assert_eq!(report.limit, Limit::Budget { limit: expected * MIB, held: expected * MIB });
    // Memory that is not the device's is not limited.
    drop(context.pinned().unwrap().build().unwrap());
}

fn run(expected: &str, change: impl FnOnce(&mut Command)) {
    let mut command = again("limited_program");
    command.env(EXPECTED, expected);
    change(&mut command);
    let output = command.output().unwrap();
    let [out, err] = [&output.stdout, &output.stderr].map(|said| String::from_utf8_lossy(said));
    assert!(output.status.success() && out.contains("1 passed"), "{expected}: {out}{err}");
}

#[test]
fn the_environment_limits_all_pools_of_a_program() {
    for (text, expected) in [("64MiB", "64"), ("50%", "128"), ("64Mi,0=2MiB", "64"), ("67108864", "64")] {
        run(expected, |command| _ = command.env("MILLPOND_LIMIT", text));
    }
}

#[test]
fn a_limit_that_cannot_be_read_is_an_error() {
    for (text, said) in [("lots", "'lots' is no amount of memory"), ("x=1GiB", "no number of a GPU")] {
        run(said, |command| _ = command.env("MILLPOND_LIMIT", text));
    }
}

fn file(folder: &Path, text: &str) -> std::path::PathBuf {
    let path = folder.join("millpond.conf");
    std::fs::write(&path, text).unwrap();
    path
}

#[test]
fn a_file_limits_where_the_environment_says_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let path = file(folder.path(), "# half of each GPU\nMILLPOND_LIMIT=50%\n");
    run("128", |command| _ = command.env("MILLPOND_CONFIG", &path));
    run("64", |command| _ = command.env("MILLPOND_CONFIG", &path).env("MILLPOND_LIMIT", "64MiB"));
    run("cannot be read", |command| _ = command.env("MILLPOND_CONFIG", "/nonexistent"));
    run("it has more than 1 MiB", |command| _ = command.env("MILLPOND_CONFIG", "/dev/zero"));
    let path = file(folder.path(), "LIMIT=1GiB\n");
    run("line 1: 'LIMIT=1GiB'", |command| _ = command.env("MILLPOND_CONFIG", &path));
}

#[test]
fn processes_share_a_limit_that_was_set_before() {
    let folder = tempfile::tempdir().unwrap();
    let shared = |command: &mut Command| {
        command.env("MILLPOND_BUDGET_DIR", folder.path()).env("MILLPOND_BUDGET", "job-%g");
    };
    run("64", |command| {
        shared(command);
        command.env("MILLPOND_LIMIT", "64MiB");
    });
    let files = std::fs::read_dir(folder.path()).unwrap().map(|file| file.unwrap());
    let made: Vec<_> = files.filter(|file| file.path().is_file()).map(|file| file.file_name()).collect();
    assert!(made.len() == 1 && made[0].to_str().unwrap().starts_with("job-"), "{made:?}");
}
