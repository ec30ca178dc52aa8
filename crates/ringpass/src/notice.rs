//! `Notices`: where the library reports what it chose on its own.

use std::fmt;
use std::sync::Arc;

/// Receiver of notices: one-line messages about choices that were made on the way and that a user should know of, such as
/// ordinary pages in place of huge ones. None of them is an error.
///
/// By default they are warnings of the crate `tracing`.
///
/// ```
/// use ringpass::{Config, Notices};
///
/// let config = Config { notices: Notices::new(|text| eprintln!("my program: {text}")), ..Config::default() };
/// ```
#[derive(Clone)]
pub struct Notices(Arc<dyn Fn(&str) + Send + Sync>);

impl Notices {
    /// Creates a receiver that calls `show` for each notice, on the thread where it arises.
    pub fn new(show: impl Fn(&str) + Send + Sync + 'static) -> Self {
        Self(Arc::new(show))
    }

    /// Reports a notice.
    pub fn send(&self, text: &str) {
        (self.0)(text);
    }
}

impl Default for Notices {
    fn default() -> Self {
        Self::new(|text| tracing::warn!("{text}"))
    }
}

impl fmt::Debug for Notices {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Notices")
    }
}
