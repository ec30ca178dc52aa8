//! Why a request fails: an error number for the program, and a line for its user.

use std::io::Write;
use std::sync::OnceLock;

use netmap::client::Error;
use netmap::request::InvalidRequest;
use rustix::io::Errno;

/// Why a request fails.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// Error number as netmap defines it.
    pub errno: Errno,
    /// Cause in a line; `None` if it was printed already.
    why: Option<String>,
}

impl Refusal {
    /// Creates a refusal whose reason is only printed if the user asks for it: programs make such requests to
    /// find out what exists.
    pub fn new(errno: Errno, why: impl ToString) -> Self {
        Self { errno, why: Some(why.to_string()) }
    }

    /// Prints the reason, and returns the refusal.
    pub fn printed(errno: Errno, why: &str) -> Self {
        print(why);
        Self { errno, why: None }
    }

    /// Prints the reason if it was not printed yet and `RINGPASS_NETMAP_LOG` is 1.
    pub fn log(&self) {
        static WANTED: OnceLock<bool> = OnceLock::new();
        let Some(why) = &self.why else { return };
        if *WANTED.get_or_init(|| std::env::var_os("RINGPASS_NETMAP_LOG").is_some_and(|value| value == "1")) {
            print(why);
        }
    }
}

impl From<Errno> for Refusal {
    fn from(errno: Errno) -> Self {
        Self::new(errno, errno)
    }
}

impl From<Error> for Refusal {
    fn from(error: Error) -> Self {
        match error {
            Error::Refused { errno, why } => Self::new(errno, why),
            error => Self::new(Errno::NXIO, error),
        }
    }
}

impl From<InvalidRequest> for Refusal {
    fn from(invalid: InvalidRequest) -> Self {
        Self::new(Errno::INVAL, invalid)
    }
}

/// Prints a line to standard error in one write, as others may write at the same time.
fn print(why: &str) {
    let _ = std::io::stderr().write_all(format!("ringpass-netmap: {why}\n").as_bytes());
}
