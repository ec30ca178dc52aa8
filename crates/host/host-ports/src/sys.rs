//! System calls for interfaces, TAP devices and packet sockets that rustix lacks, each behind a safe function.

#![allow(unsafe_code)]

use std::ffi::c_int;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use ringpass_memory::{Packet, RawBytes};
use ringpass_port::{Error, MacAddress, Offloads};
use ringpass_virtio::net_header;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};

/// `struct ifreq`: the name of an interface, followed by the data of a request or its answer.
#[repr(C, align(8))]
struct IfReq {
    name: [u8; 16],
    data: [u8; 24],
}

const _: () = assert!(size_of::<IfReq>() == size_of::<libc::ifreq>());

impl IfReq {
    /// Creates a request from a name of up to 15 bytes and the first bytes of the data.
    fn new<const N: usize>(name: &str, data: [u8; N]) -> io::Result<Self> {
        let mut request = Self { name: [0; 16], data: [0; 24] };
        if name.len() > 15 {
            return Err(Errno::NAMETOOLONG.into());
        }
        request.name[..name.len()].copy_from_slice(name.as_bytes());
        request.data[..N].copy_from_slice(&data);
        Ok(request)
    }

    fn name(&self) -> String {
        let len = self.name.iter().position(|&byte| byte == 0).unwrap_or(16);
        String::from_utf8_lossy(&self.name[..len]).into_owned()
    }

    fn int(&self) -> c_int {
        c_int::from_ne_bytes([self.data[0], self.data[1], self.data[2], self.data[3]])
    }

    fn short(&self) -> u16 {
        u16::from_ne_bytes([self.data[0], self.data[1]])
    }

    /// Issues a request that makes the kernel read and write this structure and nothing else. All requests
    /// passed to it in this module are of that kind.
    fn ioctl(&mut self, fd: BorrowedFd, request: libc::Ioctl) -> io::Result<()> {
        // SAFETY: `self` has the size, alignment and layout of an `ifreq` and is borrowed mutably for the call.
        // The requests access nothing else (see the doc comment), and any bits are valid in it.
        match unsafe { libc::ioctl(fd.as_raw_fd(), request, std::ptr::from_mut(self)) } {
            -1 => Err(io::Error::last_os_error()),
            _ => Ok(()),
        }
    }
}

/// Creates a TAP interface, or attaches to an existing one, with a newly opened `/dev/net/tun`. With `vnet`,
/// each frame has a virtio-net header.
pub(crate) fn attach_tap(tun: BorrowedFd, name: &str, multi_queue: bool, vnet: bool) -> io::Result<()> {
    let queues = if multi_queue { libc::IFF_MULTI_QUEUE } else { 0 };
    let header = if vnet { libc::IFF_VNET_HDR } else { 0 };
    let flags = (libc::IFF_TAP | libc::IFF_NO_PI | queues | header) as u16;
    let mut request = IfReq::new(name, flags.to_ne_bytes())?;
    request.ioctl(tun, libc::TUNSETIFF)?;
    if vnet {
        let len = net_header::LEN as c_int;
        // SAFETY: TUNSETVNETHDRSZ makes the kernel read a `c_int`; `len` is one, and outlives the call.
        if unsafe { libc::ioctl(tun.as_raw_fd(), libc::TUNSETVNETHDRSZ, &raw const len) } == -1 {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(())
}

/// Sets which offloads the kernel may leave to the reader of a TAP. Without any it passes on complete frames,
/// even if an existing interface had other settings.
pub(crate) fn set_tap_offloads(tun: BorrowedFd, offloads: Offloads) -> io::Result<()> {
    let checksum = if offloads.checksum || offloads.tso { libc::TUN_F_CSUM } else { 0 };
    let tso = if offloads.tso { libc::TUN_F_TSO4 | libc::TUN_F_TSO6 } else { 0 };
    // SAFETY: the argument of TUNSETOFFLOAD is an integer, not a pointer.
    match unsafe { libc::ioctl(tun.as_raw_fd(), libc::TUNSETOFFLOAD, libc::c_ulong::from(checksum | tso)) } {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}

/// Returns the present name of a TAP's interface; an error if the interface was deleted.
pub(crate) fn tap_name(tun: BorrowedFd) -> io::Result<String> {
    let mut request = IfReq::new("", [])?;
    request.ioctl(tun, libc::TUNGETIFF)?;
    Ok(request.name())
}

/// A socket for requests about interfaces, in the network namespace in which it was opened. It is a stream socket
/// without a connection, which can send nothing to anybody: a datagram socket would reach every socket of the
/// machine by an address, which no filter of system calls can read.
pub(crate) struct Interfaces(OwnedFd);

/// An interface, as it was looked up.
pub(crate) struct Interface {
    pub(crate) index: c_int,
    /// Hardware type (`ARPHRD_…`).
    pub(crate) hardware: u16,
    pub(crate) mac: MacAddress,
}

impl From<OwnedFd> for Interfaces {
    fn from(socket: OwnedFd) -> Self {
        Self(socket)
    }
}

impl From<Interfaces> for OwnedFd {
    fn from(interfaces: Interfaces) -> Self {
        interfaces.0
    }
}

impl Interfaces {
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self(socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?))
    }

    fn ask(&self, name: &str, request: libc::c_ulong) -> io::Result<IfReq> {
        let mut answer = IfReq::new(name, [])?;
        answer.ioctl(self.0.as_fd(), request as libc::Ioctl)?;
        Ok(answer)
    }

    /// Returns the name of the interface with this index.
    pub(crate) fn name(&self, index: c_int) -> io::Result<String> {
        let mut request = IfReq::new("", index.to_ne_bytes())?;
        request.ioctl(self.0.as_fd(), libc::SIOCGIFNAME as libc::Ioctl)?;
        Ok(request.name())
    }

    pub(crate) fn index(&self, name: &str) -> io::Result<c_int> {
        Ok(self.ask(name, libc::SIOCGIFINDEX)?.int())
    }

    pub(crate) fn mtu(&self, name: &str) -> io::Result<usize> {
        Ok(self.ask(name, libc::SIOCGIFMTU)?.int().max(0) as usize)
    }

    /// Returns whether the interface with this index is up and has a link. Its name may have changed.
    pub(crate) fn is_running(&self, index: c_int) -> bool {
        const BOTH: c_int = libc::IFF_UP | libc::IFF_RUNNING;
        self.name(index).and_then(|name| self.flags(&name)).is_ok_and(|flags| flags & BOTH == BOTH)
    }

    /// Looks up an interface, for the port of a kind such as `packet`.
    ///
    /// # Errors
    /// There is no such interface.
    pub(crate) fn look_up(&self, kind: &str, interface: &str) -> Result<Interface, Error> {
        let wrong = |what: &str, source| Error::os(format!("{kind}:{interface}: {what}"), source);
        let index = self.index(interface).map_err(|error| match Errno::from_io_error(&error) {
            Some(Errno::NODEV) => {
                Error::NotFound(format!("{kind}:{interface}: no such interface; 'ip link' shows those there are"))
            }
            _ => wrong("looking for the interface", error),
        })?;
        let hardware = self.hardware(interface);
        let (hardware, mac) = hardware.map_err(|error| wrong("reading the hardware address", error))?;
        Ok(Interface { index, hardware, mac })
    }

    /// Sets the MTU. Needs CAP_NET_ADMIN, unless the MTU is the same already.
    pub(crate) fn set_mtu(&self, name: &str, mtu: usize) -> io::Result<()> {
        if self.mtu(name)? == mtu {
            return Ok(());
        }
        let mut request = IfReq::new(name, (mtu as c_int).to_ne_bytes())?;
        request.ioctl(self.0.as_fd(), libc::SIOCSIFMTU as libc::Ioctl)
    }

    /// Returns hardware type (`ARPHRD_…`) and address.
    pub(crate) fn hardware(&self, name: &str) -> io::Result<(u16, MacAddress)> {
        let answer = self.ask(name, libc::SIOCGIFHWADDR)?;
        let [_, _, a, b, c, d, e, f, ..] = answer.data;
        Ok((answer.short(), MacAddress([a, b, c, d, e, f])))
    }

    /// Returns the interface's flags (`IFF_…`).
    pub(crate) fn flags(&self, name: &str) -> io::Result<c_int> {
        Ok(c_int::from(self.ask(name, libc::SIOCGIFFLAGS)?.short()))
    }

    /// Brings the interface up. Needs CAP_NET_ADMIN, unless it is up already.
    pub(crate) fn set_up(&self, name: &str) -> io::Result<()> {
        let flags = self.flags(name)?;
        if flags & libc::IFF_UP != 0 {
            return Ok(());
        }
        let mut request = IfReq::new(name, ((flags | libc::IFF_UP) as u16).to_ne_bytes())?;
        request.ioctl(self.0.as_fd(), libc::SIOCSIFFLAGS as libc::Ioctl)
    }
}

/// Returns the largest Rx and Tx ring sizes of a kernel interface, in descriptors, if its driver reports them.
pub fn max_ring_sizes(interface: &str) -> Option<(u32, u32)> {
    const ETHTOOL_GRINGPARAM: u32 = 0x10;
    // struct ethtool_ringparam: command; largest Rx, mini, jumbo and Tx ring; present sizes of these.
    let rings = ethtool(interface, ETHTOOL_GRINGPARAM)?;
    Some((rings[1], rings[4]))
}

/// Returns the number of Rx queues of a kernel interface, if its driver reports them.
pub(crate) fn rx_queues(interface: &str) -> Option<u32> {
    const ETHTOOL_GCHANNELS: u32 = 0x3c;
    // struct ethtool_channels: command; largest number of Rx, Tx, other and combined channels; present numbers of these.
    let channels = ethtool(interface, ETHTOOL_GCHANNELS)?;
    Some(channels[5].saturating_add(channels[8]))
}

/// Returns the number of Rx queues of a kernel interface, with those that its driver has added for an XDP program, if sysfs shows them.
pub(crate) fn rx_queues_in_sysfs(interface: &str, index: i32) -> Option<u32> {
    let folder = format!("/sys/class/net/{interface}");
    // The folder may be that of another network namespace.
    let number = std::fs::read_to_string(format!("{folder}/ifindex")).ok()?;
    if number.trim().parse() != Ok(index) {
        return None;
    }
    let queues = std::fs::read_dir(format!("{folder}/queues")).ok()?;
    Some(queues.flatten().filter(|queue| queue.file_name().as_encoded_bytes().starts_with(b"rx-")).count() as u32)
}

/// Returns the name of a kernel interface's driver.
pub(crate) fn driver(interface: &str) -> Option<String> {
    const ETHTOOL_GDRVINFO: u32 = 3;
    // struct ethtool_drvinfo: command; the driver's name, in 32 bytes that end with zeros.
    let info = ethtool(interface, ETHTOOL_GDRVINFO)?;
    let name = info[1..9].iter().flat_map(|word| word.to_ne_bytes());
    String::from_utf8(name.take_while(|byte| *byte != 0).collect()).ok()
}

/// Asks the driver of an interface for a structure of 32-bit numbers, which the first one, the command, selects; zeros follow.
fn ethtool(interface: &str, command: u32) -> Option<[u32; 49]> {
    let mut numbers = [0; 49];
    numbers[0] = command;
    let mut request = IfReq::new(interface, (&raw mut numbers).expose_provenance().to_ne_bytes()).ok()?;
    let socket = Interfaces::new().ok()?.0;
    // SAFETY: `request` is an `ifreq` whose data is a pointer to `numbers`. That has the layout, and at least the
    // size, that the kernel reads and writes for the commands of this module, and both outlive the call.
    match unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCETHTOOL as libc::Ioctl, &raw mut request) } {
        -1 => None,
        _ => Some(numbers),
    }
}

/// Lets a socket drive the card's receiving by its system calls (Linux 5.11, networking/napi, "Busy polling"). Needs CAP_NET_ADMIN.
pub(crate) fn prefer_busy_polling(socket: BorrowedFd) -> io::Result<()> {
    const SO_PREFER_BUSY_POLL: c_int = 69;
    const SO_BUSY_POLL_BUDGET: c_int = 70;
    // Not zero; a call does not wait, as it is told not to.
    const MICROSECONDS: c_int = 20;
    const FRAMES: c_int = 64;
    for (option, value) in [(SO_PREFER_BUSY_POLL, 1), (libc::SO_BUSY_POLL, MICROSECONDS), (SO_BUSY_POLL_BUDGET, FRAMES)]
    {
        set_option(socket, libc::SOL_SOCKET, option, value)?;
    }
    Ok(())
}

/// Sets an option of a packet socket. All options that Ringpass uses take plain values without pointers.
pub(crate) fn set_packet_option<T: Copy>(socket: BorrowedFd, option: c_int, value: T) -> io::Result<()> {
    set_option(socket, libc::SOL_PACKET, option, value)
}

fn set_option<T: Copy>(socket: BorrowedFd, level: c_int, option: c_int, value: T) -> io::Result<()> {
    let len = size_of::<T>() as libc::socklen_t;
    // SAFETY: the kernel reads `len` bytes of `value`, which is that long and outlives the call.
    match unsafe { libc::setsockopt(socket.as_raw_fd(), level, option, (&raw const value).cast(), len) } {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}

/// Reads an option of a packet socket that consists of `N` 32-bit numbers.
pub(crate) fn packet_option<const N: usize>(socket: BorrowedFd, option: c_int) -> io::Result<[u32; N]> {
    let mut value = [0u32; N];
    let mut len = size_of_val(&value) as libc::socklen_t;
    // SAFETY: the kernel writes at most `len` bytes, the size of `value`. Any bits are valid in it.
    match unsafe { libc::getsockopt(socket.as_raw_fd(), libc::SOL_PACKET, option, value.as_mut_ptr().cast(), &mut len) }
    {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(value),
    }
}

/// Makes an interface enter promiscuous mode, or leave it; it also leaves it when the packet socket is closed.
pub(crate) fn set_promiscuous_membership(socket: BorrowedFd, interface: c_int, on: bool) -> io::Result<()> {
    let request = libc::packet_mreq {
        mr_ifindex: interface,
        mr_type: libc::PACKET_MR_PROMISC as u16,
        mr_alen: 0,
        mr_address: [0; 8],
    };
    let option = if on { libc::PACKET_ADD_MEMBERSHIP } else { libc::PACKET_DROP_MEMBERSHIP };
    set_packet_option(socket, option, request)
}

/// Binds a packet socket to an interface. The socket receives frames of `protocol`; none if it is 0.
pub(crate) fn bind_packet(socket: BorrowedFd, interface: c_int, protocol: c_int) -> io::Result<()> {
    let address = libc::sockaddr_ll {
        sll_family: libc::AF_PACKET as u16,
        sll_protocol: (protocol as u16).to_be(),
        sll_ifindex: interface,
        sll_hatype: 0,
        sll_pkttype: 0,
        sll_halen: 0,
        sll_addr: [0; 8],
    };
    let len = size_of_val(&address) as libc::socklen_t;
    // SAFETY: the kernel reads `len` bytes of `address`, which is that long and outlives the call.
    match unsafe { libc::bind(socket.as_raw_fd(), (&raw const address).cast(), len) } {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}

/// Returns whether the interface that a packet socket was bound to still exists in its network namespace. The
/// kernel sets the socket's interface index to -1 when it does not.
pub(crate) fn packet_interface_exists(socket: BorrowedFd) -> bool {
    // SAFETY: `sockaddr_ll` consists of integers, for which all bits zero is valid.
    let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
    let mut len = size_of_val(&address) as libc::socklen_t;
    // SAFETY: the kernel writes at most `len` bytes, the size of `address`.
    let failed = unsafe { libc::getsockname(socket.as_raw_fd(), (&raw mut address).cast(), &mut len) };
    failed == 0 && address.sll_ifindex > 0
}

/// Sends frames from the front of a slice in one system call, each with a virtio-net header if `header` is set.
/// Returns how many were sent.
pub(crate) fn send_frames(socket: BorrowedFd, frames: &[Packet], header: bool) -> Result<usize, Errno> {
    const MAX_MESSAGES: usize = 64;
    /// Largest number of pieces of all frames together.
    const PIECES: usize = 256;
    let empty = libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 };
    let mut vectors = [empty; PIECES];
    let mut headers = [[0u8; net_header::LEN]; MAX_MESSAGES];
    // SAFETY: all bits zero is a valid `mmsghdr`: null pointers with zero lengths.
    let mut messages: [libc::mmsghdr; MAX_MESSAGES] = unsafe { std::mem::zeroed() };
    let (mut count, mut used) = (0, 0);
    for ((frame, head), message) in frames.iter().zip(&mut headers).zip(&mut messages) {
        let first = used;
        if header {
            *head = net_header::encode(frame);
        }
        let header = header.then_some(&head[..]);
        let mut pieces = header.map(RawBytes::from).into_iter().chain(frame.segments().map(Packet::bytes));
        for (vector, piece) in vectors[first..].iter_mut().zip(&mut pieces) {
            *vector = libc::iovec { iov_base: piece.as_ptr().cast_mut().cast(), iov_len: piece.len() };
            used += 1;
        }
        if pieces.next().is_some() {
            break;
        }
        message.msg_hdr.msg_iov = &raw mut vectors[first];
        message.msg_hdr.msg_iovlen = used - first;
        count += 1;
    }
    if count == 0 {
        // The first frame alone has more pieces than this.
        return Err(Errno::MSGSIZE);
    }
    // SAFETY: the first `count` messages point to elements of `vectors`, which in turn point to `headers` and
    // to buffers of `frames`, each with its length. All of these outlive the call, and the kernel only reads
    // the frames.
    match unsafe {
        libc::sendmmsg(socket.as_raw_fd(), messages.as_mut_ptr(), count as u32, libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL)
    } {
        -1 => Err(Errno::from_io_error(&io::Error::last_os_error()).unwrap_or(Errno::IO)),
        sent => Ok(sent as usize),
    }
}

/// Largest number of buffers of a frame, not counting the header in front of it.
pub(crate) const MAX_IOVECS: usize = 64;
const NO_PIECE: libc::iovec = libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 };

/// Reads a frame into a packet, at most as many bytes as the packet has. Returns the number of bytes read.
#[inline]
pub(crate) fn read_packet(fd: BorrowedFd, packet: &mut Packet) -> Result<usize, Errno> {
    // SAFETY: the kernel writes at most `len()` bytes to the packet's buffer, which holds them, and to which
    // there are only raw pointers. The packet is borrowed mutably.
    bytes(unsafe { libc::read(fd.as_raw_fd(), packet.as_ptr().cast(), packet.len()) })
}

/// Reads a header and then a frame into up to [`MAX_IOVECS`] packets, at most as many bytes as each has.
/// Returns the number of bytes read.
pub(crate) fn read_packets<'a>(
    fd: BorrowedFd,
    header: &mut [u8],
    packets: impl Iterator<Item = &'a mut Packet>,
) -> Result<usize, Errno> {
    let mut vectors = [NO_PIECE; MAX_IOVECS + 1];
    vectors[0] = libc::iovec { iov_base: header.as_mut_ptr().cast(), iov_len: header.len() };
    let mut count: c_int = 1;
    for (vector, packet) in vectors[1..].iter_mut().zip(packets) {
        *vector = libc::iovec { iov_base: packet.as_ptr().cast(), iov_len: packet.len() };
        count += 1;
    }
    // SAFETY: the first `count` vectors describe `header`, borrowed mutably, and the bytes of packets inside
    // their buffers, to which there are only raw pointers. All of these outlive the call.
    bytes(unsafe { libc::readv(fd.as_raw_fd(), vectors.as_ptr(), count) })
}

/// Writes a frame in one buffer.
#[inline]
pub(crate) fn write_packet(fd: BorrowedFd, packet: &Packet) -> Result<usize, Errno> {
    // SAFETY: the kernel reads `len()` bytes of the packet's buffer, which holds them and is borrowed for the
    // call.
    bytes(unsafe { libc::write(fd.as_raw_fd(), packet.as_ptr().cast(), packet.len()) })
}

/// Writes a header followed by a frame of up to [`MAX_IOVECS`] buffers.
pub(crate) fn write_packets(fd: BorrowedFd, header: &[u8], packet: &Packet) -> Result<usize, Errno> {
    let mut vectors = [NO_PIECE; MAX_IOVECS + 1];
    vectors[0] = libc::iovec { iov_base: header.as_ptr().cast_mut().cast(), iov_len: header.len() };
    let mut count = 1;
    for segment in packet.segments() {
        let piece = libc::iovec { iov_base: segment.as_ptr().cast(), iov_len: segment.len() };
        *vectors.get_mut(count).ok_or(Errno::MSGSIZE)? = piece;
        count += 1;
    }
    // SAFETY: the first `count` vectors describe `header` and the packet's segments. The kernel only reads
    // them, and they are borrowed for the call.
    bytes(unsafe { libc::writev(fd.as_raw_fd(), vectors.as_ptr(), count as c_int) })
}

/// Converts the return value of a system call that reads or writes bytes.
fn bytes(answer: isize) -> Result<usize, Errno> {
    usize::try_from(answer).map_err(|_| Errno::from_io_error(&io::Error::last_os_error()).unwrap_or(Errno::IO))
}
