//! What the program's processes are handed: files that have no name, and lie in no folder. They find them by this process's number,
//! and nobody else's processes do. They are gone when this process is, however it ends.

use std::ffi::OsString;
use std::fs::File;
use std::io::{Read, Seek, Write};
use std::os::fd::AsRawFd;
use std::path::PathBuf;

use rustix::fs::{MemfdFlags, memfd_create};

use crate::error::{Error, Result};

/// A file in memory.
#[derive(Debug)]
pub(super) struct Handed(File);

impl Handed {
    pub(super) fn new(name: &'static str, contents: &[u8]) -> Result<Self> {
        let failed = |source| Error::Io { path: name.into(), action: "make it in memory", source };
        let mut file =
            File::from(memfd_create(name, MemfdFlags::CLOEXEC).map_err(|error| failed(error.into()))?);
        file.write_all(contents).map_err(failed)?;
        Ok(Self(file))
    }

    /// Where processes of this user find it.
    pub(super) fn path(&self) -> OsString {
        format!("/proc/{}/fd/{}", std::process::id(), self.0.as_raw_fd()).into()
    }

    /// What is in it by now.
    pub(super) fn read(&self) -> Result<Vec<u8>> {
        let mut bytes = Vec::new();
        let mut file = &self.0;
        let read = file.rewind().and_then(|()| file.read_to_end(&mut bytes));
        let failed = |source| Error::Io { path: PathBuf::from(self.path()), action: "read it", source };
        read.map(|_| bytes).map_err(failed)
    }
}

/// Files as a zip archive, which Python imports from. Nothing is compressed (PKWARE's APPNOTE, sections 4.3.7, 4.3.12 and 4.3.16).
pub(super) fn archive(files: &[(&str, &str)]) -> Vec<u8> {
    let (mut all, mut directory) = (Vec::new(), Vec::new());
    for (name, text) in files {
        let offset = all.len() as u32;
        let mut entry = Vec::new();
        // The version that is needed, no flags, stored, the first of January 1980.
        [20u16, 0, 0, 0, 0x21].iter().for_each(|number| entry.extend(number.to_le_bytes()));
        [checksum(text.as_bytes()), text.len() as u32, text.len() as u32]
            .iter()
            .for_each(|number| entry.extend(number.to_le_bytes()));
        [name.len() as u16, 0].iter().for_each(|number| entry.extend(number.to_le_bytes()));
        all.extend([&b"PK\x03\x04"[..], &entry, name.as_bytes(), text.as_bytes()].concat());
        // No comment, the first disk, no attributes.
        directory.extend(
            [&b"PK\x01\x02\x14\x00"[..], &entry, &[0; 10], &offset.to_le_bytes(), name.as_bytes()].concat(),
        );
    }
    let count = (files.len() as u16).to_le_bytes();
    let (bytes, start) = ((directory.len() as u32).to_le_bytes(), (all.len() as u32).to_le_bytes());
    all.extend(directory);
    all.extend([&b"PK\x05\x06\0\0\0\0"[..], &count, &count, &bytes, &start, &[0; 2]].concat());
    all
}

/// CRC-32, bit by bit: the files are short.
fn checksum(bytes: &[u8]) -> u32 {
    let with_bit = |sum: u32, _| if sum & 1 == 1 { sum >> 1 ^ 0xedb8_8320 } else { sum >> 1 };
    !bytes.iter().fold(u32::MAX, |sum, byte| (0..8).fold(sum ^ u32::from(*byte), with_bit))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_checksum_is_that_of_zip() {
        assert_eq!(checksum(b"123456789"), 0xcbf4_3926);
    }

    #[test]
    fn what_processes_write_is_read() {
        let handed = Handed::new("test", b"one ").unwrap();
        std::fs::OpenOptions::new().append(true).open(handed.path()).unwrap().write_all(b"two").unwrap();
        assert_eq!(handed.read().unwrap(), b"one two");
    }
}
