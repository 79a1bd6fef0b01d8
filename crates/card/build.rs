//! PyTorch's libraries ask for libcuda.so.1. Under that name, the preloaded library is found where no driver is installed.

fn main() {
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libcuda.so.1");
    println!("cargo:rerun-if-changed=build.rs");
}
