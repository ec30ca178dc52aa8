//! A serving process on a thread, and programs that have the library preloaded: this test binary again, run as
//! the test `program` of the same module, which plays the part that an environment variable names.

#![allow(dead_code, reason = "each test file needs a part")]

pub mod netmap;

use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use ::netmap::Pools;
use ::netmap::client::Client;
use ringpass_ipc::Listener;
use ringpass_netmap_server::Server;
use serde_json::Value;

/// Environment variable with the part that a program plays, and its arguments.
const PART: &str = "RINGPASS_TEST_PART";

/// Pools of the common memory.
pub const POOLS: Pools = Pools { interfaces: 64, ring_bytes: 1 << 20, buffers: 20_000, buffer_size: 2048 };

/// A serving process at a socket of its own.
pub struct Lab {
    module: &'static str,
    pub socket: PathBuf,
    _folder: tempfile::TempDir,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Lab {
    /// Starts it. Programs play the parts of the test `program` in `module`, from `module_path!()`.
    pub fn new(module: &'static str) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let socket = folder.path().join("netmap.sock");
        let (stop, listener) = (Arc::new(AtomicBool::new(false)), Listener::bind(&socket).expect("a socket"));
        let stopped = stop.clone();
        let thread = std::thread::spawn(move || {
            let mut server = Server::new(listener, POOLS, Box::new(())).expect("a server");
            while !stopped.load(Relaxed) {
                server.poll_once(Duration::from_millis(20)).expect("poll");
            }
        });
        Self { module, socket, _folder: folder, stop, thread: Some(thread) }
    }

    /// Returns a program that plays a part; see [`part_at`].
    pub fn part(&self, part: &str) -> Command {
        part_at(self.module, part, &self.socket)
    }

    /// Runs programs that play these parts at the same time, and checks that all succeed.
    pub fn play(&self, parts: &[&str]) {
        let children: Vec<_> = parts.iter().map(|part| self.part(part).spawn().expect("a program")).collect();
        for (child, part) in children.into_iter().zip(parts) {
            let status = Program(child).ends_within(Duration::from_secs(60));
            assert!(status.success(), "'{part}': {status}");
        }
    }

    /// Waits until this many buffers are free, and no port or pipe has memory of its own.
    pub fn free(&self, awaited: u64) {
        let start = Instant::now();
        loop {
            let status = Client::connect(&self.socket).and_then(|mut client| client.status()).expect("a status");
            let status: Value = serde_json::from_str(&status).expect("JSON");
            if status["common"]["free"] == awaited && status["memory"]["used"] == 0 {
                return;
            }
            assert!(start.elapsed() < Duration::from_secs(30), "not {awaited} free: {status}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    pub fn all_free(&self) {
        self.free(u64::from(POOLS.buffers) - 2);
    }

    /// Ends the serving process.
    pub fn stop(&mut self) {
        self.stop.store(true, Relaxed);
        self.thread.take().into_iter().for_each(|thread| thread.join().expect("the server"));
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        self.stop();
    }
}

/// A program that is killed at the end of its test.
pub struct Program(pub Child);

impl Program {
    pub fn ends_within(&mut self, limit: Duration) -> ExitStatus {
        let start = Instant::now();
        loop {
            if let Some(status) = self.0.try_wait().expect("a child") {
                return status;
            }
            assert!(start.elapsed() < limit, "a program hangs");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Returns a program of this binary that plays a part of a module's test `program`, with the library preloaded, for
/// the serving process at a socket.
pub fn part_at(module: &str, part: &str, socket: &Path) -> Command {
    let (_, module) = module.split_once("::").expect("the path of a module");
    let mut command = Command::new(std::env::current_exe().expect("this binary"));
    command.args(["--exact", &format!("{module}::program"), "--nocapture"]).stdout(Stdio::null());
    command.env(PART, part).env("LD_PRELOAD", library()).env("RINGPASS_NETMAP_SOCKET", socket);
    command.env("RUST_BACKTRACE", "0");
    command
}

/// The part that this process plays, as words; `None` in the test itself.
pub fn part() -> Option<Vec<String>> {
    let part = std::env::var(PART).ok()?;
    Some(part.split_whitespace().map(str::to_owned).collect())
}

/// A part: a function of its arguments.
pub type Part = fn(&[String]);

/// Plays the part of this process, if it has one.
pub fn play(parts: &[(&str, Part)]) {
    let Some(words) = part() else { return };
    let (_, play) = parts.iter().find(|(name, _)| *name == words[0]).expect("a part that there is");
    play(&words[1..]);
}

/// Path of `libringpass_netmap.so`.
pub fn library() -> PathBuf {
    ringpass_lab::built("libringpass_netmap.so")
}

/// Path of the program `ringpass`.
pub fn ringpass() -> PathBuf {
    ringpass_lab::built("ringpass")
}
