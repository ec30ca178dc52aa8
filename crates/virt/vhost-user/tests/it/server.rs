//! Tests of the control thread: which front-ends are accepted, which are turned away, and how it ends.

use std::io::Read;
use std::net::Shutdown;
use std::os::fd::AsFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::common::*;
use ringpass_ipc::Error;
use ringpass_port::Role;
use ringpass_testing::poll_until;
use ringpass_vhost_user::*;
use ringpass_virtio::features::VERSION_1;

fn serve_at(path: &Path, role: Role) -> (MockDevice, ServerHandle) {
    let mock = MockDevice::default();
    let control =
        serve(Endpoint { path: path.into(), role, access: Default::default() }, Box::new(mock.clone())).unwrap();
    (mock, control)
}

fn place() -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("guest");
    (folder, path)
}

fn connect(path: &Path) -> Front {
    let stream = UnixStream::connect(path).unwrap();
    stream.set_read_timeout(Some(LIMIT)).unwrap();
    Front(stream)
}

fn ask(front: &mut Front, request: &Request) -> Reply {
    front.send(&request.message(Kind::NeedsReply), &[]);
    front.reply(request.command())
}

/// Sends all that starts a ring.
fn drive(front: &mut Front, mock: &MockDevice) {
    assert_eq!(ask(front, &Request::GetFeatures), Reply::Number(OFFERED));
    let file = memfd(MEMORY);
    let tell = |request: Request, fds: &[_]| front.send(&request.message(Kind::Request), fds);
    tell(Request::SetProtocolFeatures(PROTOCOL), &[]);
    tell(Request::SetFeatures(VERSION_1 | features::PROTOCOL_FEATURES), &[]);
    tell(Request::SetMemTable(vec![region(0, MEMORY, 0)]), &[file.as_fd()]);
    tell(Request::SetVringNum { index: 0, num: 256 }, &[]);
    tell(Request::SetVringAddr(address(0)), &[]);
    tell(Request::SetVringKick(fd_of(0)), &[event().as_fd()]);
    assert_eq!(ask(front, &Request::SetVringEnable { index: 0, on: true }), Reply::Number(0));
    assert_eq!(mock.running(), [0]);
}

/// Returns whether the other end has hung up.
fn hung_up(front: &mut Front) -> bool {
    matches!(front.0.read(&mut [0; 16]), Ok(0) | Err(_))
}

/// Line 9 of the list of hostile inputs (`docs/security.md`).
#[test]
fn one_front_end_after_the_other() {
    let (_folder, path) = place();
    // Leftover socket of a back-end that was killed.
    drop(UnixListener::bind(&path).unwrap());
    let (mock, control) = serve_at(&path, Role::Listen);
    for _ in 0..3 {
        let mut front = connect(&path);
        drive(&mut front, &mock);
        // A second front-end is turned away at once, a hundred times, whatever it sends; the first does not notice.
        for _ in 0..100 {
            let mut second = connect(&path);
            let _ = second.try_send(&Request::GetFeatures.message(Kind::Request), &[]);
            assert!(hung_up(&mut second));
        }
        assert_eq!(ask(&mut front, &Request::SetOwner), Reply::Number(0));
        assert_eq!((mock.running(), mock.state().starts), (vec![0], 1));
        drop(front);
        poll_until("an end", || mock.is_fresh());
    }
    assert_eq!(mock.state().ended, ["the front-end has closed the connection"; 3]);
    // No other server may use the path.
    let other = serve(
        Endpoint { path: path.clone(), role: Role::Listen, access: Default::default() },
        Box::new(MockDevice::default()),
    );
    assert!(matches!(other.err().unwrap(), Error::InUse(_)));
    drop(control);
    assert!(!path.exists());
}

#[test]
fn the_end_comes_at_once() {
    let (_folder, path) = place();
    for connected in [false, true] {
        let (mock, control) = serve_at(&path, Role::Listen);
        let front = connected.then(|| {
            let mut front = connect(&path);
            drive(&mut front, &mock);
            front
        });
        let start = Instant::now();
        drop(control);
        assert!(start.elapsed() < LIMIT);
        assert!(mock.is_fresh() && !path.exists());
        if let Some(mut front) = front {
            assert!(hung_up(&mut front));
            assert_eq!(mock.state().ended, ["the port is closed"]);
        }
    }
    // The same for a server that waits for a front-end to connect to.
    let (_toy, control) = serve_at(&path, Role::Connect);
    let start = Instant::now();
    drop(control);
    assert!(start.elapsed() < LIMIT);
}

#[test]
fn it_connects_and_connects_again() {
    let (_folder, path) = place();
    let (mock, _control) = serve_at(&path, Role::Connect);
    std::thread::sleep(Duration::from_millis(250));
    for round in 0..3 {
        // The front-end starts later and removes its socket when it leaves.
        let listener = UnixListener::bind(&path).unwrap();
        for _ in 0..2 {
            let (stream, _) = listener.accept().unwrap();
            stream.set_read_timeout(Some(LIMIT)).unwrap();
            let mut front = Front(stream);
            drive(&mut front, &mock);
            drop(front);
            poll_until("an end", || mock.is_fresh());
        }
        drop(listener);
        std::fs::remove_file(&path).unwrap();
        assert!(mock.state().ended.len() >= 2 * (round + 1));
    }
}

/// Line 9. Half-closed sockets: a front-end that has closed its sending side has gone, and one that has closed its
/// receiving side has gone at the next reply. The next front-end is served.
#[test]
fn half_open_sockets() {
    let (_folder, path) = place();
    let (mock, _control) = serve_at(&path, Role::Listen);
    for half in [Shutdown::Write, Shutdown::Read] {
        let mut front = connect(&path);
        drive(&mut front, &mock);
        front.0.shutdown(half).unwrap();
        if matches!(half, Shutdown::Read) {
            let question = Request::GetFeatures.message(Kind::Request);
            poll_until("an end", || front.try_send(&question, &[]).is_err() || mock.is_fresh());
        }
        poll_until("an end", || mock.is_fresh());
    }
    let mut front = connect(&path);
    drive(&mut front, &mock);
}

/// A broken ring ends its session although the front-end sends nothing; the next front-end is served.
#[test]
fn a_guest_that_breaks_the_rules() {
    let (_folder, path) = place();
    let (mock, _control) = serve_at(&path, Role::Listen);
    for _ in 0..2 {
        let mut front = connect(&path);
        drive(&mut front, &mock);
        mock.state().fault = Some("ring 0: the guest made 700 chains available".into());
        assert!(hung_up(&mut front));
        poll_until("an end", || mock.is_fresh());
    }
    assert_eq!(mock.state().ended, ["ring 0: the guest made 700 chains available"; 2]);
}
