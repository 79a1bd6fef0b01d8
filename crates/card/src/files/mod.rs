//! What a predicted program writes goes to a folder of its own, and what it reads lies there or is the real file.
//!
//! The folder has two trees. `files` has what the program wrote, each at its own path. `gone` has a marker for each real file that
//! the program removed. A real file that is to be changed is copied first.
//!
//! | file | concern |
//! | --- | --- |
//! | `store` | the folder: the two trees, and whether there is anything in them |
//! | `look` | a path, step by step: what lies there for the program |
//! | `change` | what is done before a file is written, made, renamed or removed |
//! | `call` | how a function of the C library is answered |
//! | `opening`, `looking`, `changing`, `folders`, `programs` | the functions, by what they are for |
//!
//! **One save.** `open` for writing comes to `opening`. `look` finds the real file, and `change` copies it to the folder. The
//! descriptor is the copy's. From then on `look` finds the copy.
//!
//! Functions of the system are called without the C library's, which are these.

#![allow(unused_unsafe, reason = "a macro's stands within another's")]

mod change;
mod look;
mod store;

#[cfg(not(test))]
mod call;
#[cfg(not(test))]
mod changing;
#[cfg(not(test))]
mod folders;
#[cfg(not(test))]
mod looking;
#[cfg(not(test))]
mod opening;
#[cfg(not(test))]
mod programs;
