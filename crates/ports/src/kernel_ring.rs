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

use ringpass_virtio::net_header;

use crate::sys::set_packet_option;

/// The kernel allocates the ring by the block, of whole pages.
const BLOCK: usize = 64 << 10;
/// Behind `tpacket2_hdr`, which is 32 bytes long, the kernel puts the `sockaddr_ll` of the frame.
const ADDRESS: usize = 32;
const HEADERS: usize = ADDRESS + size_of::<libc::sockaddr_ll>();

const TPACKET_V2: i32 = 1;
const TP_STATUS_KERNEL: u32 = 0;
const TP_STATUS_USER: u32 = 1 << 0;
const TP_STATUS_COPY: u32 = 1 << 1;
const TP_STATUS_VLAN_VALID: u32 = 1 << 4;
const TP_STATUS_VLAN_TPID_VALID: u32 = 1 << 6;

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

const _: () = assert!(size_of::<Header>() == ADDRESS);

/// A frame in its slot.
pub(crate) struct Frame<'a> {
    /// All of it, or as much as the slot took.
    pub(crate) bytes: &'a [u8],
    /// Whether the slot took all of it.
    pub(crate) whole: bool,
    /// Whether all of it waits at the socket, to be read from there, because the slot was too short.
    pub(crate) waits: bool,
    /// Ethertype and tag that the kernel cut out behind the addresses.
    pub(crate) vlan: Option<[u8; 4]>,
    /// What is known and asked of it.
    pub(crate) header: [u8; net_header::LEN],
    /// `PACKET_HOST`, `PACKET_OTHERHOST`, …
    pub(crate) kind: u8,
}

/// The ring, with the position of its next frame.
pub(crate) struct KernelRing {
    start: NonNull<u8>,
    slots: usize,
    /// Bytes of a slot: the kernel's headers and the longest frame.
    slot: usize,
    next: usize,
    _socket: Arc<OwnedFd>,
}

// SAFETY: the mapping is process-wide and belongs to this ring alone.
unsafe impl Send for KernelRing {}

impl KernelRing {
    /// Gives the socket, which must not be bound yet, a ring of at least `slots` for frames of up to `longest` bytes.
    /// With `merged`, frames that are longer wait at the socket (packet(7), `PACKET_COPY_THRESH`): the kernel's segments
    /// of up to 64 KiB are too rare to have slots of that size.
    pub(crate) fn new(socket: &Arc<OwnedFd>, slots: usize, longest: usize, merged: bool) -> io::Result<Self> {
        // The kernel aligns what comes before the frame, and may leave 16 bytes of padding.
        let slot = (HEADERS + 64 + longest).next_power_of_two().clamp(2048, BLOCK);
        let blocks = (slots * slot).div_ceil(BLOCK);
        let slots = blocks * (BLOCK / slot);
        set_packet_option(socket.as_fd(), libc::PACKET_VERSION, TPACKET_V2)?;
        set_packet_option(socket.as_fd(), libc::PACKET_VNET_HDR, 1i32)?;
        if merged {
            set_packet_option(socket.as_fd(), libc::PACKET_COPY_THRESH, 1i32)?;
        }
        // `struct tpacket_req`: block size, blocks, frame size, frames.
        let request = [BLOCK as u32, blocks as u32, slot as u32, slots as u32];
        set_packet_option(socket.as_fd(), libc::PACKET_RX_RING, request)?;
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address of the kernel's choice.
        let start = unsafe { mmap(std::ptr::null_mut(), blocks * BLOCK, access, MapFlags::SHARED, socket, 0)? };
        let start = NonNull::new(start.cast()).expect("the kernel maps nothing at address 0");
        Ok(Self { start, slots, slot, next: 0, _socket: socket.clone() })
    }

    /// Hands the next frame to `take` and then its slot back to the kernel; `None` if there is no frame.
    #[inline]
    pub(crate) fn receive<R>(&mut self, take: impl FnOnce(Frame) -> R) -> Option<R> {
        // SAFETY: `next` is below `slots`, so the slot is inside the mapping.
        let slot = unsafe { self.start.add(self.next * self.slot) };
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
        let slot = unsafe { std::slice::from_raw_parts(slot.as_ptr(), self.slot) };
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
        let (mac, len) = (usize::from(header.mac), header.len as usize);
        let bytes = slot.get(mac..mac + header.snaplen as usize).filter(|_| mac >= HEADERS + net_header::LEN);
        let bytes = bytes.unwrap_or_default();
        // `struct virtio_net_hdr` lies right before the frame.
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

impl Drop for KernelRing {
    fn drop(&mut self) {
        // SAFETY: this ring's own mapping; frames borrow the ring.
        let _ = unsafe { munmap(self.start.as_ptr().cast(), self.slots * self.slot) };
    }
}
