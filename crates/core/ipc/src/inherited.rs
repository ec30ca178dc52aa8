//! Listening sockets that this process was started with: a service manager has bound them, and keeps them while the service restarts, so
//! that peers who connect then wait instead of failing.

use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use rustix::io::FdFlags;
use rustix::net::{SocketAddrAny, SocketAddrUnix, getsockname};

static SOCKETS: Mutex<Vec<(SocketAddrAny, OwnedFd)>> = Mutex::new(Vec::new());

/// Keeps a listening socket for whoever is going to listen at its address.
///
/// # Errors
/// The socket has no address.
pub fn keep(socket: OwnedFd) -> io::Result<()> {
    rustix::io::fcntl_setfd(&socket, FdFlags::CLOEXEC)?;
    let address = getsockname(&socket)?;
    SOCKETS.lock().unwrap_or_else(PoisonError::into_inner).push((address, socket));
    Ok(())
}

/// Takes the unix socket that is bound to a path.
pub fn take_unix(path: &Path) -> Option<OwnedFd> {
    take(|address| SocketAddrUnix::try_from(address.clone()).is_ok_and(|address| is_at(&address, path)))
}

/// Takes the TCP socket that is bound to an address.
pub fn take_tcp(address: SocketAddr) -> Option<OwnedFd> {
    take(|bound| SocketAddr::try_from(bound.clone()).is_ok_and(|bound| bound == address))
}

/// Returns the addresses of the sockets that nobody has taken, and closes these.
pub fn rest() -> Vec<String> {
    let rest = std::mem::take(&mut *SOCKETS.lock().unwrap_or_else(PoisonError::into_inner));
    let name = |(address, _): (SocketAddrAny, OwnedFd)| match SocketAddrUnix::try_from(address.clone()) {
        Ok(unix) => unix.path().map_or("a socket".into(), |path| path.to_string_lossy().into_owned()),
        Err(_) => SocketAddr::try_from(address).map_or("a socket".into(), |address| address.to_string()),
    };
    rest.into_iter().map(name).collect()
}

fn take(mut is_wanted: impl FnMut(&SocketAddrAny) -> bool) -> Option<OwnedFd> {
    let mut sockets = SOCKETS.lock().unwrap_or_else(PoisonError::into_inner);
    let at = sockets.iter().position(|(address, _)| is_wanted(address))?;
    Some(sockets.swap_remove(at).1)
}

fn is_at(address: &SocketAddrUnix, path: &Path) -> bool {
    use std::os::unix::ffi::OsStrExt;
    address.path_bytes().is_some_and(|bound| bound == path.as_os_str().as_bytes())
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::os::unix::net::UnixListener;

    use super::*;

    #[test]
    fn a_socket_is_taken_once_by_its_address() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("socket");
        keep(UnixListener::bind(&path).expect("a socket").into()).expect("an address");
        let tcp = TcpListener::bind("127.0.0.1:0").expect("a socket");
        let address = tcp.local_addr().expect("an address");
        keep(tcp.into()).expect("an address");
        assert!(take_unix(&folder.path().join("other")).is_none());
        assert!(take_unix(&path).is_some() && take_unix(&path).is_none());
        assert_eq!(rest(), [address.to_string()]);
        assert!(take_tcp(address).is_none());
    }
}
