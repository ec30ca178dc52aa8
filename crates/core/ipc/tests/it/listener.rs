//! Listening sockets: bind, replace, accept, and the lock at start.

use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::net::UnixListener;

use ringpass_ipc::{Connecting, Error, Listener, SocketPlace, connect};
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
    // A socket left behind by a process that was killed.
    drop(UnixListener::bind(&path).unwrap());
    assert!(path.exists());
    let listener = Listener::bind(&path).unwrap();
    // If another process has replaced the socket, dropping the listener keeps the new one.
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
    let accept = || listener.accept(|_, error| panic!("{error}"));
    assert!(accept().is_none());
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
    assert!(accept().is_some());
    assert!(matches!(connect(&path).unwrap(), Connecting::Connected(_)));
}

/// Anybody may open a folder for reading and lock it. That must not keep a server from starting.
#[test]
fn a_folder_that_somebody_has_locked_keeps_no_server_from_starting() {
    let folder = tempfile::tempdir().unwrap();
    let opened = std::fs::File::open(folder.path()).unwrap();
    rustix::fs::flock(&opened, rustix::fs::FlockOperation::NonBlockingLockExclusive).unwrap();
    let listener = Listener::bind(&folder.path().join("socket")).unwrap();
    let left: Vec<_> = std::fs::read_dir(folder.path()).unwrap().flatten().map(|entry| entry.file_name()).collect();
    assert_eq!(left, ["socket"], "the lock's file is gone");
    drop(listener);
}

#[test]
fn a_lock_that_is_not_obtained_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let (path, lock) = (folder.path().join("socket"), folder.path().join("socket.lock"));
    let refused = || Listener::bind(&path).err().expect("it is locked").to_string();
    let file = std::fs::File::create(&lock).unwrap();
    assert!(refused().contains("others than its owner may open it"));
    std::fs::set_permissions(&lock, PermissionsExt::from_mode(0o600)).unwrap();
    rustix::fs::flock(&file, rustix::fs::FlockOperation::NonBlockingLockExclusive).unwrap();
    let error = refused();
    assert!(error.contains("socket.lock: another process of this user has locked it"), "{error}");
    // Run as root, this is a lock file that another user created. An ordinary user cannot create that case.
    if chown(&lock, Some(65534), None).is_ok() {
        let error = refused();
        assert!(error.contains("socket.lock: it belongs to user 65534"), "{error}");
    }
    std::fs::remove_file(&lock).unwrap();
    std::os::unix::fs::symlink("/nowhere", &lock).unwrap();
    assert!(Listener::bind(&path).is_err(), "links are not followed");
    drop(file);
    std::fs::remove_file(&lock).unwrap();
    assert!(Listener::bind(&path).is_ok());
}

/// Others may connect as soon as the socket is there, and nobody else.
#[test]
fn a_socket_has_the_mode_and_owners_that_were_given() {
    use std::os::unix::fs::MetadataExt;
    let folder = tempfile::tempdir().unwrap();
    let place: SocketPlace = format!("{}/a,mode=0666,user=12345,group=54321", folder.path().display()).parse().unwrap();
    if !rustix::process::geteuid().is_root() {
        let error = Listener::bind_for(&place.path, &place.access).err().expect("only root may").to_string();
        assert!(error.contains("owner cannot be changed") && !place.path.exists(), "{error}");
        return;
    }
    let listener = Listener::bind_for(&place.path, &place.access).unwrap();
    let socket = std::fs::metadata(&place.path).unwrap();
    assert_eq!((socket.mode() & 0o777, socket.uid(), socket.gid()), (0o666, 12345, 54321));
    std::fs::set_permissions(folder.path(), PermissionsExt::from_mode(0o755)).unwrap();
    let connected = |path: std::path::PathBuf| {
        let other = std::thread::spawn(move || {
            let user = rustix::process::Uid::from_raw(777);
            rustix::thread::set_thread_res_uid(user, user, user).unwrap();
            matches!(connect(&path), Ok(Connecting::Connected(_)))
        });
        other.join().unwrap()
    };
    assert!(connected(place.path.clone()), "anybody may");
    drop(listener);
    // By name; only the user of that name may, and root.
    let named: SocketPlace = format!("{}/b,user=root,mode=600", folder.path().display()).parse().unwrap();
    let _listener = Listener::bind_for(&named.path, &named.access).unwrap();
    assert!(!connected(named.path.clone()));
    for (wrong, why) in
        [("a,mode=8", "octal"), ("a,user=no one", "there is no user"), ("a,owner=x", "no option 'owner'")]
    {
        assert!(wrong.parse::<SocketPlace>().unwrap_err().contains(why));
    }
}
