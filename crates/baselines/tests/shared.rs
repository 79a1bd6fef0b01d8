//! One suite for every allocator, on the host device, where bytes are real, and on the simulated one.

#[path = "shared/cases.rs"]
mod cases;
#[path = "shared/rig.rs"]
mod rig;

macro_rules! suite {
    ($($module:ident: $machine:ident;)*) => {
        $(suite! { @cases $module $machine
            live_blocks_never_overlap_and_the_counters_equal_a_recount
            freed_memory_is_used_again
            what_a_busy_stream_freed_is_not_handed_to_another_unordered
            a_free_waits_for_recorded_uses
            running_out_of_memory_is_an_error_and_recovers_after_frees
            misuse_is_a_typed_error_and_changes_nothing
            a_size_that_no_device_has_is_an_error
            zero_bytes_are_the_null_pointer
            threads_with_streams_of_their_own_lose_nothing
            what_is_free_goes_back_on_trim_and_at_the_end
            device_calls_are_counted
        })*
    };
    (@cases $module:ident $machine:ident $($case:ident)*) => {
        mod $module {
            use millpond_baselines::{NAMES, OF_RMM};

            use super::{cases, rig::{Machine, Rig}};

            $(#[test]
            fn $case() {
                for name in NAMES.into_iter().chain(OF_RMM.map(|listed| listed.name)) {
                    println!("{name}");
                    cases::$case(Rig::new(Machine::$machine(), name));
                }
            })*
        }
    };
}

suite! {
    on_host: host;
    on_sim: sim;
}

#[test]
fn an_unknown_name_is_answered_with_the_known_ones() {
    let context = millpond::Context::host().unwrap();
    let error = millpond_baselines::by_name("jemalloc", &context).unwrap_err().to_string();
    assert!(error.contains("'jemalloc'"), "{error}");
    for name in millpond_baselines::NAMES {
        assert!(error.contains(name), "{error}");
    }
}

#[test]
fn a_device_without_memory_pools_has_no_stream_ordered_allocator() {
    use millpond::device::sim::{SimDevice, SimOptions};
    let device = SimDevice::new(SimOptions::default().memory_pools(false)).unwrap();
    let context = millpond::Context::new(device);
    let error = millpond_baselines::by_name("stream-ordered", &context).unwrap_err().to_string();
    assert_eq!(error, "simulated does not support stream-ordered memory pools");
}
