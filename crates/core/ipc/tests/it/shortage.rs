//! A listener in a process that has no descriptor left. The only test of this file, because the limit belongs
//! to the process.

use std::fs::File;
use std::io::Read;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use ringpass_ipc::{AcceptWait, Listener, raise_descriptor_limit};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

fn limit(descriptors: u64) {
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: Some(descriptors), maximum }).expect("a lower limit");
}

/// Returns whether a peer is waiting, as a server would see it.
fn readable(listener: &Listener) -> bool {
    match listener.wait_on() {
        AcceptWait::Readable(fd) => {
            poll(&mut [PollFd::from_borrowed_fd(fd, PollFlags::IN)], Some(&Timespec::default())).expect("poll") > 0
        }
        AcceptWait::Pause(left) => panic!("nobody is let in for {left:?}"),
    }
}

fn connected(path: &std::path::Path) -> UnixStream {
    let stream = UnixStream::connect(path).expect("a listener");
    stream.set_read_timeout(Some(Duration::from_secs(20))).expect("a limit");
    stream
}

#[test]
fn without_descriptors_peers_are_turned_away_with_a_reason() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("socket");
    let listener = Listener::bind(&path).unwrap();
    let peers: Vec<UnixStream> = (0..4).map(|_| connected(&path)).collect();
    limit(64);
    let mut others = Vec::new();
    while let Ok(file) = File::open("/dev/null") {
        others.push(file);
        assert!(others.len() < 100, "no limit");
    }
    for mut peer in &peers[..2] {
        assert!(readable(&listener));
        let accepted = listener.accept(|socket, error| {
            assert_eq!(error.raw_os_error(), Some(24), "EMFILE");
            rustix::io::write(socket, b"full").unwrap();
        });
        assert!(accepted.is_none());
        let mut told = String::new();
        peer.read_to_string(&mut told).unwrap();
        assert_eq!(told, "full");
    }
    others.truncate(others.len() - 3);
    let turned_away = |_: std::os::fd::BorrowedFd<'_>, error| panic!("{error}");
    assert!(listener.accept(turned_away).is_some(), "there is room again");
    // Not even the reserve helps now: the listener pauses instead of trying without end.
    assert!(readable(&listener));
    limit(0);
    assert!(listener.accept(turned_away).is_none());
    assert!(matches!(listener.wait_on(), AcceptWait::Pause(left) if left <= Duration::from_secs(1)));
    raise_descriptor_limit().unwrap();
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    assert_eq!(current, maximum);
    let start = Instant::now();
    let last = loop {
        if let Some(peer) = listener.accept(turned_away) {
            break peer;
        }
        assert!(start.elapsed() < Duration::from_secs(20), "nobody is let in any more");
        std::thread::sleep(Duration::from_millis(5));
    };
    drop(last);
}
