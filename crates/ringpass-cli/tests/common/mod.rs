//! The program under test, and helpers that the end-to-end tests share.

// Each test uses a part of it.
#![allow(dead_code, unused_imports)]

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

pub mod back;
pub mod browser;
pub mod dpdk;
pub mod fabric;
pub mod guest;
pub mod line;
pub mod matrix;
pub mod netmap;
pub mod pairs;
pub mod passed;
pub mod prometheus;
pub mod terminal;
pub mod tunnel;
pub mod vhost;

pub use ringpass_lab::{Ended, Namespace, Program, built, run, unique, wait_until};
pub use ringpass_testing::{Random, Stop};

/// The program under test. A namespace's `ip netns exec` replaces itself by it, so that signals reach it.
pub const RINGPASS: &str = env!("CARGO_BIN_EXE_ringpass");

/// Starts tshark with these programs of ours that it runs to find interfaces, the control socket of a service, and `ringpass` in this folder. tshark as root
/// looks for such programs in one folder only, so this one is laid over it.
pub fn tshark(extcap: &Path, control: &Path, folder: &Path, arguments: &[&str]) -> Program {
    let script = "set -e; there=$(tshark -G folders 2>/dev/null | sed -n 's/^Extcap path:[[:space:]]*//p')
        mount --bind \"$1\" \"$there\"; shift; exec tshark \"$@\"";
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-c", script, "sh", text(extcap)]).args(arguments);
    let path = std::env::var("PATH").expect("a path");
    command.env("PATH", format!("{}:{path}", text(folder))).env("RINGPASS_CONTROL", control);
    Program::start(&mut command).expect("this test needs util-linux and tshark")
}

/// Runs ringpass to its end; returns exit status, standard output and standard error.
pub fn ringpass(arguments: &[&str]) -> (Option<i32>, String, String) {
    let Ended { status, lines, errors } =
        Program::spawn(&[&[RINGPASS], arguments].concat()).wait(Duration::from_secs(300));
    (status, lines.join("\n"), errors.join("\n"))
}

/// Returns whether this process may use one CPU only. If so, a bench that needs two must refuse to run, which
/// is checked here.
pub fn refused_on_one_cpu(bench: &str) -> bool {
    let one = std::thread::available_parallelism().expect("the CPUs of this process").get() == 1;
    if one {
        let (status, out, errors) = ringpass(&["bench", bench]);
        assert_eq!((status, out.as_str()), (Some(1), ""), "{errors}");
        assert!(errors.contains("needs two CPUs"), "{errors}");
        println!("one CPU: bench {bench} refuses to measure, and that is all that was tested");
    }
    one
}

/// Creates a temporary folder, removed when dropped.
///
/// It is in TMPDIR, unless that is a place where other users cannot go (a home directory), because some tests
/// let others in, or its path is too long for those of sockets, which have at most 107 bytes (unix(7)).
pub fn folder() -> tempfile::TempDir {
    let enters = |path: &Path| std::fs::metadata(path).is_ok_and(|of| of.permissions().mode() & 1 != 0);
    let fits = |path: &PathBuf| path.as_os_str().len() <= 48 && path.ancestors().all(enters);
    let places = [std::env::temp_dir(), "/tmp".into(), "/var/tmp".into()];
    let place = places.iter().find(|place| fits(place));
    let place = place.unwrap_or_else(|| panic!("the tests need a folder that all users can enter: one of {places:?}"));
    tempfile::tempdir_in(place).expect("a temporary folder")
}

/// Copies the program to a place where every user can start it, in a folder where every user can create files;
/// Cargo's output may be in a home directory.
pub fn for_everybody() -> (tempfile::TempDir, PathBuf) {
    let folder = folder();
    let program = folder.path().join("ringpass");
    let allow = |path: &Path, mode| std::fs::set_permissions(path, Permissions::from_mode(mode)).expect("its owner");
    std::fs::copy(RINGPASS, &program).expect("room for the program");
    allow(&program, 0o755);
    allow(folder.path(), 0o777);
    (folder, program)
}

pub fn text(path: &Path) -> &str {
    path.to_str().expect("a path in UTF-8")
}

/// Returns bytes that do not repeat soon.
pub fn noise(len: usize) -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15u64;
    (0..len)
        .map(|_| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) as u8
        })
        .collect()
}

/// Sends pings as fast as answers come, none of which may be lost; no other traffic passes the interface. With
/// a deadline ping waits for late answers and continues sending meanwhile, so packets are counted at the
/// interface.
pub fn flood(from: &Namespace, interface: &str, to: &str, count: u32, options: &[&str]) {
    let passed = || ["tx_packets", "rx_packets"].map(|counter| from.counter(interface, counter));
    let (before, count) = (passed(), count.to_string());
    from.run(&[&["ping", "-f", "-q", "-c", &count, "-w", "300"], options, &[to]].concat());
    wait_until("all answers", || {
        let now = passed();
        now[0] - before[0] == now[1] - before[1]
    });
}

/// Returns whether a process listens at a socket; the socket's file exists a moment earlier.
pub fn listened_to(socket: &Path) -> bool {
    let sockets = std::fs::read_to_string("/proc/net/unix").expect("Linux");
    // Number, references, protocol, flags (this one is SO_ACCEPTCON), type, state, inode, path.
    sockets.lines().any(|line| line.ends_with(text(socket)) && line.split(' ').nth(3) == Some("00010000"))
}

/// Two namespaces, `a` with 198.18.0.1 and `b` with 198.18.0.2, whose only connection is ringpass in `middle`:
/// TAP, wire of a software card, driver, forwarder, driver, wire, TAP.
pub struct Lab {
    pub a: Namespace,
    pub b: Namespace,
    pub middle: Namespace,
    pub left: String,
    pub right: String,
    pub forwarder: Program,
}

impl Lab {
    /// Starts the forwarder. `wrap` makes a port's address from that of its card; `options` are added to the
    /// command line.
    pub fn new(wrap: impl Fn(&str, &str) -> String, options: &[&str]) -> Self {
        let (a, b, middle) = (Namespace::new(), Namespace::new(), Namespace::new());
        let (left, right) = (unique("tl"), unique("tr"));
        let ports = [wrap("left", &format!("model:tap:{left}")), wrap("right", &format!("model:tap:{right}"))];
        let command = [&[RINGPASS, "fwd", &ports[0], &ports[1], "--json"], options].concat();
        let forwarder = middle.spawn(&command);
        wait_until("the forwarder's first line", || !forwarder.line().is_empty());
        a.take(&middle, &left, "198.18.0.1/24");
        b.take(&middle, &right, "198.18.0.2/24");
        // No ARP: its frames are shorter than Ethernet's minimum, and are padded on the wire where the kernel
        // does not count.
        a.neighbour(&left, "198.18.0.2", &b.mac(&right));
        b.neighbour(&right, "198.18.0.1", &a.mac(&left));
        let lab = Self { a, b, middle, left, right, forwarder };
        wait_until("the first ping", || {
            let ping =
                Command::new("ip").args(["netns", "exec", &lab.a.0, "ping", "-c1", "-W1", "198.18.0.2"]).output();
            ping.is_ok_and(|output| output.status.success())
        });
        lab
    }
}
