//! `device/cuda`
