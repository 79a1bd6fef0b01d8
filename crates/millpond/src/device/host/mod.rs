//! `device/host`
