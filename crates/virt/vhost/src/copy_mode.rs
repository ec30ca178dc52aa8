//! Copy modes of a port, for measurements.

/// Treatment of the bytes of frames. Copying is skipped only for measurements: the receiver then sees the previous
/// content of its buffers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CopyMode {
    /// Frames are copied.
    #[default]
    Copied,
    /// Only lengths and headers are passed on.
    Skipped,
}

impl CopyMode {
    /// Returns a mask that is applied to the lengths of copies: all ones to copy, 0 to skip the copy.
    pub(crate) fn mask(self) -> usize {
        match self {
            Self::Copied => usize::MAX,
            Self::Skipped => 0,
        }
    }
}

/// Copy mode of each direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CopyModes {
    /// Frames that the guest sends.
    pub from_guest: CopyMode,
    /// Frames that the guest receives.
    pub to_guest: CopyMode,
}
