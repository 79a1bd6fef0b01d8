//! `device/sim`
