//! The `millpond` command as a program; everything is in the library beside it.

use std::process::ExitCode;

/// For `millpond soak`, in which the host refuses memory.
#[global_allocator]
static ALLOCATOR: millpond_soak::RefusingAllocator = millpond_soak::RefusingAllocator;

fn main() -> ExitCode {
    millpond_cli::run(std::env::args_os()).into()
}
