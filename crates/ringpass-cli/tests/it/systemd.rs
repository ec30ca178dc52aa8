//! What a service manager is told, by the protocol of sd_notify(3), with a socket of this test in its place. That a real one understands it is
//! tested with the package.

use std::os::unix::net::UnixDatagram;
use std::process::Command;
use std::time::{Duration, Instant};

use crate::common::{Program, RINGPASS, folder, text};

/// Returns what arrives next, within ten seconds.
fn told(manager: &UnixDatagram) -> String {
    let mut buffer = [0; 256];
    let len = manager.recv(&mut buffer).expect("a datagram within ten seconds");
    String::from_utf8_lossy(&buffer[..len]).into_owned()
}

/// Returns a manager's socket, and the program with its address, not started yet.
fn managed(folder: &tempfile::TempDir, arguments: &[&str]) -> (UnixDatagram, Command) {
    let path = folder.path().join("notify");
    let manager = UnixDatagram::bind(&path).expect("a socket");
    manager.set_read_timeout(Some(Duration::from_secs(10))).expect("a limit");
    let mut command = Command::new(RINGPASS);
    command.args(arguments).env("NOTIFY_SOCKET", &path);
    (manager, command)
}

#[test]
fn a_manager_hears_of_start_life_and_end() {
    let folder = folder();
    let (manager, mut command) = managed(&folder, &["fwd", "model:null", "null", "--no-sandbox"]);
    command.env("WATCHDOG_USEC", "600000");
    let program = Program::start(&mut command).expect("it starts");
    assert_eq!(told(&manager), "READY=1");
    // Twice in each limit.
    let start = Instant::now();
    (0..3).for_each(|_| assert_eq!(told(&manager), "WATCHDOG=1"));
    let took = start.elapsed();
    assert!(took > Duration::from_millis(850), "{took:?}");
    program.signal("TERM");
    let ends = std::iter::repeat_with(|| told(&manager)).find(|told| told != "WATCHDOG=1");
    assert_eq!(ends.as_deref(), Some("STOPPING=1"));
    assert_eq!(program.wait(Duration::from_secs(10)).status, Some(0));
}

#[test]
fn a_watchdog_of_another_process_is_left_alone() {
    let folder = folder();
    let (manager, mut command) = managed(&folder, &["fwd", "model:null", "null", "--no-sandbox", "--time", "1"]);
    command.env("WATCHDOG_USEC", "100000").env("WATCHDOG_PID", "1");
    let program = Program::start(&mut command).expect("it starts");
    assert_eq!([told(&manager), told(&manager)], ["READY=1", "STOPPING=1"]);
    assert_eq!(program.wait(Duration::from_secs(10)).status, Some(0));
}

#[test]
fn a_manager_that_is_not_there_is_named() {
    let folder = folder();
    let mut command = Command::new(RINGPASS);
    let nobody = folder.path().join("nobody");
    command.args(["fwd", "null", "null"]).env("NOTIFY_SOCKET", &nobody);
    let ended = Program::start(&mut command).expect("it starts").wait(Duration::from_secs(10));
    assert_eq!(ended.status, Some(1));
    assert!(ended.errors.len() == 1 && ended.errors[0].contains(text(&nobody)), "{:?}", ended.errors);
}
