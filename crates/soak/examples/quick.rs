//! scratch
use std::time::Duration;
use millpond::device::DeviceName;
#[global_allocator]
static A: millpond_soak::RefusingAllocator = millpond_soak::RefusingAllocator;
fn main() {
    let a: Vec<String> = std::env::args().collect();
    let options = millpond_soak::Options { device: DeviceName::SIM, operations: u64::MAX, time: Some(Duration::from_secs(a[1].parse().unwrap())), faults: a[2].parse().unwrap(), threads: a[3].parse().unwrap(), streams: 4, seed: a[4].parse().unwrap(), tenant: None, named_budget: None };
    let report = millpond_soak::soak(options, |_| true);
    println!("{}", serde_json::to_string(&report).unwrap());
}
