//! What goes over a connection: frames of a header and a body.
//!
//! ```text
//! u8 kind · 3 × 0 · u32 to · u32 from · u32 channel · u64 bytes · body           all little-endian
//! ```

use std::io::{self, Read};

/// Bytes of a header.
pub(super) const HEADER: usize = 24;
/// Bytes of a reason to give up that are sent.
pub(super) const MOST_WORDS: usize = 4096;

/// What a frame is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// A message of a rank, or of a process.
    Message,
    /// A part of a collective; the channel is the group's number.
    Part,
    /// `from` has given up; the body says why.
    Failed,
    /// The process has done its work.
    Bye,
    /// The process is there.
    Beat,
}

const KINDS: [Kind; 5] = [Kind::Message, Kind::Part, Kind::Failed, Kind::Bye, Kind::Beat];

/// What stands before a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Header {
    pub kind: Kind,
    /// Whom it is for.
    pub to: u32,
    /// Who sends it.
    pub from: u32,
    pub channel: u32,
    /// The body's bytes.
    pub bytes: u64,
}

impl Header {
    /// One without body, of the process alone.
    pub fn sign(kind: Kind) -> Header {
        Header { kind, to: 0, from: 0, channel: 0, bytes: 0 }
    }

    /// In an inbox: messages and parts do not mix.
    pub fn number(&self) -> u64 {
        lane(self.kind, self.channel)
    }

    pub fn encode(&self) -> [u8; HEADER] {
        let mut out = [0; HEADER];
        out[0] = self.kind as u8;
        out[4..8].copy_from_slice(&self.to.to_le_bytes());
        out[8..12].copy_from_slice(&self.from.to_le_bytes());
        out[12..16].copy_from_slice(&self.channel.to_le_bytes());
        out[16..].copy_from_slice(&self.bytes.to_le_bytes());
        out
    }

    /// `None` when it is none.
    pub fn decode(bytes: &[u8; HEADER]) -> Option<Header> {
        let word = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"));
        if bytes[1..4] != [0; 3] {
            return None;
        }
        let kind = *KINDS.get(usize::from(bytes[0]))?;
        let length = u64::from_le_bytes(bytes[16..].try_into().expect("eight bytes"));
        Some(Header { kind, to: word(4), from: word(8), channel: word(12), bytes: length })
    }

    pub fn read(from: &mut impl Read) -> io::Result<Header> {
        let mut bytes = [0; HEADER];
        from.read_exact(&mut bytes)?;
        Header::decode(&bytes).ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "what it sent is no frame"))
    }
}

/// The number of a channel of messages or parts.
pub(super) fn lane(kind: Kind, channel: u32) -> u64 {
    (kind as u64) << 32 | u64::from(channel)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers() {
        for kind in KINDS {
            let header = Header { kind, to: 1, from: 0x0203_0405, channel: u32::MAX, bytes: 1 << 40 };
            assert_eq!(Header::decode(&header.encode()), Some(header));
        }
        let mut bytes = Header::sign(Kind::Bye).encode();
        bytes[2] = 1;
        assert_eq!(Header::decode(&bytes), None);
        assert_eq!(Header::decode(&[9; HEADER]), None);
    }
}
