//! A program that is controlled by keyboard input, as at a terminal.

use std::io::{Read, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

/// A program on pipes, in place of a terminal; killed when dropped.
pub struct Terminal {
    child: Child,
    keys: ChildStdin,
    screen: Receiver<Vec<u8>>,
    /// All output so far.
    text: String,
    /// Length of the output that was searched already.
    seen: usize,
}

impl Terminal {
    /// Starts a program. Its standard error is the test's.
    pub fn start(command: &mut Command) -> Self {
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap_or_else(|error| panic!("{command:?}: {error}"));
        let (keys, mut out) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        let (sender, screen) = channel();
        std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            while let Ok(len @ 1..) = out.read(&mut bytes) {
                let _ = sender.send(bytes[..len].to_vec());
            }
        });
        Self { child, keys, screen, text: String::new(), seen: 0 }
    }

    /// Types keys.
    pub fn keys(&mut self, keys: &str) {
        self.keys.write_all(keys.as_bytes()).and_then(|()| self.keys.flush()).expect("somebody who reads the keys");
    }

    /// Waits at most three minutes until `what` appears after the output searched before; returns the text up
    /// to its end.
    pub fn expect(&mut self, what: &str) -> String {
        self.expect_within(Duration::from_secs(180), what)
    }

    /// Waits at most `limit` until `what` appears after the output searched before; returns the text up to its
    /// end.
    pub fn expect_within(&mut self, limit: Duration, what: &str) -> String {
        let end = Instant::now() + limit;
        loop {
            if let Some(at) = self.text[self.seen..].find(what) {
                let from = self.seen;
                self.seen += at + what.len();
                return self.text[from..self.seen].to_owned();
            }
            match self.screen.recv_timeout(end.saturating_duration_since(Instant::now())) {
                Ok(bytes) => self.text += &String::from_utf8_lossy(&bytes).replace('\r', ""),
                Err(RecvTimeoutError::Timeout) => panic!("no {what:?} within {limit:?}:\n{}", self.text),
                Err(RecvTimeoutError::Disconnected) => panic!("it ended without {what:?}:\n{}", self.text),
            }
        }
    }

    /// Runs a command to its end in the shell of the guest that `make lab-shell` has started; returns its
    /// output.
    pub fn run(&mut self, command: &str) -> String {
        // This text does not occur in the command, which the terminal echoes as well.
        self.keys(&format!("{command}; echo the end: $?\n"));
        let text = self.expect("the end: 0\n");
        // Input that is typed before the shell prompts for it would be echoed twice.
        self.expect("guest# ");
        text.split_once("$?\n").expect("the command's echo").1.to_owned()
    }

    /// Ends that guest by ending its shell, and with it the program.
    pub fn end(mut self) {
        self.keys("exit\n");
        self.expect("The guest ends.");
        let end = Instant::now() + Duration::from_secs(60);
        while self.child.try_wait().unwrap().is_none() {
            assert!(Instant::now() < end, "it goes on:\n{}", self.text);
            std::thread::sleep(Duration::from_millis(20));
        }
        assert!(self.child.wait().unwrap().success(), "{}", self.text);
    }

    /// Kills the program.
    pub fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        self.kill();
    }
}
