//! scratch
use millpond::device::DeviceName;
use std::time::Duration;
#[global_allocator]
static A: millpond_soak::RefusingAllocator = millpond_soak::RefusingAllocator;
fn main() {
    let a: Vec<String> = std::env::args().collect();
    if a[1] == "tenant" {
        millpond_soak::tenant(&a[2], a[3].parse().unwrap()).unwrap();
        return;
    }
    let tenant = millpond_soak::Tenant {
        budget: format!("soak-{}", std::process::id()),
        program: std::env::current_exe().unwrap(),
        arguments: vec!["tenant".to_owned()],
    };
    let options = millpond_soak::Options {
        device: DeviceName::SIM,
        operations: u64::MAX,
        time: Some(Duration::from_secs(a[1].parse().unwrap())),
        faults: a[2].parse().unwrap(),
        threads: a[3].parse().unwrap(),
        streams: 4,
        seed: a[4].parse().unwrap(),
        tenant: Some(tenant),
    };
    let report = millpond_soak::soak(options, |_| true);
    println!("{}", serde_json::to_string(&report).unwrap());
}
