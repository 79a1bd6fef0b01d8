//! One suite for every allocator, on the host device, where bytes are real, and on the simulated one.

#[path = "shared/cases.rs"]
mod cases;
#[path = "shared/rig.rs"]
mod rig;

macro_rules! suite {
    ($($module:ident: $name:literal on $machine:ident;)*) => {
        $(suite! { @cases $module $name $machine
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
    (@cases $module:ident $name:literal $machine:ident $($case:ident)*) => {
        mod $module {
            use crate::{cases, rig::{Machine, Rig}};
            $(#[test]
            fn $case() {
                cases::$case(Rig::new(Machine::$machine(), $name));
            })*
        }
    };
}

suite! {
    millpond_on_host: "millpond" on host;
    millpond_on_sim: "millpond" on sim;
    stream_ordered_on_host: "stream-ordered" on host;
    stream_ordered_on_sim: "stream-ordered" on sim;
    driver_on_host: "driver" on host;
    driver_on_sim: "driver" on sim;
    binned_on_host: "binned" on host;
    binned_on_sim: "binned" on sim;
    first_fit_on_host: "first-fit" on host;
    first_fit_on_sim: "first-fit" on sim;
    caching_on_host: "caching" on host;
    caching_on_sim: "caching" on sim;
    expandable_on_host: "expandable" on host;
    expandable_on_sim: "expandable" on sim;
    bfc_on_host: "bfc" on host;
    bfc_on_sim: "bfc" on sim;
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
    let device = SimDevice::new(SimOptions { memory_pools: false, ..SimOptions::default() }).unwrap();
    let context = millpond::Context::new(device);
    let error = millpond_baselines::by_name("stream-ordered", &context).unwrap_err().to_string();
    assert_eq!(error, "simulated does not support stream-ordered memory pools");
}
