//! Errors of ports, by what a program can do about them.

use std::{fmt, io};

use rustix::io::Errno;

/// Why a port could not be opened, or is gone: the cause and the remedy, in one line.
///
/// ```
/// use ringpass_port::Error;
///
/// let remedy = match Error::os("/dev/net/tun", std::io::Error::from_raw_os_error(1)) {
///     Error::Permission(_) => "run it as root",
///     Error::Busy(_) => "try again later",
///     _ => "report it",
/// };
/// assert_eq!(remedy, "run it as root");
/// ```
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An address that names no port, or one that cannot be used in this place.
    #[error("{0}")]
    Address(String),
    /// A setting that is impossible, or settings that exclude each other.
    #[error("{0}")]
    Config(String),
    /// Somebody else uses the device, interface, ring or socket.
    #[error("{0}")]
    Busy(String),
    /// This user may not do this.
    #[error("{0}")]
    Permission(String),
    /// There is no such device, interface, file or server.
    #[error("{0}")]
    NotFound(String),
    /// There is such a device, and no driver for it.
    #[error("{0}")]
    NoDriver(String),
    /// The device, port or kernel cannot do what was asked.
    #[error("{0}")]
    Unsupported(String),
    /// The device, interface or peer has disappeared, or does not answer.
    #[error("{0}")]
    Gone(String),
    /// The device or peer breaks its protocol, or a part of this program has failed.
    #[error("{0}")]
    Fault(String),
    /// The user has interrupted the program.
    #[error("interrupted")]
    Interrupted,
    /// Too few huge pages are free.
    #[error(transparent)]
    NoHugePages(ringpass_memory::Error),
    /// Allocating or mapping memory for packets or rings failed for another reason.
    #[error(transparent)]
    Memory(ringpass_memory::Error),
    /// The kernel refused an operation for another reason.
    #[error("{what}: {source}")]
    Os {
        /// The operation, with the remedy where one is known.
        what: String,
        /// The kernel's error.
        source: io::Error,
    },
}

/// The same text as that of `Display`, so that a `main` that returns the error prints it for people.
impl fmt::Debug for Error {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, out)
    }
}

impl Error {
    /// Creates the error for a refusal of the kernel: [`Permission`](Self::Permission), [`NotFound`](Self::NotFound) or
    /// [`Busy`](Self::Busy) where that is the cause, else [`Os`](Self::Os). `what` is the operation, with the remedy where one is
    /// known.
    pub fn os(what: impl Into<String>, source: impl Into<io::Error>) -> Self {
        let (what, source) = (what.into(), source.into());
        match source.raw_os_error().map(Errno::from_raw_os_error) {
            Some(errno) => Self::classified(errno, format!("{what}: {source}")).unwrap_or(Self::Os { what, source }),
            None => Self::Os { what, source },
        }
    }

    /// Creates the error for a file of the user that cannot be opened. `what` is the file, and what it is for.
    pub fn file(what: impl Into<String>, source: impl Into<io::Error>) -> Self {
        let (what, source) = (what.into(), source.into());
        match source.kind() {
            io::ErrorKind::NotFound => {
                Self::NotFound(format!("{what}: there is no such file or folder; check the path"))
            }
            io::ErrorKind::PermissionDenied => Self::Permission(format!(
                "{what}: this user may not open it; change its mode, or run this as its owner"
            )),
            io::ErrorKind::IsADirectory => Self::Config(format!("{what}: it is a folder; name a file")),
            _ => Self::os(what, source),
        }
    }

    /// Creates the error for a refusal with this error number, whose text is `why`: the variant that fits, else
    /// [`Fault`](Self::Fault).
    pub fn refused(errno: Errno, why: impl Into<String>) -> Self {
        let why = why.into();
        Self::classified(errno, why.clone()).unwrap_or(Self::Fault(why))
    }

    /// Puts the port's name in front of the text, unless the text begins with it.
    pub fn of(self, name: &str) -> Self {
        let text = self.to_string();
        if text.starts_with(name) {
            return self;
        }
        let text = format!("{name}: {text}");
        match self {
            Self::Address(_) => Self::Address(text),
            Self::Config(_) => Self::Config(text),
            Self::Busy(_) => Self::Busy(text),
            Self::Permission(_) => Self::Permission(text),
            Self::NotFound(_) => Self::NotFound(text),
            Self::NoDriver(_) => Self::NoDriver(text),
            Self::Unsupported(_) => Self::Unsupported(text),
            Self::Gone(_) => Self::Gone(text),
            Self::Os { what, source } => Self::Os { what: format!("{name}: {what}"), source },
            Self::Fault(_) => Self::Fault(text),
            Self::Interrupted | Self::NoHugePages(_) | Self::Memory(_) => self,
        }
    }

    fn classified(errno: Errno, text: String) -> Option<Self> {
        Some(match errno {
            Errno::PERM | Errno::ACCESS => Self::Permission(text),
            Errno::NOENT | Errno::NODEV | Errno::NXIO => Self::NotFound(text),
            Errno::BUSY | Errno::ADDRINUSE | Errno::EXIST => Self::Busy(text),
            Errno::OPNOTSUPP | Errno::NOSYS => Self::Unsupported(text),
            _ => return None,
        })
    }
}

impl From<ringpass_memory::Error> for Error {
    fn from(error: ringpass_memory::Error) -> Self {
        match error {
            ringpass_memory::Error::HugePages { .. } => Self::NoHugePages(error),
            ringpass_memory::Error::Config(why) => Self::Config(why.into()),
            other => Self::Memory(other),
        }
    }
}

impl From<ringpass_ipc::Error> for Error {
    fn from(error: ringpass_ipc::Error) -> Self {
        use ringpass_ipc::Error as Ipc;
        match error {
            Ipc::InUse(_) | Ipc::NoSocket(_) | Ipc::Locked { .. } => Self::Busy(error.to_string()),
            Ipc::NoFolder { .. } => Self::NotFound(error.to_string()),
            Ipc::Denied { .. } => Self::Permission(error.to_string()),
            Ipc::Os { what, source } => Self::os(what, source),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_become_variants_with_the_text_as_it_was() {
        let of = |errno: Errno| Error::os("opening it", errno);
        assert!(matches!(of(Errno::ACCESS), Error::Permission(_)));
        assert!(matches!(of(Errno::NODEV), Error::NotFound(_)));
        assert!(matches!(of(Errno::BUSY), Error::Busy(_)));
        assert!(matches!(of(Errno::NOSPC), Error::Os { .. }));
        for errno in [Errno::ACCESS, Errno::NOSPC] {
            assert_eq!(of(errno).to_string(), format!("opening it: {}", io::Error::from(errno)));
        }
        assert!(matches!(Error::refused(Errno::BUSY, "taken"), Error::Busy(why) if why == "taken"));
        assert!(matches!(Error::refused(Errno::INVAL, "what?"), Error::Fault(_)));
    }
}
