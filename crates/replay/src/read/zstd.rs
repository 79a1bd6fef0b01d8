//! zstd-compressed files: frames one behind the other, of which some are to be passed over.

use std::io::{self, BufRead, Read};

use ruzstd::decoding::errors::{FrameDecoderError, ReadFrameHeaderError};
use ruzstd::decoding::{BlockDecodingStrategy, FrameDecoder};

/// The largest window that a frame may ask for, in bytes: the limit of zstd's own command.
const LARGEST_WINDOW: u64 = 1 << 27;

/// Whether a file begins with a frame of zstd's, or with one to be passed over, as those of `pzstd` do.
pub(super) fn is_zstd(start: &[u8]) -> bool {
    matches!(start, [0x28, 0xb5, 0x2f, 0xfd, ..] | [0x50..=0x5f, 0x2a, 0x4d, 0x18, ..])
}

/// What the frames of `source` hold.
pub(super) struct Frames<R> {
    source: R,
    decoder: FrameDecoder,
    /// Whether the decoder is inside a frame.
    inside: bool,
}

impl<R: BufRead> Frames<R> {
    pub(super) fn new(source: R) -> Self {
        let mut decoder = FrameDecoder::new();
        decoder.set_max_window_size(LARGEST_WINDOW);
        Self { source, decoder, inside: false }
    }

    /// Goes to the next frame that holds something. Whether there is one.
    fn next_frame(&mut self) -> io::Result<bool> {
        while !self.source.fill_buf()?.is_empty() {
            match self.decoder.init(&mut self.source) {
                Ok(()) => return Ok(true),
                Err(FrameDecoderError::ReadFrameHeaderError(ReadFrameHeaderError::SkipFrame {
                    length,
                    ..
                })) => {
                    let length = u64::from(length);
                    if io::copy(&mut self.source.by_ref().take(length), &mut io::sink())? < length {
                        return Err(io::ErrorKind::UnexpectedEof.into());
                    }
                }
                Err(error) => return Err(self.reason(error)),
            }
        }
        Ok(false)
    }

    /// Decompresses until there is something to hand out, or the frame is over.
    fn decompress(&mut self) -> io::Result<()> {
        while self.decoder.can_collect() == 0 && !self.decoder.is_finished() {
            if let Err(error) =
                self.decoder.decode_blocks(&mut self.source, BlockDecodingStrategy::UptoBlocks(1))
            {
                return Err(self.reason(error));
            }
        }
        Ok(())
    }

    fn verify(&self) -> io::Result<()> {
        match (self.decoder.get_checksum_from_data(), self.decoder.get_calculated_checksum()) {
            (Some(written), Some(found)) if written != found => Err(io::Error::new(
                io::ErrorKind::InvalidData,
                "its zstd checksum does not match its contents; the file is damaged",
            )),
            _ => Ok(()),
        }
    }

    /// The decoder's error, or that the file is cut, which the decoder says in several ways.
    fn reason(&mut self, error: FrameDecoderError) -> io::Error {
        match self.source.fill_buf() {
            Ok([]) => io::ErrorKind::UnexpectedEof.into(),
            Ok(_) if matches!(error, FrameDecoderError::WindowSizeTooBig { .. }) => {
                io::Error::new(io::ErrorKind::InvalidData, error)
            }
            Ok(_) => io::Error::new(
                io::ErrorKind::InvalidData,
                "what zstd compressed in it is damaged; copy it again",
            ),
            Err(reading) => reading,
        }
    }
}

impl<R: BufRead> Read for Frames<R> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        loop {
            if !self.inside && !self.next_frame()? {
                return Ok(0);
            }
            self.inside = true;
            self.decompress()?;
            if self.decoder.can_collect() > 0 {
                return self.decoder.read(out);
            }
            self.verify()?;
            self.inside = false;
        }
    }
}
