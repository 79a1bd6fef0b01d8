//! `ranks/`: one training by many processes, one a GPU.
//!
//! It uses the tensors and the host device. What GPUs do together is in `cuda/`, behind [`Collective`].
//!
//! | file | concern |
//! | --- | --- |
//! | `environment` | which rank this process is: what launchers say |
//! | `secret` | how ranks know each other from strangers |
//! | `rendezvous` | how the ranks meet, over TCP |
//! | `control` | what they say to each other beside the data; how they learn that one is gone |
//! | `collective` | what they do together with memory: the trait |
//! | `tcp` | that on the host device |
//! | `world` | this process among the ranks: [`Ranks`], and [`Team`] with a collective |
//!
//! **One step.** Each rank computes the gradients of its part of the batch. When a bucket of them is complete, the team's
//! stream waits for it, and sums it over the ranks. The model's stream waits for that, and updates the weights. All ranks
//! do the same with the same sums, so their weights stay equal.
//!
//! **The end.** A rank that is done says goodbye. One that fails says why. One that dies says nothing: its control
//! connection ends. Then the others end what waits for it, and the first operation that notices fails with
//! [`Error::RankLost`](crate::Error::RankLost).

mod collective;
mod control;
mod environment;
mod rendezvous;
mod secret;
mod tcp;
mod world;

pub use collective::Collective;
pub use control::{LastResort, Loss};
pub use environment::{ADDRESS, PORT, Place, SECRET, TIMEOUT};
pub use secret::Secret;
pub(crate) use tcp::Tcp;
pub use world::{Ranks, Shard, Team};
