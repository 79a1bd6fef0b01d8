//! gzip-compressed files: members one behind the other, and perhaps zeros behind the last, as what writes whole blocks leaves.

use std::io::{self, BufRead, Read};

use flate2::bufread::GzDecoder;

const MAGIC: [u8; 2] = [0x1f, 0x8b];

/// Whether a file begins with a member.
pub(super) fn is_gzip(start: &[u8]) -> bool {
    start.starts_with(&MAGIC)
}

/// What the members of `source` hold.
pub(super) struct Members<R> {
    /// `None` behind the last.
    member: Option<GzDecoder<R>>,
}

impl<R: BufRead> Members<R> {
    pub(super) fn new(source: R) -> Self {
        Self { member: Some(GzDecoder::new(source)) }
    }
}

impl<R: BufRead> Read for Members<R> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        while let Some(member) = &mut self.member {
            let read = member.read(out).map_err(reason)?;
            if read > 0 || out.is_empty() {
                return Ok(read);
            }
            let mut source = self.member.take().expect("it was there").into_inner();
            if is_there_another(&mut source)? {
                self.member = Some(GzDecoder::new(source));
            }
        }
        Ok(0)
    }
}

/// Whether another member follows, and not only zeros.
fn is_there_another(source: &mut impl BufRead) -> io::Result<bool> {
    loop {
        let rest = source.fill_buf()?;
        match rest.first() {
            None => return Ok(false),
            Some(0) => {
                let zeros = rest.iter().take_while(|byte| **byte == 0).count();
                source.consume(zeros);
            }
            // The second byte may be in what is read next: a member without it is told as one.
            Some(first) if *first == MAGIC[0] => return Ok(true),
            Some(_) => {
                let what =
                    "behind what gzip compressed is something else; copy it again, or remove what follows";
                return Err(io::Error::new(io::ErrorKind::InvalidData, what));
            }
        }
    }
}

/// The decoder's error, in words that say what to do.
fn reason(error: io::Error) -> io::Error {
    match error.kind() {
        io::ErrorKind::InvalidInput | io::ErrorKind::InvalidData => {
            let what = format!("what gzip compressed in it is damaged ({error}); copy it again");
            io::Error::new(io::ErrorKind::InvalidData, what)
        }
        _ => error,
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use flate2::Compression;
    use flate2::write::GzEncoder;

    use super::*;

    fn member(contents: &[u8]) -> Vec<u8> {
        let mut out = GzEncoder::new(Vec::new(), Compression::fast());
        out.write_all(contents).unwrap();
        out.finish().unwrap()
    }

    fn read(file: &[u8]) -> io::Result<Vec<u8>> {
        let mut all = Vec::new();
        // So little at once that members end at any place of it.
        Members::new(io::BufReader::with_capacity(5, file)).read_to_end(&mut all).map(|_| all)
    }

    #[test]
    fn members_are_read_as_one_with_zeros_behind_them() {
        let two = [member(b"one, "), member(b""), member(b"two")].concat();
        assert_eq!(read(&two).unwrap(), b"one, two");
        for zeros in [1, 2, 512] {
            let padded = [two.clone(), vec![0; zeros]].concat();
            assert_eq!(read(&padded).unwrap(), b"one, two", "{zeros}");
        }
    }

    #[test]
    fn what_is_damaged_or_cut_is_told() {
        let whole = member(&[7; 10_000]);
        for length in 2..whole.len() {
            let error = read(&whole[..length]).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof, "{length}: {error}");
        }
        let mut damaged = whole.clone();
        let sum = damaged.len() - 8;
        damaged[sum] ^= 1;
        let error = read(&damaged).unwrap_err().to_string();
        assert!(
            error.starts_with("what gzip compressed in it is damaged (") && error.contains("checksum"),
            "{error}"
        );
        let error = read(&[&whole[..], b"text"].concat()).unwrap_err().to_string();
        assert!(error.starts_with("behind what gzip compressed is something else"), "{error}");
    }
}
