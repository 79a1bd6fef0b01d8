//! `millpond budget` shows who shares a budget, and changes its limit.

mod shared;

use millpond::device::sim::{SimDevice, SimOptions};
use millpond::{Budget, Context, Pool};
use serde_json::Value;

use shared::{keys, millpond, stdout};

#[test]
fn the_processes_of_a_budget_are_shown_and_its_limit_is_changed() {
    let name = format!("command-{}", std::process::id());
    let budget = Budget::named(&name, 64 << 20).unwrap();
    budget.set_floor(8 << 20).unwrap();
    let context = Context::new(SimDevice::new(SimOptions::default()).unwrap());
    let (pool, stream) =
        (Pool::builder(&context).budget(&budget).build().unwrap(), context.create_stream().unwrap());
    pool.alloc(40 << 20, &stream).unwrap();
    let text = stdout(&millpond(&["budget", &name]));
    assert!(text.starts_with(&format!("budget {name}: 40.00 MiB of 64.00 MiB held\n")), "{text}");
    let row = text.lines().last().unwrap();
    assert!(row.starts_with(&std::process::id().to_string()), "{text}");
    assert!(row.contains("40.00 MiB") && row.contains("8.00 MiB") && row.ends_with(" -"), "{text}");
    let json: Value =
        serde_json::from_str(&stdout(&millpond(&["budget", &name, "--limit", "1GiB", "--json"]))).unwrap();
    assert_eq!(keys(&json), ["held", "limit", "name", "processes"]);
    assert_eq!((json["limit"].as_u64(), json["held"].as_u64()), (Some(1 << 30), Some(40 << 20)));
    assert_eq!(json["processes"].as_array().unwrap().len(), 1);
    assert_eq!(budget.limit(), 1 << 30);
    std::fs::remove_file(budget.path().unwrap()).unwrap();
}
