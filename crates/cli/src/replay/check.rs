//! Arguments that do not go together.

use millpond::device::{DeviceName, MemoryKind};
use millpond::{Context, HumanBytes};
use millpond_baselines::{Caching, MILLPOND, StreamOrdered, name_of};
use millpond_replay::replay::UNLIMITED;

use super::args::{ReplayArgs, is_about_cards, is_real};
use crate::error::{Error, Result};

/// Refuses them.
///
/// # Errors
/// [`Error::Usage`], which names the flags.
pub(super) fn refuse_what_does_not_go_together(args: &ReplayArgs) -> Result<()> {
    let names = args.allocators();
    let for_nobody = |whose: &[&str]| !names.iter().any(|name| whose.contains(name));
    if args.page_sizes.is_some() && for_nobody(&[MILLPOND]) {
        return Err(Error::Usage("--page-sizes is for millpond: add --allocator millpond".to_owned()));
    }
    if args.page_sizes.is_some() {
        let context = Context::new(DeviceName::SIM.open_with_capacity(Some(UNLIMITED))?);
        let built = args.choice().build(MILLPOND, &context);
        built.map_err(|error| Error::Usage(error.to_string().replacen("page_sizes", "--page-sizes", 1)))?;
    }
    if args.alloc_conf.is_some() && for_nobody(&[Caching::NAME, Caching::EXPANDABLE]) {
        return Err(Error::Usage(
            "--alloc-conf is for PyTorch's allocator: add --allocator caching or expandable".to_owned(),
        ));
    }
    if args.context.is_some() && is_real(args.device) {
        return Err(Error::Usage("--context is for --device sim; a real device has its own".to_owned()));
    }
    if (is_real(args.device) || args.capacity.is_some()) && !args.card.is_empty() {
        return Err(Error::Usage(
            "--card is for the table of cards, which is made on --device sim without --capacity".to_owned(),
        ));
    }
    if args.fail_if_oom && !args.card.is_empty() && names == [StreamOrdered::NAME] {
        return Err(Error::Usage(
            "--fail-if-oom --card: what stream-ordered needs is not known well enough; name another allocator".to_owned(),
        ));
    }
    if let Some(capacity) = args.capacity.filter(|capacity| *capacity <= args.context_beside()) {
        return Err(Error::Usage(format!(
            "--capacity {} leaves nothing beside the context's {}: name more, or a smaller --context",
            HumanBytes(capacity),
            HumanBytes(args.context_beside())
        )));
    }
    refuse_for_memory(args, &names)?;
    if args.offload.is_some() && !is_about_cards(args) {
        return Err(Error::Usage("--offload is for device memory on --device sim".to_owned()));
    }
    if args.cost_table.is_some() && is_real(args.device) {
        return Err(Error::Usage(
            "--cost-table is for --device sim; a real device has its own costs".to_owned(),
        ));
    }
    if args.verify && !is_real(args.device) {
        return Err(Error::Usage(
            "--verify needs real memory: add --device host or --device cuda".to_owned(),
        ));
    }
    if args.capacity.is_some() && args.device.is_gpu() {
        return Err(Error::Usage("--capacity is for --device sim or host; a GPU has what it has".to_owned()));
    }
    Ok(())
}

/// Another memory than the device's own is replayed at its costs. All that speaks of cards is not for it.
fn refuse_for_memory(args: &ReplayArgs, names: &[&str]) -> Result<()> {
    if args.memory == MemoryKind::Device {
        return Ok(());
    }
    let memory = name_of(args.memory);
    if args.device.is_gpu() {
        return Err(Error::Usage(format!("--memory {memory} is for --device sim or host")));
    }
    if names.is_empty() {
        let names = args.left_out().join(", ");
        return Err(Error::Usage(format!(
            "--memory {memory} does not carry {names}: name another allocator"
        )));
    }
    let for_device_memory = [
        ("--card", !args.card.is_empty()),
        ("--context", args.context.is_some()),
        ("--report", args.report.is_some()),
        ("--export-counters", args.export_counters.is_some()),
    ];
    match for_device_memory.into_iter().find(|(_, is_given)| *is_given) {
        Some((flag, _)) => {
            Err(Error::Usage(format!("{flag} is for device memory: leave --memory {memory} out")))
        }
        None => Ok(()),
    }
}
