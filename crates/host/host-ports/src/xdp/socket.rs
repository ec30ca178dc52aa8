//! An AF_XDP socket, with the pool's memory as its umem.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use ringpass_memory::{HEADROOM, Mempool, PAGE_BUFFER_SIZE, Packet, PageSize};
use ringpass_port::{Error, MAX_L2_HEADER_LEN, XdpTransfer};
use rustix::io::Errno;
use rustix::net::xdp::{
    SocketAddrXdp, SocketAddrXdpFlags, SocketAddrXdpWithSharedUmem, XDP_PGOFF_RX_RING, XDP_PGOFF_TX_RING,
    XDP_UMEM_PGOFF_COMPLETION_RING, XDP_UMEM_PGOFF_FILL_RING, XSK_UNALIGNED_BUF_ADDR_MASK,
    XSK_UNALIGNED_BUF_OFFSET_SHIFT, XdpDesc, XdpOptionsFlags, XdpUmemReg, XdpUmemRegFlags,
};
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, socket_with, sockopt};

use super::ring::{Consumer, Producer};
use super::tx_metadata;

/// Bytes that the kernel keeps free in front of a received frame (`XDP_PACKET_HEADROOM`).
const KERNEL_HEADROOM: usize = 256;
/// Smallest and largest size of a chunk of a umem (`XDP_UMEM_MIN_CHUNK_SIZE`, and a page).
const CHUNKS: std::ops::RangeInclusive<usize> = 2048..=4096;
/// Most buffers of a frame (`MAX_SKB_FRAGS`).
pub(super) const MAX_PIECES: usize = 17;

/// Numbers of bits that addresses are shifted by.
#[derive(Clone, Copy)]
struct Shifts {
    number: u8,
    offset: u8,
}

impl Shifts {
    fn of(pages: bool) -> Self {
        match pages {
            true => Self { number: CHUNKS.end().ilog2() as u8, offset: 0 },
            false => Self { number: CHUNKS.start().ilog2() as u8, offset: XSK_UNALIGNED_BUF_OFFSET_SHIFT as u8 },
        }
    }
}

/// The pool's memory as the kernel knows it.
#[derive(Clone, Copy)]
pub(super) struct Umem {
    /// Address of its first byte in this process, from which the kernel's addresses count.
    start: u64,
    len: u64,
    /// Bytes of a buffer that the kernel may use.
    chunk: u32,
    /// Whether each buffer is a page. Otherwise their distance is an odd number of cache lines, and they are "unaligned chunks".
    pages: bool,
    /// Bits of an address behind those of a buffer's number, and behind those of an offset that stands apart.
    shifts: Shifts,
    /// Whether frames may need several buffers.
    in_pieces: bool,
    /// Whether each buffer is contiguous for a card, without which the kernel neither fills nor sends it in zero-copy mode.
    contiguous: bool,
}

impl Umem {
    /// Describes the memory of a pool for frames of this MTU.
    ///
    /// # Errors
    /// The buffers are too short.
    pub(super) fn new(pool: &Mempool, mtu: usize) -> Result<Self, String> {
        let (chunk, longest) = ((HEADROOM + pool.buffer_size()).min(*CHUNKS.end()), mtu + MAX_L2_HEADER_LEN);
        let room = chunk.saturating_sub(KERNEL_HEADROOM);
        if chunk < *CHUNKS.start() || longest > room * MAX_PIECES {
            return Err(format!(
                "packet buffers of {} bytes are too short; make them {} at least",
                pool.buffer_size(),
                CHUNKS.start() - HEADROOM
            ));
        }
        let region = pool.region();
        let pages = pool.buffer_size() == PAGE_BUFFER_SIZE;
        let contiguous = pages || region.config().pages != PageSize::Ordinary;
        Ok(Self {
            start: region.at(0) as u64,
            len: region.len() as u64,
            chunk: chunk as u32,
            pages,
            shifts: Shifts::of(pages),
            in_pieces: longest > room,
            contiguous,
        })
    }

    /// Bits of [`flags`](Self::flags).
    const PAGES: u32 = 1 << 0;
    const IN_PIECES: u32 = 1 << 1;
    const CONTIGUOUS: u32 = 1 << 2;

    /// Describes the memory of another process, which is mapped at `start`, as that process describes it.
    ///
    /// # Errors
    /// What is wrong with it. Where it lies about the rest, its own frames are lost.
    pub(super) fn of_peer(start: u64, len: u64, chunk: u32, flags: u32) -> Result<Self, &'static str> {
        let pages = flags & Self::PAGES != 0;
        let page = *CHUNKS.end() as u64;
        if !CHUNKS.contains(&(chunk as usize)) || pages && u64::from(chunk) != page {
            return Err("packet buffers of 2048 to 4096 bytes, or of a page each");
        }
        if len == 0 || !len.is_multiple_of(page) {
            return Err("memory of whole pages");
        }
        let (in_pieces, contiguous) = (flags & Self::IN_PIECES != 0, flags & Self::CONTIGUOUS != 0);
        Ok(Self { start, len, chunk, pages, shifts: Shifts::of(pages), in_pieces, contiguous })
    }

    /// Length in bytes.
    pub(super) fn len(&self) -> u64 {
        self.len
    }

    /// Bytes of a buffer that the kernel may use.
    pub(super) fn chunk(&self) -> u32 {
        self.chunk
    }

    /// The rest, for another process.
    pub(super) fn flags(&self) -> u32 {
        let bit = |is: bool, bit| if is { bit } else { 0 };
        bit(self.pages, Self::PAGES) | bit(self.in_pieces, Self::IN_PIECES) | bit(self.contiguous, Self::CONTIGUOUS)
    }

    /// Whether a card may read and write this memory.
    pub(super) fn is_contiguous(&self) -> bool {
        self.contiguous
    }

    /// Whether frames may need several buffers.
    pub(super) fn is_in_pieces(&self) -> bool {
        self.in_pieces
    }

    /// Most buffers, if each has a number of its own by [`number`](Self::number).
    pub(super) fn numbers(&self) -> usize {
        (self.len / *CHUNKS.start() as u64) as usize
    }

    /// A number of the buffer at an address, also with an offset, and of no other buffer: no two start within the smallest size of a
    /// chunk.
    #[inline]
    pub(super) fn number(&self, address: u64) -> usize {
        ((address & XSK_UNALIGNED_BUF_ADDR_MASK) >> self.shifts.number) as usize
    }

    /// The kernel's address of a packet's buffer; `None` if that is not in this memory.
    #[inline]
    pub(super) fn base(&self, packet: &Packet) -> Option<u64> {
        let start = packet.as_ptr() as u64 - packet.headroom() as u64;
        let base = start.wrapping_sub(self.start);
        (base < self.len).then_some(base)
    }

    /// The address that is `offset` bytes, fewer than 65,536, behind the start of a buffer. Unaligned chunks have the offset apart, in the
    /// upper 16 bits.
    #[inline]
    pub(super) fn with_offset(&self, base: u64, offset: usize) -> u64 {
        base + ((offset as u64) << self.shifts.offset)
    }

    /// The offset of an address from the start of the memory.
    #[inline]
    pub(super) fn offset(&self, address: u64) -> u64 {
        (address & XSK_UNALIGNED_BUF_ADDR_MASK) + (address >> XSK_UNALIGNED_BUF_OFFSET_SHIFT)
    }

    /// Bytes from a packet's start to the byte at this [offset](Self::offset), modulo 2^64.
    #[inline]
    pub(super) fn behind(&self, packet: &Packet, offset: u64) -> usize {
        (self.start + offset).wrapping_sub(packet.as_ptr() as u64) as usize
    }
}

/// An AF_XDP socket with its rings, bound to a queue.
pub(super) struct Socket {
    pub(super) fd: OwnedFd,
    pub(super) fill: Producer<u64>,
    pub(super) rx: Consumer<XdpDesc>,
    pub(super) tx: Producer<XdpDesc>,
    pub(super) completion: Consumer<u64>,
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Returns how to turn a refusal of the kernel into an error.
pub(super) fn wrong(interface: &str, what: &'static str) -> impl Fn(io::Error) -> Error {
    move |source| Error::os(format!("xdp:{interface}: {what}"), source)
}

/// Opens a socket with rings of these numbers of entries, powers of two.
pub(super) fn open_socket(name: &str, [rx_ring, tx_ring]: [u32; 2]) -> Result<OwnedFd, Error> {
    let fd = new_socket(name)?;
    let sizes = [
        sockopt::set_xdp_umem_fill_ring_size(&fd, rx_ring),
        sockopt::set_xdp_umem_completion_ring_size(&fd, tx_ring),
        sockopt::set_xdp_rx_ring_size(&fd, rx_ring),
        sockopt::set_xdp_tx_ring_size(&fd, tx_ring),
    ];
    sizes.into_iter().try_for_each(|set| set).map_err(|errno| wrong(name, "rings of a socket")(errno.into()))?;
    Ok(fd)
}

/// Binds a socket to a queue of an interface.
pub(super) fn bind_socket(
    name: &str,
    fd: BorrowedFd<'_>,
    (interface, queue): (i32, u32),
    (umem, first): (Umem, Option<BorrowedFd<'_>>),
    transfer: Option<XdpTransfer>,
    patience: Duration,
) -> Result<(), Error> {
    let flags = match first {
        None => {
            let transfer = match transfer {
                Some(XdpTransfer::ZeroCopy) => SocketAddrXdpFlags::XDP_ZEROCOPY,
                Some(XdpTransfer::Copy) => SocketAddrXdpFlags::XDP_COPY,
                None => SocketAddrXdpFlags::empty(),
            };
            let pieces = if umem.in_pieces { SocketAddrXdpFlags::XDP_USE_SG } else { SocketAddrXdpFlags::empty() };
            transfer | pieces | SocketAddrXdpFlags::XDP_USE_NEED_WAKEUP
        }
        // The rest is as the first socket has it.
        Some(_) => SocketAddrXdpFlags::XDP_SHARED_UMEM,
    };
    bind_within(name, fd, SocketAddrXdp::new(flags, interface as u32, queue), first, patience)
}

/// Asks the kernel how frames pass between a card and the umem of a bound socket.
pub(super) fn transfer_of(fd: impl AsFd) -> io::Result<XdpTransfer> {
    let zero_copy = sockopt::xdp_options(fd)?.contains(XdpOptionsFlags::XDP_OPTIONS_ZEROCOPY);
    Ok(if zero_copy { XdpTransfer::ZeroCopy } else { XdpTransfer::Copy })
}

impl Socket {
    /// Maps the rings of a socket, which have these numbers of entries.
    ///
    /// # Errors
    /// EBUSY if it is bound already, before Linux 6.4.
    pub(super) fn map(fd: OwnedFd, [rx_ring, tx_ring]: [u32; 2]) -> io::Result<Self> {
        let offsets = sockopt::xdp_mmap_offsets(&fd)?;
        Ok(Self {
            fill: Producer::map(&fd, XDP_UMEM_PGOFF_FILL_RING, offsets.fr, rx_ring)?,
            completion: Consumer::map(&fd, XDP_UMEM_PGOFF_COMPLETION_RING, offsets.cr, tx_ring)?,
            rx: Consumer::map(&fd, XDP_PGOFF_RX_RING, offsets.rx, rx_ring)?,
            tx: Producer::map(&fd, XDP_PGOFF_TX_RING, offsets.tx, tx_ring)?,
            fd,
        })
    }
}

fn new_socket(name: &str) -> Result<OwnedFd, Error> {
    socket_with(AddressFamily::XDP, SocketType::RAW, SocketFlags::CLOEXEC, None).map_err(|errno| match errno {
        Errno::AFNOSUPPORT => Error::Unsupported(format!(
            "xdp:{name}: this kernel has no XDP sockets (CONFIG_XDP_SOCKETS); take packet:{name}"
        )),
        Errno::PERM | Errno::ACCESS => {
            Error::Permission(format!("xdp:{name}: XDP sockets are not permitted; run as root or with CAP_NET_RAW"))
        }
        errno => Error::os(format!("xdp:{name}: an XDP socket"), errno),
    })
}

/// Registers the umem with the first socket of an interface; the others share it. Returns whether frames to be sent have metadata in front of
/// them, as wanted: the kernel has that since Linux 6.11 with the flag.
pub(super) fn register(name: &str, fd: &OwnedFd, umem: Umem, metadata: bool) -> Result<bool, Error> {
    const TX_METADATA_LEN: XdpUmemRegFlags = XdpUmemRegFlags::from_bits_retain(1 << 2);
    let Umem { start: addr, len, chunk: chunk_size, .. } = umem;
    let flags = if umem.pages { XdpUmemRegFlags::empty() } else { XdpUmemRegFlags::XDP_UMEM_UNALIGNED_CHUNK_FLAG };
    let plain = XdpUmemReg { addr, len, chunk_size, headroom: 0, flags, tx_metadata_len: 0 };
    if metadata {
        let tx_metadata_len = tx_metadata::LEN as u32;
        let registration = XdpUmemReg { flags: flags | TX_METADATA_LEN, tx_metadata_len, ..plain };
        // Whatever else is wrong is so without metadata, too.
        if sockopt::set_xdp_umem_reg(fd, registration).is_ok() {
            return Ok(true);
        }
    }
    sockopt::set_xdp_umem_reg(fd, plain).map(|()| false).map_err(|errno| match errno {
        Errno::NOBUFS | Errno::NOMEM => Error::Config(format!(
            "xdp:{name}: the kernel may not lock the {} MiB of packet memory; raise 'ulimit -l', or run with CAP_IPC_LOCK",
            len >> 20
        )),
        errno => Error::os(format!("xdp:{name}: the memory of packets"), errno),
    })
}

/// Binds a socket, for some time also to a queue that is busy.
fn bind_within(
    name: &str,
    fd: BorrowedFd<'_>,
    address: SocketAddrXdp,
    first: Option<BorrowedFd<'_>>,
    patience: Duration,
) -> Result<(), Error> {
    let start = Instant::now();
    loop {
        let bound = match first {
            None => bind(fd, &address),
            Some(shared_umem_fd) => bind(fd, &SocketAddrXdpWithSharedUmem { addr: address.clone(), shared_umem_fd }),
        };
        match bound {
            Err(Errno::BUSY) if start.elapsed() < patience => std::thread::sleep(Duration::from_millis(20)),
            Ok(()) => return Ok(()),
            Err(Errno::BUSY) => {
                let queue = address.queue_id();
                return Err(Error::Busy(format!(
                    "xdp:{name}: another program has an XDP socket on queue {queue}; end it first"
                )));
            }
            Err(Errno::OPNOTSUPP | Errno::INVAL) if address.flags().contains(SocketAddrXdpFlags::XDP_USE_SG) => {
                return Err(Error::Unsupported(format!(
                    "xdp:{name}: the kernel or the driver has frames in one buffer each (Linux 6.6 has more); take a smaller --mtu, or packet:{name}"
                )));
            }
            Err(Errno::OPNOTSUPP | Errno::INVAL) if address.flags().contains(SocketAddrXdpFlags::XDP_ZEROCOPY) => {
                return Err(Error::Unsupported(format!(
                    "xdp:{name}: the driver has no zero-copy for these buffers; leave zerocopy out, or try --hugepages off"
                )));
            }
            Err(errno) => return Err(wrong(name, "binding to the interface")(errno.into())),
        }
    }
}
