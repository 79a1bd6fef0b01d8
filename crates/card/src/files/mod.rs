//! What a predicted program writes goes to a folder of its own, and what it reads lies there or is the real file.
//!
//! The folder has two trees. `files` has what the program wrote, each at its own path. `gone` has a marker for each real file that
//! the program removed. A real file that is to be changed is copied first.
//!
//! | file | concern |
//! | --- | --- |
//! | `store` | the folder: the two trees, and whether there is anything in them |
//! | `path_lookup` | a path, step by step: what lies there for the program |
//! | `before_change` | what is done before a file is written, made, renamed or removed |
//! | `redirect` | how a function of the C library is answered |
//! | `open_calls`, `look_calls`, `change_calls`, `folder_calls`, `program_calls` | the functions, by what they are for |
//!
//! **One save.** `open` for writing comes to `open_calls`. `path_lookup` finds the real file, and `before_change` copies it to the
//! folder. The descriptor is the copy's. From then on `path_lookup` finds the copy.
//!
//! Functions of the system are called without the C library's, which are these.

#![allow(unused_unsafe, reason = "a macro's stands within another's")]

mod before_change;
mod path_lookup;
mod store;

#[cfg(not(test))]
mod change_calls;
#[cfg(not(test))]
mod folder_calls;
#[cfg(not(test))]
mod look_calls;
#[cfg(not(test))]
mod open_calls;
#[cfg(not(test))]
mod program_calls;
#[cfg(not(test))]
mod redirect;
