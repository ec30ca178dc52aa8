//! The place in the file system where peers meet.

use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;

use ringpass_peer::{Connecting, Error, Listener, connect};
use rustix::io::Errno;

#[test]
fn one_listener_at_a_place() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("socket");
    let listener = Listener::bind(&path).unwrap();
    assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    let error = Listener::bind(&path).err().unwrap();
    assert!(matches!(error, Error::InUse(_)), "{error}");
    drop(listener);
    assert!(!path.exists(), "removed");
    // What a process left that was killed.
    drop(UnixListener::bind(&path).unwrap());
    assert!(path.exists());
    let listener = Listener::bind(&path).unwrap();
    // Replaced by another while it was served: that one's stays.
    std::fs::remove_file(&path).unwrap();
    let other = UnixListener::bind(&path).unwrap();
    drop(listener);
    assert!(path.exists());
    drop(other);
    std::fs::remove_file(&path).unwrap();
    std::fs::write(&path, "precious").unwrap();
    assert!(matches!(Listener::bind(&path).err().unwrap(), Error::NoSocket(_)));
    assert_eq!(std::fs::read(&path).unwrap(), b"precious");
    assert!(Listener::bind(&folder.path().join("no/such/folder")).is_err());
    assert!(Listener::bind(&folder.path().join("x".repeat(200))).err().unwrap().to_string().contains("107 bytes"));
}

#[test]
fn who_connects_is_told_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("socket");
    assert!(matches!(connect(&path).unwrap(), Connecting::Refused(Errno::NOENT)));
    drop(UnixListener::bind(&path).unwrap());
    assert!(matches!(connect(&path).unwrap(), Connecting::Refused(Errno::CONNREFUSED)));
    let listener = Listener::bind(&path).unwrap();
    assert!(listener.accept().unwrap().is_none());
    let mut waiting = Vec::new();
    let queued = (0..100).any(|_| match connect(&path).unwrap() {
        Connecting::Connected(socket) => {
            waiting.push(socket);
            false
        }
        Connecting::Queued => true,
        Connecting::Refused(errno) => panic!("{errno}"),
    });
    assert!(queued && !waiting.is_empty(), "{} wait", waiting.len());
    assert!(listener.accept().unwrap().is_some());
    assert!(matches!(connect(&path).unwrap(), Connecting::Connected(_)));
}
