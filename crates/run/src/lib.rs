//! `libmillpond_run.so`: what `millpond run` preloads into a program. It is the entry points (`millpond-entry-points`), and no more.

#[cfg(all(target_os = "linux", target_env = "gnu"))]
use millpond_entry_points as _;
