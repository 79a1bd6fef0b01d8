//! `libmillpond_card.so`: what `millpond predict` preloads, so that PyTorch's CUDA build finds a card where there is none.
//!
//! It is CUDA's runtime and its libraries in which every call succeeds and none does anything. So a program allocates what it would
//! allocate on such a card, by PyTorch's own allocator, and computes nothing. All values are zeros.

// | file | concern |
// | --- | --- |
// | `card` | which card there is |
// | `memory` | addresses without memory behind them |
// | `stubs` | how functions answer whose arguments nobody looks at |
// | `runtime` | functions of CUDA's runtime |
// | `driver` | functions of CUDA's driver |
// | `libraries` | functions of cuBLAS and cuDNN |
// | `fft`, `solver`, `sparse` | functions of cuFFT, cuSOLVER and cuSPARSE, whose own libraries would look for a driver |
// | `fft_workspace` | how much memory a Fourier transform works in |
// | `workspaces` | workspaces that were not measured, told to the hook |
// | `files` | what the program writes, in a folder of its own |
//
// **One allocation.** PyTorch's allocator asks `cudaMalloc` in `runtime`, which takes addresses in `memory`. A kernel's launch
// does nothing, and a copy to the host writes zeros.

#![cfg(all(target_os = "linux", target_env = "gnu"))]
// They have the names of CUDA's own functions.
#![allow(non_snake_case, reason = "CUDA names its functions so")]
// A test has the real libraries' functions, and these are not its.
#![cfg_attr(test, allow(dead_code, reason = "nothing is exported there"))]

mod card;
#[cfg(not(test))]
mod driver;
#[cfg(not(test))]
mod fft;
mod fft_workspace;
mod files;
#[cfg(not(test))]
mod libraries;
mod memory;
#[cfg(not(test))]
mod runtime;
#[cfg(not(test))]
mod solver;
#[cfg(not(test))]
mod sparse;
#[cfg(not(test))]
mod stubs;
#[cfg(not(test))]
mod workspaces;
