//! This program once more: the other processes of a measurement.

use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

use ringpass_port::Error;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::run::interrupted;

/// A process of this program that is ended when dropped. What it prints is taken as it comes, so that it never waits for that.
pub struct Process {
    child: Child,
    input: ChildStdin,
    lines: Receiver<String>,
    /// What it says for people; shown only if it fails.
    errors: Receiver<String>,
}

/// All lines, to their end.
fn lines(of: impl Read + Send + 'static) -> Receiver<String> {
    let (sender, receiver) = channel();
    thread::spawn(move || BufReader::new(of).lines().map_while(Result::ok).try_for_each(|line| sender.send(line)));
    receiver
}

impl Process {
    /// How often a wait looks for Ctrl-C.
    const TURN: Duration = Duration::from_millis(100);

    /// Starts a subcommand, with these variables of the environment.
    pub fn spawn(arguments: &[&str], variables: &[(&str, &OsStr)]) -> Result<Self, Error> {
        let spawned = Command::new("/proc/self/exe")
            .args(arguments)
            .envs(variables.iter().copied())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn();
        let what = || format!("starting ringpass {}", arguments.join(" "));
        let mut child = spawned.map_err(|source| Error::Os { what: what(), source })?;
        let (input, output, errors) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
        let (lines, errors) = (lines(output.expect("piped")), lines(errors.expect("piped")));
        Ok(Self { child, input: input.expect("piped"), lines, errors })
    }

    /// Its number.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// The next line that it prints, within a time.
    pub fn line(&mut self, limit: Duration) -> Result<String, Error> {
        let start = Instant::now();
        loop {
            let left = limit.saturating_sub(start.elapsed());
            match self.lines.recv_timeout(left.min(Self::TURN)) {
                Ok(line) => return Ok(line),
                Err(_) if interrupted() => return Err(Error::Other("interrupted".into())),
                Err(RecvTimeoutError::Timeout) if left.is_zero() => {
                    return Err(Error::Other(format!("a process of this bench was silent for {limit:?}")));
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return Err(Error::Other(self.last_words())),
            }
        }
    }

    /// Why it has ended.
    fn last_words(&self) -> String {
        let next = || self.errors.recv_timeout(Duration::from_secs(1)).ok();
        let last = std::iter::from_fn(next).last().unwrap_or_else(|| "a process of this bench has ended".into());
        last.trim_start_matches("ringpass: ").into()
    }

    /// The next of its events of a name, as `--json` prints them, within a time.
    pub fn event(&mut self, name: &str, limit: Duration) -> Result<Value, Error> {
        let end = Instant::now() + limit;
        loop {
            let line = self.line(end.saturating_duration_since(Instant::now()))?;
            let event: Value =
                serde_json::from_str(&line).map_err(|error| Error::Other(format!("'{line}': {error}")))?;
            if event["event"] == name {
                return Ok(event);
            }
        }
    }

    /// Ends it as Ctrl-C does. Returns its summary.
    pub fn summary(mut self) -> Result<Value, Error> {
        let _ = kill_process(Pid::from_child(&self.child), Signal::INT);
        self.event("summary", Duration::from_secs(20))
    }

    /// Lets it begin, by a line.
    pub fn begin(&mut self) -> Result<(), Error> {
        let written = self.input.write_all(b"\n");
        written.map_err(|source| Error::Os { what: "a process of this bench".into(), source })
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = kill_process(Pid::from_child(&self.child), Signal::TERM);
        let start = Instant::now();
        while start.elapsed() < Duration::from_secs(3) {
            if self.child.try_wait().is_ok_and(|ended| ended.is_some()) {
                return;
            }
            thread::sleep(Duration::from_millis(2));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
