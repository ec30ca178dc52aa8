//! Why a request is not granted.

use rustix::io::Errno;

use crate::request::{BadName, Invalid};

/// An error as netmap gives it to programs, and the reason in a line.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{why}")]
pub struct Refusal {
    /// What the program sees.
    pub errno: Errno,
    /// Cause and remedy.
    pub why: String,
}

impl Refusal {
    /// A refusal.
    pub fn new(errno: Errno, why: impl ToString) -> Self {
        Self { errno, why: why.to_string() }
    }
}

impl From<Invalid> for Refusal {
    fn from(invalid: Invalid) -> Self {
        Self::new(Errno::INVAL, invalid)
    }
}

impl From<BadName> for Refusal {
    fn from(bad: BadName) -> Self {
        Self::new(Errno::NXIO, bad)
    }
}

impl From<crate::Error> for Refusal {
    fn from(error: crate::Error) -> Self {
        Self::new(Errno::NOMEM, error)
    }
}

impl From<ringpass_memory::Error> for Refusal {
    fn from(error: ringpass_memory::Error) -> Self {
        Self::new(Errno::NOMEM, error)
    }
}

impl From<Box<dyn std::error::Error + Send + Sync>> for Refusal {
    fn from(error: Box<dyn std::error::Error + Send + Sync>) -> Self {
        Self::new(Errno::NOMEM, error)
    }
}
