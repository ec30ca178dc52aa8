//! A client that sends a file whose `close` blocks to each of the servers.

use std::fs::Permissions;
use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::os::fd::AsFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use ringpass_lab::SilentFile;
use ringpass_netmap::client::Port;
use ringpass_netmap::request::Register;
use ringpass_vfio_user::{Access, Client};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};

use crate::common::*;
use crate::switch_hostile::Attacker;

const LIMIT: Duration = Duration::from_secs(30);
/// User who attacks. Root, who runs the servers and their other clients, is another one.
const USER: u32 = 12_345;

/// Connects, sends the file with the first bytes, and waits until the server hangs up.
fn attack(path: &Path, silent: &SilentFile) {
    let files = [silent.as_fd(); 4];
    let socket = UnixStream::connect(path).expect("a server");
    socket.set_read_timeout(Some(LIMIT)).unwrap();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    assert!(control.push(SendAncillaryMessage::ScmRights(&files)));
    sendmsg(&socket, &[IoSlice::new(&[0; 4])], &mut control, SendFlags::NOSIGNAL).unwrap();
    let end = std::io::Read::read(&mut &socket, &mut [0; 64]);
    let reset = |error: std::io::Error| error.kind() == std::io::ErrorKind::ConnectionReset;
    assert!(matches!(end, Ok(0)) || end.is_err_and(reset), "the session goes on");
}

fn attack_as_another_user(path: &Path, silent: &SilentFile, times: u32) {
    std::fs::set_permissions(path, Permissions::from_mode(0o666)).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let user = rustix::process::Uid::from_raw(USER);
            rustix::thread::set_thread_res_uid(user, user, user).expect("another user (as root)");
            (0..times).for_each(|_| attack(path, silent));
        });
    });
}

/// Starts a server twice. Each time it is attacked, serves another client and is killed.
fn survives(start: &[&str], serve: impl Fn(&Path)) {
    let folder = folder();
    std::fs::set_permissions(folder.path(), Permissions::from_mode(0o755)).unwrap();
    let path = folder.path().join("socket");
    let start: Vec<String> = start.iter().map(|part| part.replace("SOCKET", text(&path))).collect();
    let start: Vec<&str> = start.iter().map(String::as_str).collect();
    for _ in 0..2 {
        let mut server = Program::spawn(&start);
        wait_until("the socket", || UnixStream::connect(&path).is_ok());
        let silent = SilentFile::new();
        // More than the processes of one user that may be blocked.
        attack_as_another_user(&path, &silent, 12);
        wait_until("a file that is being closed", || silent.flushes() > 0);
        serve(&path);
        // SIGKILL ends it although the file is still not closed.
        let process = rustix::process::Pid::from_raw(server.id() as i32).unwrap();
        rustix::process::kill_process(process, rustix::process::Signal::KILL).unwrap();
        wait_until("its end", || server.ended().is_some());
    }
}

#[test]
fn a_switch_serves_on_and_can_be_killed() {
    let start = [RINGPASS, "switch", "vhost:SOCKET", "vhost:SOCKET2"];
    survives(&start, |path| drop(Attacker::come(path, 0)));
}

#[test]
fn a_model_serves_on_and_can_be_killed() {
    let start = [RINGPASS, "model", "82599", "--socket", "SOCKET", "--wire", "null"];
    let drive = |path: &Path| {
        let mut client = Client::connect(path, LIMIT).expect("a session");
        let memory = memfd_create("memory", MemfdFlags::CLOEXEC).unwrap();
        ftruncate(&memory, 1 << 20).unwrap();
        client.dma_map(0, 1 << 20, (memory.as_fd(), 0), Access::ReadWrite).expect("memory");
    };
    survives(&start, drive);
}

#[test]
fn netmapd_serves_on_and_can_be_killed() {
    let open = |path: &Path| {
        let name = "vale0:a".parse().expect("a name");
        Port::open(&name, path, Register::default()).expect("a port");
    };
    survives(&[RINGPASS, "netmapd", "--socket", "SOCKET"], open);
}
