//! Other programs of a service: software cards and netmap ports, each in a process and a sandbox of its own, which live as long as the service.

use std::io::{ErrorKind, Read};
use std::net::Shutdown;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::process::Stdio;
use std::time::{Duration, Instant};

use ringpass::Error;
use ringpass_ipc::wait_ready;
use rustix::event::PollFlags;
use tracing::error;

use crate::config_file::CommandLine;
use crate::own_program;

/// Time until a program is ready.
const START: Duration = Duration::from_secs(60);
/// Time that a program has to end.
const END: Duration = Duration::from_secs(5);

/// The programs, which end when this is dropped.
pub(super) struct Programs(Vec<Program>);

struct Program {
    name: String,
    /// The other end of its standard input: it says there when it is ready, and ends when this is closed.
    stream: UnixStream,
    ended: bool,
}

impl Programs {
    /// Starts them, with these further options, and waits until all are ready. To be called before the sandbox is entered.
    ///
    /// # Errors
    /// One has not started, which it has told on standard error.
    pub(super) fn start(lines: &[CommandLine], options: &[String]) -> Result<Self, Error> {
        Ok(Self(lines.iter().map(|line| Program::start(line, options)).collect::<Result<_, _>>()?))
    }

    /// Tells of those that have ended since the last call. Their ports are gone; the rest goes on.
    pub(super) fn check(&mut self) {
        for Program { name, stream, ended } in self.0.iter_mut().filter(|program| !program.ended) {
            if matches!(said(stream, Duration::ZERO), Ok(Some(false))) {
                *ended = true;
                error!("{name} has ended");
            }
        }
    }

    /// Ends them, and waits for a moment until they have printed what they have to say.
    pub(super) fn end(self) {
        let start = Instant::now();
        self.0.iter().for_each(|program| drop(program.stream.shutdown(Shutdown::Write)));
        for Program { stream, .. } in &self.0 {
            let _ = said(stream, END.saturating_sub(start.elapsed()));
        }
    }
}

impl Program {
    fn start(line: &CommandLine, options: &[String]) -> Result<Self, Error> {
        // Up to its first option, in most cases the socket.
        let option = line.0.iter().position(|word| word.starts_with('-')).unwrap_or(line.0.len());
        let name = line.0.iter().take(option + 2).map(String::as_str).collect::<Vec<_>>().join(" ");
        let failed = |source: std::io::Error| Error::os(format!("starting {name}"), source);
        let more = ["--quiet".to_owned(), "--part-of-service".to_owned()];
        let arguments = line.0[1..].iter().chain(options).chain(&more);
        let stream = own_program::start(&line.0[0], arguments, Stdio::inherit()).map_err(failed)?;
        match said(&stream, START).map_err(failed)? {
            Some(true) => Ok(Self { name, stream, ended: false }),
            Some(false) => Err(Error::Fault(format!("{name} has not started; its reason is above"))),
            None => Err(Error::Fault(format!("{name} is not ready after {} s", START.as_secs()))),
        }
    }
}

/// Waits until a program says that it is ready, or has ended (`false`); `None` if it does neither in this time.
fn said(mut stream: &UnixStream, limit: Duration) -> std::io::Result<Option<bool>> {
    let start = Instant::now();
    loop {
        match stream.read(&mut [0]) {
            Ok(count) => return Ok(Some(count == 1)),
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
            // It has ended, and left something unread.
            Err(_) => return Ok(Some(false)),
        }
        let Some(left) = limit.checked_sub(start.elapsed()) else { return Ok(None) };
        wait_ready(stream.as_fd(), PollFlags::IN, left)?;
    }
}
