//! Why a request is refused.

use ringpass_netmap::request::InvalidRequest;
use rustix::io::Errno;

/// An error number as netmap defines it, and the reason in a line.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{why}")]
pub struct RequestError {
    /// Error number that the program gets.
    pub errno: Errno,
    /// Cause and remedy.
    pub why: String,
}

impl RequestError {
    /// Creates an error.
    pub fn new(errno: Errno, why: impl ToString) -> Self {
        Self { errno, why: why.to_string() }
    }
}

impl From<RequestError> for ringpass_port::Error {
    fn from(error: RequestError) -> Self {
        Self::refused(error.errno, error.why)
    }
}

impl From<InvalidRequest> for RequestError {
    fn from(invalid: InvalidRequest) -> Self {
        let errno = match invalid {
            InvalidRequest::NoName => Errno::NXIO,
            InvalidRequest::Vale(_) => Errno::NOMEM,
            _ => Errno::INVAL,
        };
        Self::new(errno, invalid)
    }
}

impl From<ringpass_netmap::Error> for RequestError {
    fn from(error: ringpass_netmap::Error) -> Self {
        Self::new(Errno::NOMEM, error)
    }
}

impl From<ringpass_memory::Error> for RequestError {
    fn from(error: ringpass_memory::Error) -> Self {
        Self::new(Errno::NOMEM, error)
    }
}

impl From<Box<dyn std::error::Error + Send + Sync>> for RequestError {
    fn from(error: Box<dyn std::error::Error + Send + Sync>) -> Self {
        Self::new(Errno::NOMEM, error)
    }
}
