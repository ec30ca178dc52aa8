//! Ports that one process opens and another one uses. The one that uses them is in its sandbox and could not open them; it gets their descriptors.

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use ringpass_host_ports::{Null, Tap, TapFiles};
use ringpass_ipc::{Connecting, Listener, connect, with_connections};
use ringpass_memory::Mempool;
use ringpass_netmap::client::default_socket;
use ringpass_port::{Address, Error, Port, PortConfig, Role, VhostConfig, XdpConfig};
use ringpass_vhost::{CopyModes, Vhost};
use rustix::io::Errno;

use crate::config::{Config, check_ranges};
use crate::open::open_address;
use crate::sandbox::Needs;

/// Opens what a port needs, for another process, which makes a port of it with [`adopt`]: the descriptors of a TAP, the listening socket of a guest,
/// or connections to who serves the port.
///
/// # Errors
/// Ports of this kind cannot be passed on, or this one cannot be opened.
pub fn open_for(address: &Address, port_config: &PortConfig) -> Result<Vec<OwnedFd>, Error> {
    match Way::of(address)? {
        Way::Nothing => Ok(Vec::new()),
        Way::Tap(name) => TapFiles::open(name, port_config).map(TapFiles::into_descriptors),
        Way::Listener(vhost) => Ok(vec![Listener::bind_for(&vhost.path, &vhost.access)?.into_socket()]),
        Way::Connections => {
            let sockets = sockets(address, port_config)?;
            sockets.iter().map(|path| connected(address, path)).collect()
        }
    }
}

/// Returns whether [`open_for`] opens ports of this kind.
///
/// # Errors
/// It does not; in a line.
pub fn can_be_passed_on(address: &Address) -> Result<(), Error> {
    Way::of(address).map(drop)
}

/// Prepares what [`adopt`] needs and no sandbox allows.
///
/// # Errors
/// The kernel refuses it.
pub fn prepare_to_adopt() -> Result<(), Error> {
    ringpass_ipc::prepare_notifiers().map_err(|source| Error::os("interrupting guests", source))
}

/// Makes a port of descriptors that another process has [opened](open_for), with packets from `pool`. In a sandbox,
/// [`prepare_to_adopt`] was called before that was entered. May take as long as who serves the port takes to answer, up to 30 seconds.
///
/// # Errors
/// They are not those of such a port; it cannot be opened.
pub fn adopt(
    address: &Address,
    descriptors: Vec<OwnedFd>,
    port_config: &PortConfig,
    pool: &Mempool,
) -> Result<Box<dyn Port>, Error> {
    check_ranges(port_config)?;
    Ok(match Way::of(address)? {
        Way::Nothing => Box::new(Null::open(port_config)),
        Way::Tap(name) => Box::new(Tap::of_descriptors(name, descriptors, port_config, pool)?),
        Way::Listener(vhost) => {
            let [socket] = <[OwnedFd; 1]>::try_from(descriptors).map_err(|descriptors| {
                Error::Fault(format!("{address}: {} descriptors have come, not 1", descriptors.len()))
            })?;
            let listener = Listener::of_socket(socket, &vhost.path)?;
            Box::new(Vhost::of_listener(vhost, port_config, pool, CopyModes::default(), listener)?)
        }
        Way::Connections => with_connections(descriptors, || match address {
            // The socket's place is not looked for.
            Address::Netmap(name) => {
                ringpass_netmap::open(name, Path::new("the one of 'ringpass ctl'"), port_config, pool)
            }
            other => open_address(other, port_config, pool, &Config::default(), &mut Needs::default()),
        })?,
    })
}

/// Returns the sockets of who serves a port, one for each connection that it takes.
fn sockets(address: &Address, port_config: &PortConfig) -> Result<Vec<PathBuf>, Error> {
    Ok(match address {
        Address::VfioUser(path) => {
            // The memory of a netmap port that is passed through, and of no other card, is served beside it.
            let mut memory = path.as_os_str().to_owned();
            memory.push(".mem");
            let memory = Some(PathBuf::from(memory)).filter(|memory| memory.exists());
            std::iter::once(path.clone()).chain(memory).collect()
        }
        // Each queue has rings of its own.
        Address::Netmap(_) => vec![default_socket()?; port_config.queues],
        Address::Xdp(XdpConfig { socket, .. }) => socket.iter().cloned().collect(),
        _ => Vec::new(),
    })
}

/// Connects to who serves a port, who may be busy with others for some time.
fn connected(address: &Address, path: &Path) -> Result<OwnedFd, Error> {
    const LIMIT: Duration = Duration::from_secs(5);
    let start = Instant::now();
    let failed = |errno: Errno| Error::os(format!("{address}: {}: is a server running there?", path.display()), errno);
    loop {
        match connect(path)? {
            Connecting::Connected(socket) => return Ok(socket),
            Connecting::Queued if start.elapsed() < LIMIT => std::thread::sleep(Duration::from_millis(1)),
            Connecting::Queued => return Err(failed(Errno::AGAIN)),
            Connecting::Refused(errno) => return Err(failed(errno)),
        }
    }
}

/// How a port is passed on.
enum Way<'a> {
    /// It needs nothing.
    Nothing,
    Tap(&'a str),
    Listener(&'a VhostConfig),
    /// Connections to who serves it.
    Connections,
}

impl<'a> Way<'a> {
    fn of(address: &'a Address) -> Result<Self, Error> {
        Ok(match address {
            Address::Null => Self::Nothing,
            Address::Tap(name) => Self::Tap(name),
            Address::Vhost(vhost) if vhost.role == Role::Listen => Self::Listener(vhost),
            Address::VfioUser(_) | Address::Netmap(_) | Address::Xdp(XdpConfig { socket: Some(_), .. }) => {
                Self::Connections
            }
            other => {
                let kinds =
                    "tap:, vhost: (without client), vfio-user:, vale and netmap ports, xdp: with socket=, and null";
                return Err(Error::Unsupported(format!(
                    "{other}: ports of this kind are opened at the start only; those that can be added are {kinds}"
                )));
            }
        })
    }
}
