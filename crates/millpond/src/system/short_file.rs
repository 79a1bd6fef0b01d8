//! Files that people name, and that are short. A device may be read without end.

use std::fs::File;
use std::io::{Error, ErrorKind, Read, Result};
use std::path::Path;

/// All of a file that has at most so many MiB.
///
/// # Errors
/// It cannot be read, or is longer.
pub fn read_short(path: &Path, most_mib: u64) -> Result<Vec<u8>> {
    let most = most_mib << 20;
    let mut bytes = Vec::new();
    if File::open(path)?.take(most + 1).read_to_end(&mut bytes)? as u64 > most {
        let what = format!("it has more than {most_mib} MiB: name another file");
        return Err(Error::new(ErrorKind::FileTooLarge, what));
    }
    Ok(bytes)
}

/// The same of a text.
///
/// # Errors
/// Also where it is no UTF-8.
pub fn read_short_text(path: &Path, most_mib: u64) -> Result<String> {
    String::from_utf8(read_short(path, most_mib)?)
        .map_err(|_| Error::new(ErrorKind::InvalidData, "it is no text"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_read_up_to_its_most_and_no_further() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        std::fs::write(&path, vec![b'a'; 1 << 20]).unwrap();
        assert_eq!(read_short_text(&path, 1).unwrap().len(), 1 << 20);
        std::fs::write(&path, vec![b'a'; (1 << 20) + 1]).unwrap();
        assert_eq!(
            read_short(&path, 1).unwrap_err().to_string(),
            "it has more than 1 MiB: name another file"
        );
        assert_eq!(read_short(Path::new("/dev/zero"), 1).unwrap_err().kind(), ErrorKind::FileTooLarge);
        std::fs::write(&path, b"\xff").unwrap();
        assert_eq!(read_short_text(&path, 1).unwrap_err().to_string(), "it is no text");
    }
}
