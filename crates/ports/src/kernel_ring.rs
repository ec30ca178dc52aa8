//! The receive ring that a packet socket shares with the kernel (Linux, networking/packet_mmap), TPACKET_V2.
//!
//! V2 has a slot a frame and hands each over at once. V3 hands over blocks, when they are full or a timer of at least a
//! millisecond has passed, which would be added to every round trip.

#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

use crate::sys::set_packet_option;

/// Bytes of a slot: the kernel's headers and the longest frame.
const SLOT: usize = 2048;
/// The kernel allocates the ring by the block, of whole pages.
const BLOCK: usize = 64 << 10;
/// Behind `tpacket2_hdr`, which is 32 bytes long, the kernel puts the `sockaddr_ll` of the frame.
const ADDRESS: usize = 32;
const HEADERS: usize = ADDRESS + size_of::<libc::sockaddr_ll>();
/// `struct virtio_net_hdr`, which the kernel puts right before the frame.
const VNET_HEADER: usize = 10;

const TPACKET_V2: i32 = 1;
const TP_STATUS_KERNEL: u32 = 0;
const TP_STATUS_USER: u32 = 1 << 0;
const TP_STATUS_VLAN_VALID: u32 = 1 << 4;
const TP_STATUS_VLAN_TPID_VALID: u32 = 1 << 6;
const VIRTIO_NET_HDR_F_NEEDS_CSUM: u8 = 1;

/// `struct tpacket2_hdr`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Header {
    status: u32,
    len: u32,
    snaplen: u32,
    mac: u16,
    net: u16,
    sec: u32,
    nsec: u32,
    vlan_tci: u16,
    vlan_tpid: u16,
    padding: [u8; 4],
}

const _: () = assert!(size_of::<Header>() == ADDRESS && BLOCK.is_multiple_of(SLOT));

/// A frame in its slot.
pub(crate) struct Frame<'a> {
    /// All of it, or as much as the slot took.
    pub(crate) bytes: &'a [u8],
    /// Whether the slot took all of it.
    pub(crate) whole: bool,
    /// Ethertype and tag that the kernel cut out behind the addresses.
    pub(crate) vlan: Option<[u8; 4]>,
    /// Start of the checksummed part and offset of the checksum in it, where the sender left that to the card.
    pub(crate) checksum: Option<(usize, usize)>,
    /// `PACKET_HOST`, `PACKET_OTHERHOST`, …
    pub(crate) kind: u8,
}

/// The ring, with the position of its next frame.
pub(crate) struct KernelRing {
    start: NonNull<u8>,
    slots: usize,
    next: usize,
    _socket: Arc<OwnedFd>,
}

// SAFETY: the mapping is process-wide and belongs to this ring alone.
unsafe impl Send for KernelRing {}

impl KernelRing {
    /// Gives the socket, which must not be bound yet, a ring of at least `slots`.
    pub(crate) fn new(socket: &Arc<OwnedFd>, slots: usize) -> io::Result<Self> {
        let blocks = (slots * SLOT).div_ceil(BLOCK);
        let slots = blocks * (BLOCK / SLOT);
        set_packet_option(socket.as_fd(), libc::PACKET_VERSION, TPACKET_V2)?;
        set_packet_option(socket.as_fd(), libc::PACKET_VNET_HDR, 1i32)?;
        // `struct tpacket_req`: block size, blocks, frame size, frames.
        let request = [BLOCK as u32, blocks as u32, SLOT as u32, slots as u32];
        set_packet_option(socket.as_fd(), libc::PACKET_RX_RING, request)?;
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address of the kernel's choice.
        let start = unsafe { mmap(std::ptr::null_mut(), blocks * BLOCK, access, MapFlags::SHARED, socket, 0)? };
        let start = NonNull::new(start.cast()).expect("the kernel maps nothing at address 0");
        Ok(Self { start, slots, next: 0, _socket: socket.clone() })
    }

    /// Hands the next frame to `take` and then its slot back to the kernel; `None` if there is no frame.
    #[inline]
    pub(crate) fn receive<R>(&mut self, take: impl FnOnce(Frame) -> R) -> Option<R> {
        // SAFETY: `next` is below `slots`, so the slot is inside the mapping.
        let slot = unsafe { self.start.add(self.next * SLOT) };
        // SAFETY: the status is the slot's first field, aligned as the slot is, and only accessed as an atomic while
        // the kernel may write it.
        let status = unsafe { AtomicU32::from_ptr(slot.as_ptr().cast()) };
        // Acquire: what the kernel wrote to the slot before is seen after.
        let flags = status.load(Ordering::Acquire);
        if flags & TP_STATUS_USER == 0 {
            return None;
        }
        // SAFETY: the slot is this process's until its status is set back, so nobody writes to it; it lies inside the
        // mapping, whose bytes are all initialised.
        let slot = unsafe { std::slice::from_raw_parts(slot.as_ptr(), SLOT) };
        let taken = take(Frame::parse(slot, flags));
        // Release: the slot was read before the kernel writes to it again.
        status.store(TP_STATUS_KERNEL, Ordering::Release);
        self.next = (self.next + 1) % self.slots;
        Some(taken)
    }
}

impl<'a> Frame<'a> {
    fn parse(slot: &'a [u8], flags: u32) -> Self {
        // SAFETY: a slot is longer than the header and any bits are valid in it; `read_unaligned` needs no alignment.
        let header = unsafe { slot.as_ptr().cast::<Header>().read_unaligned() };
        let mac = usize::from(header.mac);
        let bytes = slot.get(mac..mac + header.snaplen as usize).filter(|_| mac >= HEADERS + VNET_HEADER);
        let bytes = bytes.unwrap_or_default();
        let vnet = if bytes.is_empty() { &[0; VNET_HEADER] } else { &slot[mac - VNET_HEADER..mac] };
        let [vnet_flags, _, _, _, _, _, start_low, start_high, offset_low, offset_high] = *vnet else { unreachable!() };
        let checksum = (
            usize::from(u16::from_le_bytes([start_low, start_high])),
            usize::from(u16::from_le_bytes([offset_low, offset_high])),
        );
        let tpid = if flags & TP_STATUS_VLAN_TPID_VALID != 0 { header.vlan_tpid } else { 0x8100 };
        let ([a, b], [c, d]) = (tpid.to_be_bytes(), header.vlan_tci.to_be_bytes());
        Self {
            bytes,
            whole: bytes.len() == header.len as usize,
            vlan: (flags & TP_STATUS_VLAN_VALID != 0).then_some([a, b, c, d]),
            checksum: (vnet_flags & VIRTIO_NET_HDR_F_NEEDS_CSUM != 0).then_some(checksum),
            // `sll_pkttype`.
            kind: slot[ADDRESS + 10],
        }
    }
}

impl Drop for KernelRing {
    fn drop(&mut self) {
        // SAFETY: this ring's own mapping; frames borrow the ring.
        let _ = unsafe { munmap(self.start.as_ptr().cast(), self.slots * SLOT) };
    }
}
