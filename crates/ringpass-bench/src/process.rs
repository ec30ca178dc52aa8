//! The other processes of a measurement: the program `ringpass`, and this one again.

use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

use ringpass::Error;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use ringpass::signals::interrupted;

/// A process of this program that is ended when dropped. Its output is read continuously, so that it never
/// blocks on a full pipe.
pub struct Process {
    child: Child,
    input: ChildStdin,
    lines: Receiver<String>,
    /// Lines of standard error, shown only if the process fails.
    errors: Receiver<String>,
}

/// Starts a thread that reads all lines.
fn lines(of: impl Read + Send + 'static) -> Receiver<String> {
    let (sender, receiver) = channel();
    thread::spawn(move || BufReader::new(of).lines().map_while(Result::ok).try_for_each(|line| sender.send(line)));
    receiver
}

/// Returns the path of the program `ringpass`, beside this one.
pub fn ringpass() -> Result<PathBuf, Error> {
    let own = std::env::current_exe().map_err(|source| Error::os("this program's own file", source))?;
    let ringpass = own.with_file_name("ringpass");
    match ringpass.exists() {
        true => Ok(ringpass),
        false => Err(Error::NotFound(format!(
            "{} is missing, which is measured; in the source: cargo build --release -p ringpass-cli",
            ringpass.display()
        ))),
    }
}

impl Process {
    /// Interval at which waiting functions check for Ctrl-C.
    const TURN: Duration = Duration::from_millis(100);

    /// Starts a subcommand of `ringpass` with additional environment variables.
    pub fn ringpass(arguments: &[&str], variables: &[(&str, &OsStr)]) -> Result<Self, Error> {
        Self::spawn(&ringpass()?, arguments, variables)
    }

    /// Starts a subcommand of this program with additional environment variables.
    pub fn own(arguments: &[&str], variables: &[(&str, &OsStr)]) -> Result<Self, Error> {
        Self::spawn(Path::new("/proc/self/exe"), arguments, variables)
    }

    fn spawn(program: &Path, arguments: &[&str], variables: &[(&str, &OsStr)]) -> Result<Self, Error> {
        let spawned = Command::new(program)
            .args(arguments)
            .envs(variables.iter().copied())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn();
        let what = || format!("starting ringpass {}", arguments.join(" "));
        let mut child = spawned.map_err(|source| Error::os(what(), source))?;
        let input = child.stdin.take();
        let output = child.stdout.take();
        let errors = child.stderr.take();
        let (lines, errors) = (lines(output.expect("piped")), lines(errors.expect("piped")));
        Ok(Self { child, input: input.expect("piped"), lines, errors })
    }

    /// Returns the process ID.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Returns the next line of output. Fails after `limit`, on Ctrl-C, or if the process ends.
    pub fn line(&mut self, limit: Duration) -> Result<String, Error> {
        let start = Instant::now();
        loop {
            let left = limit.saturating_sub(start.elapsed());
            match self.lines.recv_timeout(left.min(Self::TURN)) {
                Ok(line) => return Ok(line),
                Err(_) if interrupted() => return Err(Error::Interrupted),
                Err(RecvTimeoutError::Timeout) if left.is_zero() => {
                    return Err(Error::Fault(format!("a process of this bench was silent for {limit:?}")));
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return Err(Error::Fault(self.last_words())),
            }
        }
    }

    /// Returns the last line of standard error, which says why the process has ended.
    fn last_words(&self) -> String {
        let next = || self.errors.recv_timeout(Duration::from_secs(1)).ok();
        let last = std::iter::from_fn(next).last().unwrap_or_else(|| "a process of this bench has ended".into());
        last.trim_start_matches("ringpass: ").into()
    }

    /// Returns the next event with this name from the output of `--json`. Fails after `limit`.
    pub fn event(&mut self, name: &str, limit: Duration) -> Result<Value, Error> {
        let end = Instant::now() + limit;
        loop {
            let line = self.line(end.saturating_duration_since(Instant::now()))?;
            let event: Value =
                serde_json::from_str(&line).map_err(|error| Error::Fault(format!("'{line}': {error}")))?;
            if event["event"] == name {
                return Ok(event);
            }
        }
    }

    /// Ends the process as Ctrl-C does and returns its summary.
    pub fn summary(mut self) -> Result<Value, Error> {
        let _ = kill_process(Pid::from_child(&self.child), Signal::INT);
        self.event("summary", Duration::from_secs(20))
    }

    /// Sends a line that lets the process begin.
    pub fn begin(&mut self) -> Result<(), Error> {
        let written = self.input.write_all(b"\n");
        written.map_err(|source| Error::os("a process of this bench", source))
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
