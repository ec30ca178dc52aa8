//! The progress of a run.

use std::io::{self, IsTerminal, Write};

use crate::output::is_quiet;

/// Shows the progress of the run, on a terminal only. An empty text clears it.
pub fn progress(what: &str) {
    let mut stderr = io::stderr();
    if stderr.is_terminal() && !is_quiet() {
        let _ = write!(stderr, "\r\x1b[2K{what}").and_then(|()| stderr.flush());
    }
}
