//! The MLP trainer.
