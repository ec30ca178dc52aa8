//! A serving process on a thread, and programs that have the library preloaded: this test binary again, as the test
//! `program`, which plays a part that an environment variable names.

#![allow(dead_code, reason = "each test file needs a part")]

pub mod netmap;

use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use ::netmap::Pools;
use ::netmap::client::Client;
use ::netmap::server::{NoSwitches, Server};
use ringpass_peer::Listener;
use serde_json::Value;

/// Which part a program plays, and its arguments.
const PART: &str = "RINGPASS_TEST_PART";

/// Of the common memory.
pub const POOLS: Pools = Pools { interfaces: 64, ring_bytes: 1 << 20, buffers: 20_000, buffer_size: 2048 };

/// A serving process at a socket of its own.
pub struct Lab {
    pub socket: PathBuf,
    _folder: tempfile::TempDir,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Lab {
    pub fn new() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let socket = folder.path().join("netmap.sock");
        let (stop, listener) = (Arc::new(AtomicBool::new(false)), Listener::bind(&socket).expect("a socket"));
        let stopped = stop.clone();
        let thread = std::thread::spawn(move || {
            let mut server = Server::new(listener, POOLS, Box::new(NoSwitches)).expect("a server");
            while !stopped.load(Relaxed) {
                server.turn(Duration::from_millis(20)).expect("poll");
            }
        });
        Self { socket, _folder: folder, stop, thread: Some(thread) }
    }

    /// See [`part_at`].
    pub fn part(&self, part: &str) -> Command {
        part_at(part, &self.socket)
    }

    /// Programs that play these parts at the same time, to a good end.
    pub fn play(&self, parts: &[&str]) {
        let children: Vec<_> = parts.iter().map(|part| self.part(part).spawn().expect("a program")).collect();
        for (child, part) in children.into_iter().zip(parts) {
            let status = Program(child).ends_within(Duration::from_secs(60));
            assert!(status.success(), "'{part}': {status}");
        }
    }

    /// Waits until so many buffers are free.
    pub fn free(&self, awaited: u64) {
        let start = Instant::now();
        loop {
            let status = Client::connect(&self.socket).and_then(|mut client| client.status()).expect("a status");
            let status: Value = serde_json::from_str(&status).expect("JSON");
            if status["common"]["free"] == awaited {
                return;
            }
            assert!(start.elapsed() < Duration::from_secs(30), "not {awaited} free: {status}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    pub fn all_free(&self) {
        self.free(u64::from(POOLS.buffers) - 2);
    }

    /// The serving process ends.
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

/// A program that ends with its test.
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

/// A program of this binary, that plays a part, with the library, for a serving process at a socket.
pub fn part_at(part: &str, socket: &Path) -> Command {
    let mut command = Command::new(std::env::current_exe().expect("this binary"));
    command.args(["--exact", "program", "--nocapture"]).stdout(Stdio::null());
    command.env(PART, part).env("LD_PRELOAD", library()).env("RINGPASS_NETMAP_SOCKET", socket);
    command.env("RUST_BACKTRACE", "0");
    command
}

/// The part that this process plays, in words. `None` in the test itself.
pub fn part() -> Option<Vec<String>> {
    let part = std::env::var(PART).ok()?;
    Some(part.split_whitespace().map(str::to_owned).collect())
}

/// A part: what it does with its arguments.
pub type Part = fn(&[String]);

/// Plays the part that this process has, if any.
pub fn play(parts: &[(&str, Part)]) {
    let Some(words) = part() else { return };
    let (_, play) = parts.iter().find(|(name, _)| *name == words[0]).expect("a part that there is");
    play(&words[1..]);
}

/// `libringpass_netmap.so`.
pub fn library() -> &'static Path {
    static LIBRARY: OnceLock<PathBuf> = OnceLock::new();
    LIBRARY.get_or_init(|| built(&["--package", "ringpass-netmap-preload", "--lib"], "libringpass_netmap.so"))
}

/// The program `ringpass`.
pub fn ringpass() -> &'static Path {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    PROGRAM.get_or_init(|| built(&["--workspace", "--bin", "ringpass"], "ringpass"))
}

/// A file of the workspace, built with the profile of this test: Cargo builds neither a library that nobody links nor another package's
/// program for a test.
fn built(which: &[&str], file: &str) -> PathBuf {
    let binary = std::env::current_exe().expect("this binary");
    let profile = binary.ancestors().nth(2).and_then(Path::file_name).and_then(|name| name.to_str());
    let profile = profile.filter(|profile| *profile != "debug").unwrap_or("dev");
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or(env!("CARGO").into()));
    cargo.args(["build", "--offline", "--message-format=json", "--profile", profile]);
    cargo.args(which);
    cargo.args(["--manifest-path", concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml")]);
    let output = cargo.stderr(Stdio::inherit()).output().expect("cargo");
    assert!(output.status.success(), "{file} is not built");
    let lines = String::from_utf8(output.stdout).expect("text");
    let messages = lines.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let files = messages.filter_map(|message| message["filenames"].as_array().cloned()).flatten();
    let mut files = files.filter_map(|file| file.as_str().map(PathBuf::from));
    files.find(|path| path.ends_with(file)).unwrap_or_else(|| panic!("{file} is not among what was built"))
}
