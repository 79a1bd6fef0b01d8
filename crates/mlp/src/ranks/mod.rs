//! `ranks/`: one training by many processes, one a GPU.
//!
//! It uses the tensors and the host device. What GPUs do together is in `cuda/`, behind [`Collective`].
//!
//! | file | concern |
//! | --- | --- |
//! | `environment` | which rank this process is: what launchers say |
//! | `meeting` | how the ranks meet, over TCP, and know each other from strangers; their messages |
//! | `world` | this process among the ranks, [`Ranks`]: what they tell each other; how they learn that one is gone |
//! | `collective` | what they do together with memory: the trait |
//! | `tcp` | that on the host device, over the same connections |
//! | `team` | the ranks with a collective: [`Team`] |
//!
//! **One step.** Each rank computes the gradients of its part of the batch. When a bucket of them is complete, the team's
//! stream waits for it, and sums it over the ranks. The model's stream waits for that, and updates the weights. All ranks
//! do the same with the same sums, so their weights stay equal.
//!
//! **The end.** A rank that is done says goodbye. One that fails says why. One that dies says nothing: its
//! connection ends. Then the others end what waits for it, and the first operation that notices fails with
//! [`Error::RankLost`](crate::Error::RankLost).

mod collective;
mod environment;
mod meeting;
mod tcp;
mod team;
mod world;

pub use collective::Collective;
pub use environment::{Place, Secret};
pub(crate) use tcp::Tcp;
pub use team::{Shard, Team};
pub use world::{LastResort, Loss, Ranks};
