//! The receive ring that a packet socket shares with the kernel: TPACKET_V2 (Linux, networking/packet_mmap).
//!
//! Version 2 has one slot per frame and hands each over at once. Version 3 hands over blocks, when they are
//! full or when a timer of at least a millisecond has expired, which would add to every round trip.

#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

use ringpass_virtio::net_header;

use crate::sys::set_packet_option;

/// Size of a block in bytes. The kernel allocates the ring in blocks of whole pages.
const BLOCK: usize = 64 << 10;
/// Offset of the frame's `sockaddr_ll`, which follows the 32 bytes of `tpacket2_hdr`.
const ADDRESS: usize = 32;
const HEADERS: usize = ADDRESS + size_of::<libc::sockaddr_ll>();

const TPACKET_V2: i32 = 1;
const TP_STATUS_KERNEL: u32 = 0;
const TP_STATUS_USER: u32 = 1 << 0;
const TP_STATUS_COPY: u32 = 1 << 1;
const TP_STATUS_VLAN_VALID: u32 = 1 << 4;
const TP_STATUS_VLAN_TPID_VALID: u32 = 1 << 6;

/// `struct tpacket2_hdr` of the kernel.
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

const _: () = assert!(size_of::<Header>() == ADDRESS);

/// A frame in its slot.
pub(crate) struct Frame<'a> {
    /// The frame, or as much of it as fitted into the slot.
    pub(crate) bytes: &'a [u8],
    /// Whether the slot has the whole frame.
    pub(crate) whole: bool,
    /// Whether the whole frame can be read from the socket, because the slot was too short.
    pub(crate) waits: bool,
    /// EtherType and value of the VLAN tag that the kernel stripped.
    pub(crate) vlan: Option<[u8; 4]>,
    /// The virtio-net header: metadata and requests.
    pub(crate) header: [u8; net_header::LEN],
    /// Packet type: `PACKET_HOST`, `PACKET_OTHERHOST`, …
    pub(crate) kind: u8,
}

/// The ring, with the index of its next frame.
pub(crate) struct TpacketRing {
    start: NonNull<u8>,
    slots: usize,
    /// Size of a slot in bytes: the kernel's headers and the longest frame.
    slot: usize,
    next: usize,
    _socket: Arc<OwnedFd>,
}

// SAFETY: a mapping belongs to the process, not to a thread, and only this ring uses it.
unsafe impl Send for TpacketRing {}

impl TpacketRing {
    /// Creates a ring for a socket that is not bound yet, with at least `slots` slots for frames of up to
    /// `longest` bytes. With `merged`, longer frames are queued at the socket (packet(7),
    /// `PACKET_COPY_THRESH`): segments of up to 64 KiB are too rare for slots of that size.
    pub(crate) fn new(socket: &Arc<OwnedFd>, slots: usize, longest: usize, merged: bool) -> io::Result<Self> {
        // The kernel aligns the headers in front of the frame, and may add 16 bytes of padding.
        let slot = (HEADERS + 64 + longest).next_power_of_two().clamp(2048, BLOCK);
        let blocks = (slots * slot).div_ceil(BLOCK);
        let slots = blocks * (BLOCK / slot);
        set_packet_option(socket.as_fd(), libc::PACKET_VERSION, TPACKET_V2)?;
        set_packet_option(socket.as_fd(), libc::PACKET_VNET_HDR, 1i32)?;
        if merged {
            set_packet_option(socket.as_fd(), libc::PACKET_COPY_THRESH, 1i32)?;
        }
        // `struct tpacket_req`: block size, number of blocks, frame size, number of frames.
        let request = [BLOCK as u32, blocks as u32, slot as u32, slots as u32];
        set_packet_option(socket.as_fd(), libc::PACKET_RX_RING, request)?;
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: the kernel chooses the address, so the new mapping replaces no existing one.
        let start = unsafe { mmap(std::ptr::null_mut(), blocks * BLOCK, access, MapFlags::SHARED, socket, 0)? };
        let start = NonNull::new(start.cast()).expect("the kernel maps nothing at address 0");
        Ok(Self { start, slots, slot, next: 0, _socket: socket.clone() })
    }

    /// Passes the next frame to `take`, then returns its slot to the kernel. Returns `None` if there is no
    /// frame.
    #[inline]
    pub(crate) fn receive<R>(&mut self, take: impl FnOnce(Frame) -> R) -> Option<R> {
        // SAFETY: `next` is 0 at first and reduced modulo `slots` below, so the slot lies within the mapping of
        // `slots * slot` bytes.
        let slot = unsafe { self.start.add(self.next * self.slot) };
        // SAFETY: the status is the first field of the slot, which is inside the mapping. The mapping is
        // page-aligned and slots have at least 2048 bytes, a power of two, so it is aligned. While the kernel
        // may write it, it is accessed only as an atomic.
        let status = unsafe { AtomicU32::from_ptr(slot.as_ptr().cast()) };
        // Acquire: what the kernel wrote to the slot before the status is visible after this.
        let flags = status.load(Ordering::Acquire);
        if flags & TP_STATUS_USER == 0 {
            return None;
        }
        // SAFETY: the status says that the slot belongs to this process until the store below, so nobody writes
        // to it. It lies within the mapping, whose bytes are all initialised.
        let slot = unsafe { std::slice::from_raw_parts(slot.as_ptr(), self.slot) };
        let taken = take(Frame::parse(slot, flags));
        // Release: the slot is read before the kernel writes to it again.
        status.store(TP_STATUS_KERNEL, Ordering::Release);
        self.next = (self.next + 1) % self.slots;
        Some(taken)
    }
}

impl<'a> Frame<'a> {
    fn parse(slot: &'a [u8], flags: u32) -> Self {
        // SAFETY: `slot` has at least 2048 bytes (`TpacketRing::new`), more than the header. Any bits are a
        // valid `Header`, and `read_unaligned` needs no alignment.
        let header = unsafe { slot.as_ptr().cast::<Header>().read_unaligned() };
        let (mac, len) = (usize::from(header.mac), header.len as usize);
        let bytes = slot.get(mac..mac + header.snaplen as usize).filter(|_| mac >= HEADERS + net_header::LEN);
        let bytes = bytes.unwrap_or_default();
        // `struct virtio_net_hdr` lies directly before the frame.
        let vnet = if bytes.is_empty() { None } else { slot[..mac].last_chunk() };
        let tpid = if flags & TP_STATUS_VLAN_TPID_VALID != 0 { header.vlan_tpid } else { 0x8100 };
        let ([a, b], [c, d]) = (tpid.to_be_bytes(), header.vlan_tci.to_be_bytes());
        Self {
            bytes,
            whole: bytes.len() == len,
            waits: flags & TP_STATUS_COPY != 0,
            vlan: (flags & TP_STATUS_VLAN_VALID != 0).then_some([a, b, c, d]),
            header: vnet.copied().unwrap_or_default(),
            // `sll_pkttype`.
            kind: slot[ADDRESS + 10],
        }
    }
}

impl Drop for TpacketRing {
    fn drop(&mut self) {
        // SAFETY: unmaps exactly the mapping that `new` made. A `Frame` cannot outlive the call of `receive`
        // that made it, so nothing refers to the mapping any more.
        let _ = unsafe { munmap(self.start.as_ptr().cast(), self.slots * self.slot) };
    }
}
