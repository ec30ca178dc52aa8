//! The progress of a run.

use std::io::{self, IsTerminal, Write};

/// Shows the progress of the run, on a terminal only.
pub fn progress(what: &str) {
    let mut stderr = io::stderr();
    if stderr.is_terminal() {
        let _ = write!(stderr, "\r\x1b[2K{what}").and_then(|()| stderr.flush());
    }
}
