//! One suite that every device passes: the contract of [`millpond::device::Device`], sentence by sentence.
//!
//! To add a device, write a [`Harness`](harness::Harness) for it and one line of `conformance!` below.
//!
//! Rules for a test, so that it holds on a GPU too: nothing larger than a few KiB is copied from the host to
//! a held stream, nothing is copied to the host from a held stream (both may wait there), and free memory is
//! compared with `>=` unless the device [keeps exact records](harness::Harness::EXACT).

mod copies;
#[cfg(feature = "cuda")]
mod cuda;
mod events;
mod harness;
mod managed;
mod misuse;
mod pages;
mod peers;
mod pinned;
mod programs;
mod segments;
mod streams;

use harness::{CapturingHarness, HostHarness, MemoryHarness, SimHarness};

/// One test of one device. The attributes are those of the device.
macro_rules! one_test {
    ({ $($attribute:tt)* } $harness:expr, $group:ident::$test:ident) => {
        #[test]
        $($attribute)*
        fn $test() {
            crate::conformance::$group::$test(&$harness);
        }
    };
}

macro_rules! group_tests {
    ($attributes:tt $harness:expr, $group:ident: $first:ident $($rest:ident)*) => {
        one_test!($attributes $harness, $group::$first);
        group_tests!($attributes $harness, $group: $($rest)*);
    };
    ($attributes:tt $harness:expr, $group:ident:) => {};
}

macro_rules! all_tests {
    ($attributes:tt $harness:expr, $($group:ident: $($test:ident)*;)*) => {
        $(mod $group {
            #[allow(unused_imports, reason = "the harness may be a path")]
            use super::*;
            group_tests!($attributes $harness, $group: $($test)*);
        })*
    };
}

/// The whole suite for one device, as a module. Attributes before the name go to every test.
macro_rules! conformance {
    ($(#[$attribute:meta])* $name:ident: $harness:expr) => {
        mod $name {
            #[allow(unused_imports, reason = "the harness may be a path")]
            use super::*;
            all_tests! {
                { $(#[$attribute])* } $harness,
                pages:
                    a_reserved_range_is_aligned_and_can_be_given_back
                    reserved_ranges_do_not_overlap
                    a_page_mapped_twice_shows_the_same_bytes
                    a_page_can_be_remapped_under_pending_work
                    pages_permuted_in_stream_order_lose_no_byte
                    a_released_page_stays_until_its_last_mapping_goes
                    pages_of_several_sizes_lie_side_by_side
                    a_range_can_be_mapped_again_after_an_unmap
                    pages_and_free_memory_add_up
                    running_out_of_memory_changes_nothing
                    without_virtual_memory_pages_are_unsupported;
                streams:
                    work_on_one_stream_runs_in_order
                    streams_run_at_the_same_time
                    a_stream_is_idle_when_its_work_is_complete
                    identities_are_never_given_again
                    a_destroyed_streams_work_still_runs
                    the_device_waits_for_destroyed_streams_too
                    default_streams_have_identities_of_their_own
                    every_thread_has_a_default_stream_of_its_own
                    the_default_streams_take_work
                    synchronize_waits_for_every_stream;
                events:
                    an_event_never_recorded_is_complete
                    an_event_is_complete_when_the_work_before_it_is
                    later_work_does_not_delay_an_event
                    recording_again_replaces_what_an_event_stands_for
                    a_wait_is_for_what_the_event_stood_for
                    a_complete_event_delays_nobody
                    an_event_destroyed_while_pending_still_holds_back_who_waits
                    a_wait_follows_through_a_chain_of_streams
                    a_stream_may_wait_for_its_own_event
                    synchronizing_an_event_waits_for_its_work_only;
                copies:
                    what_is_copied_in_comes_back_out
                    the_source_of_a_copy_may_change_at_once
                    memsets_and_copies_run_in_stream_order
                    a_byte_that_differs_is_never_missed
                    a_copy_waits_for_an_event_of_another_stream
                    no_bytes_are_no_work;
                programs:
                    a_program_ordered_by_events_ends_as_in_order;
                segments:
                    segments_are_aligned_and_hold_their_bytes
                    segments_and_free_memory_add_up
                    a_segment_larger_than_the_device_is_out_of_memory
                    freeing_a_segment_waits_for_all_work
                    async_blocks_hold_their_bytes
                    a_block_freed_on_a_stream_is_reused_there
                    a_pending_block_is_not_given_to_another_stream
                    the_drivers_pool_keeps_what_it_has
                    too_large_an_async_block_is_out_of_memory
                    without_a_pool_of_its_own_the_driver_says_so;
                pinned:
                    its_properties_say_what_it_is
                    its_streams_and_events_are_the_devices
                    bytes_go_from_one_memory_to_the_other_and_back
                    the_cpu_reads_and_writes_its_bytes_in_place
                    memory_of_the_two_never_overlaps;
                managed:
                    its_properties_say_what_it_is
                    bytes_stay_whatever_moves
                    a_prefetch_comes_in_stream_order
                    what_was_said_is_answered
                    advice_holds_until_it_is_taken_back
                    new_memory_has_no_advice
                    other_memory_does_not_move;
                peers:
                    devices_of_a_group_know_each_other
                    a_copy_from_the_other_device_carries_its_bytes
                    a_stream_waits_for_an_event_of_the_other_device
                    a_page_is_used_by_the_other_device_once_it_has_access
                    a_page_that_moved_is_used_by_the_other_device_once_it_has_access
                    a_segment_is_used_by_the_other_device_once_it_has_access;
                misuse:
                    sizes_that_are_no_multiple_of_the_granularity_are_refused
                    a_range_is_given_back_only_whole_and_empty
                    pages_are_mapped_whole_and_aligned_in_empty_reserved_space
                    a_released_page_is_no_page
                    access_is_set_on_whole_mappings_only
                    a_mapping_is_removed_only_whole_and_once
                    memory_without_access_is_not_touched
                    segments_and_async_blocks_are_freed_once_as_made
                    destroyed_streams_and_events_are_refused
                    default_streams_cannot_be_destroyed
                    overlapping_copies_are_refused;
            }
        }
    };
}

conformance!(host: HostHarness::new(true));
conformance!(capturing: CapturingHarness::new());
conformance!(host_without_virtual_memory: HostHarness::new(false));
conformance!(sim: SimHarness::new(true));
conformance!(sim_without_virtual_memory: SimHarness::new(false));
conformance!(host_pinned: MemoryHarness::pinned(HostHarness::new(true)));
conformance!(host_pinned_without_virtual_memory: MemoryHarness::pinned(HostHarness::new(false)));
conformance!(capturing_pinned: MemoryHarness::pinned(CapturingHarness::new()));
conformance!(sim_pinned: MemoryHarness::pinned(SimHarness::new(true)));
conformance!(sim_pinned_without_virtual_memory: MemoryHarness::pinned(SimHarness::new(false)));
conformance!(host_managed: MemoryHarness::managed(HostHarness::new(true)));
conformance!(capturing_managed: MemoryHarness::managed(CapturingHarness::new()));
conformance!(sim_managed: MemoryHarness::managed(SimHarness::new(true)));

#[cfg(feature = "cuda")]
conformance!(#[ignore = "needs a CUDA GPU"] gpu: cuda::CudaHarness::new(true));
#[cfg(feature = "cuda")]
conformance!(#[ignore = "needs a CUDA GPU"] gpu_without_virtual_memory: cuda::CudaHarness::new(false));
#[cfg(feature = "cuda")]
conformance!(#[ignore = "needs a CUDA GPU"] gpu_pinned: MemoryHarness::pinned(cuda::CudaHarness::new(true)));
#[cfg(feature = "cuda")]
conformance!(
    #[ignore = "needs a CUDA GPU"]
    gpu_pinned_without_virtual_memory: MemoryHarness::pinned(cuda::CudaHarness::new(false))
);
#[cfg(feature = "cuda")]
conformance!(#[ignore = "needs a CUDA GPU"] gpu_managed: MemoryHarness::managed(cuda::CudaHarness::new(true)));
