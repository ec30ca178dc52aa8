//! Programs on VALE switches of `ringpass netmapd`, which the first of them starts.

use std::io::Error;
use std::process::Command;
use std::ptr::null_mut;
use std::time::{Duration, Instant};

use crate::support::Program;
use crate::support::netmap::{self as nm, Port};
use libc::{POLLERR, POLLIN};
use netmap::client::Client;
use netmap_sys::netmap::{NETMAP_BDG_LIST, NIOCGINFO, nmreq};

/// Frames in flight at a time: few enough that no ring is ever full, so none is dropped.
const WINDOW: u64 = 200;

#[test]
fn program() {
    let Some(words) = crate::support::part() else { return };
    let number = |at: usize| words[at].parse::<u64>().expect("a number");
    match &words[0][..] {
        "ask" => ask(&words[1], number(2), &words[3]),
        "echo" => echo(&words[1], number(2)),
        "control" => control(),
        other => panic!("no part {other}"),
    }
}

/// The request that lists the ports of switches.
const LIST: u16 = 5;

/// Sends numbered frames to another port's program, which returns them.
fn ask(name: &str, count: u64, other: &str) {
    let (port, start) = (Port::new(name), Instant::now());
    while nm::control(port.fd, 14, LIST, other, null_mut(), &mut [0; 8]) == libc::ENOENT {
        assert!(start.elapsed() < Duration::from_secs(20), "{other} does not come");
        std::thread::sleep(Duration::from_millis(20));
    }
    for first in (0..count).step_by(WINDOW as usize) {
        port.send(first..first + WINDOW, 64);
        port.receive(first..first + WINDOW);
    }
}

fn echo(name: &str, count: u64) {
    let port = Port::new(name);
    let mut next = 0;
    while next < count {
        assert_eq!(port.poll(POLLIN, 10_000), POLLIN, "after {next}");
        for _ in 0..port.rx().space() {
            assert_eq!(port.rx().read(), next);
            port.tx().write(next);
            next += 1;
        }
    }
    // The last frames are sent before the port ends: the switch returns their slots when it has taken them.
    let start = Instant::now();
    while port.tx().space() < port.tx().slots() - 1 {
        assert_eq!(port.poll(POLLIN, 20) & POLLERR, 0);
        assert_eq!(port.tx_sync(), 0);
        assert!(start.elapsed() < Duration::from_secs(20), "the last frames stay");
    }
}

/// Ports that stay without a program, and the list of all.
fn control() {
    let fd = nm::open();
    assert!(fd >= 0, "{}", Error::last_os_error());
    let ask = |kind, name: &str, body: &mut [u8]| nm::control(fd, 14, kind, name, null_mut(), body);
    let [attach, detach, new_port, delete_port] = [3, 4, 8, 9];
    assert_eq!(ask(new_port, "stays", &mut [0; 16]), 0);
    assert_eq!(ask(new_port, "stays", &mut [0; 16]), libc::EEXIST);
    assert_eq!(ask(new_port, "other", &mut [0; 16]), 0);
    for name in ["vale7:stays", "vale8:other"] {
        assert_eq!(ask(attach, name, &mut [0; 64]), 0);
    }
    let mut list = [0; 8];
    assert_eq!((ask(LIST, "vale8:other", &mut list), list), (0, [1, 0, 0, 0, 0, 0, 0, 0]));
    assert_eq!(ask(LIST, "vale8:none", &mut list), libc::ENOENT);
    let mut header = [0_u8; 88];
    let mut list = [0_u8; 8];
    (header[0], header[2]) = (14, LIST as u8);
    header[80..].copy_from_slice(&(list.as_mut_ptr() as u64).to_le_bytes());
    assert_eq!(nm::errno(nm::ioctl(fd, nm::NIOCCTRL, header.as_mut_ptr().cast())), 0);
    assert_eq!(header[8..20], *b"vale7:stays\0");
    // The same by the legacy request.
    // SAFETY: a struct of integers, for which zeros are valid.
    let mut request = unsafe { std::mem::zeroed::<nmreq>() };
    (request.nr_version, request.nr_cmd, request.nr_arg2) = (14, NETMAP_BDG_LIST as u16, 1);
    let list_again = |request: &mut nmreq| nm::errno(nm::ioctl(fd, NIOCGINFO, (&raw mut *request).cast()));
    assert_eq!(list_again(&mut request), 0);
    assert_eq!((request.nr_arg1, request.nr_arg2, request.nr_name[4] as u8), (1, 0, b'8'));
    let mut info = [0; 32];
    assert_eq!((ask(2, "vale7:stays", &mut info), &info[16..20]), (0, &[1, 0, 1, 0][..]));
    for (name, port) in [("vale7:stays", "stays"), ("vale8:other", "other")] {
        assert_eq!(ask(detach, name, &mut [0; 8]), 0);
        assert_eq!(ask(delete_port, port, &mut []), 0);
    }
    assert_eq!(ask(LIST, "", &mut [0; 8]), libc::ENOENT);
}

#[test]
fn programs_meet_on_a_switch() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("netmap.sock");
    let start = |part: &str| {
        let mut command: Command = crate::support::part_at(module_path!(), part, &socket);
        command.env("RINGPASS_NETMAPD", crate::support::ringpass());
        (part.to_owned(), Program(command.spawn().unwrap()))
    };
    let programs = [
        start("echo vale0:b 20000"),
        start("ask vale0:a 20000 vale0:b"),
        start("echo vale1:b 20000"),
        start("ask vale1:a 20000 vale1:b"),
    ];
    for (part, mut program) in programs {
        assert!(program.ends_within(Duration::from_secs(60)).success(), "{part}");
    }
    assert!(start("control").1.ends_within(Duration::from_secs(60)).success());
    // The server ends of its own accord. In its sandbox it may not remove the socket.
    let waiting = Instant::now();
    while !matches!(Client::connect(&socket), Err(netmap::client::Error::NoServer(_))) {
        assert!(waiting.elapsed() < Duration::from_secs(90), "it stays");
        // Longer than the server waits for a program: each attempt to connect counts as one.
        std::thread::sleep(Duration::from_secs(11));
    }
}
