//! Copy patterns between host and guest, from the paper's Table III.

use serde::{Serialize, Serializer};

/// Transfer of frames in one direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transfer {
    Copy,
    /// The copy is omitted: the other side gets lengths, and the old contents of its buffers.
    FakeZeroCopy,
    /// The card writes into the guest's buffers (Rx queue mapping).
    ZeroCopy,
}

impl Transfer {
    /// Returns the name in tables and JSON.
    pub fn name(self) -> &'static str {
        match self {
            Self::Copy => "copy",
            Self::FakeZeroCopy => "fake zero copy",
            Self::ZeroCopy => "zero copy",
        }
    }
}

/// A row of Table III.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pattern {
    pub name: char,
    /// Transfer to the guest.
    pub rx: Transfer,
    /// Transfer from the guest.
    pub tx: Transfer,
    /// Rx ring sizes that the paper found best for the pattern: physical, virtual.
    pub rings: (usize, usize),
}

/// All patterns of Table III.
pub const PATTERNS: [Pattern; 6] = [
    Pattern { name: 'a', rx: Transfer::Copy, tx: Transfer::Copy, rings: (512, 4096) },
    Pattern { name: 'b', rx: Transfer::Copy, tx: Transfer::FakeZeroCopy, rings: (512, 4096) },
    Pattern { name: 'c', rx: Transfer::FakeZeroCopy, tx: Transfer::Copy, rings: (512, 4096) },
    Pattern { name: 'd', rx: Transfer::FakeZeroCopy, tx: Transfer::FakeZeroCopy, rings: (512, 4096) },
    Pattern { name: 'e', rx: Transfer::ZeroCopy, tx: Transfer::Copy, rings: (1024, 2048) },
    Pattern { name: 'f', rx: Transfer::ZeroCopy, tx: Transfer::FakeZeroCopy, rings: (128, 1024) },
];

impl Pattern {
    /// Pattern that the others are compared with: everything is copied.
    pub const BASE: char = 'a';

    /// Returns whether frames arrive with their contents, that is, no copy is merely omitted.
    pub fn is_real(self) -> bool {
        [self.rx, self.tx].iter().all(|&transfer| transfer != Transfer::FakeZeroCopy)
    }

    /// Returns whether the card writes into the guest's buffers.
    pub fn mapped(self) -> bool {
        self.rx == Transfer::ZeroCopy
    }
}

impl Serialize for Transfer {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}

impl std::str::FromStr for Pattern {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let known = PATTERNS.into_iter().find(|pattern| text.len() == 1 && text.starts_with(pattern.name));
        let names: Vec<String> = PATTERNS.iter().map(|pattern| pattern.name.to_string()).collect();
        known.ok_or_else(|| format!("write one of {}", names.join(", ")))
    }
}
