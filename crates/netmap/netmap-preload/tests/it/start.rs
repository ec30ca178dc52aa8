//! The serving process is started once, by the first program that needs it, and ends after the last.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use crate::support::Program;
use crate::support::netmap::{self as nm, Port};
use ringpass_ipc::Listener;
use ringpass_netmap_server::Server;

#[test]
fn program() {
    let Some(words) = crate::support::part() else { return };
    match &words[0][..] {
        "netmapd" => netmapd(&words[1]),
        "send" => {
            let port = Port::new("x{1");
            port.send(0..1000, 100);
            port.receive(0..1);
        }
        "receive" => {
            let port = Port::new("x}1");
            port.receive(0..1000);
            port.send(0..1, 1);
        }
        "nobody" => {
            let start = Instant::now();
            assert_eq!(nm::errno(nm::open()), libc::ENXIO);
            assert!(start.elapsed() < Duration::from_secs(5), "{:?}", start.elapsed());
        }
        "slow" => {
            let start = Instant::now();
            assert_eq!(nm::errno(nm::open()), libc::ENXIO);
            // An upper bound for a loaded machine.
            assert!((5..50).contains(&start.elapsed().as_secs()), "{:?}", start.elapsed());
        }
        other => panic!("no part {other}"),
    }
}

/// Plays `ringpass netmapd --socket PATH --until-idle`.
fn netmapd(socket: &str) {
    // If two are started, one gets the socket.
    let Ok(listener) = Listener::bind(Path::new(socket)) else { return };
    let mut server = Server::new(listener, crate::support::POOLS, Box::new(())).expect("a server");
    let mut idle = Instant::now();
    // Longer than a program may be delayed on its way here.
    while idle.elapsed() < Duration::from_secs(3) {
        server.poll_once(Duration::from_millis(20)).expect("poll");
        if server.programs() > 0 {
            idle = Instant::now();
        }
    }
}

/// A folder with an executable that runs `script`, and the path of a socket in it.
fn folder(script: &str) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join("ringpass");
    std::fs::write(&program, format!("#!/bin/sh\n{script}\n")).unwrap();
    std::fs::set_permissions(&program, PermissionsExt::from_mode(0o755)).unwrap();
    folder
}

fn start(part: &str, folder: &Path) -> Program {
    let mut command: Command = crate::support::part_at(module_path!(), part, &folder.join("netmap.sock"));
    command.env("RINGPASS_NETMAPD", folder.join("ringpass"));
    Program(command.spawn().unwrap())
}

#[test]
fn programs_that_start_at_once_find_one_server() {
    let this = std::env::current_exe().unwrap();
    let script = format!(
        "[ \"$1 $2 $4\" = 'netmapd --socket --until-idle' ] && [ -z \"$LD_PRELOAD\" ] || exit 1\n\
         echo >> \"$(dirname \"$0\")/started\"\n\
         RINGPASS_TEST_PART=\"netmapd $3\" exec {} --exact start::program",
        this.display()
    );
    let folder = folder(&script);
    for _ in 0..3 {
        let programs = ["send", "receive"].map(|part| start(part, folder.path()));
        for mut program in programs {
            assert!(program.ends_within(Duration::from_secs(60)).success());
        }
        // It ends when no program needs it, and starts again.
        let start = Instant::now();
        while folder.path().join("netmap.sock").exists() {
            assert!(start.elapsed() < Duration::from_secs(30), "it stays");
            std::thread::sleep(Duration::from_millis(10));
        }
    }
    let started = std::fs::read_to_string(folder.path().join("started")).unwrap().lines().count();
    assert!((3..=6).contains(&started), "{started} starts by two programs, three times");
}

#[test]
fn programs_hear_why_there_is_no_server() {
    let folder = folder("exit 1");
    assert!(start("slow", folder.path()).ends_within(Duration::from_secs(60)).success());
    std::fs::remove_file(folder.path().join("ringpass")).unwrap();
    assert!(start("nobody", folder.path()).ends_within(Duration::from_secs(60)).success());
}
