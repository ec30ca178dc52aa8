//! A program like netmap's own: it calls the C library with the numbers and layouts of `netmap_sys`, which was
//! written for the kernel's netmap. Requests of API 14 are put together byte by byte.

#![allow(dead_code, reason = "each test file needs a part")]

use std::ffi::{CString, c_void};
use std::io::Error;
use std::ptr::null_mut;

use libc::{c_int, c_short, c_ulong, pollfd};
use netmap_sys::netmap::{NIOCREGIF, NIOCRXSYNC, NIOCTXSYNC, netmap_if, netmap_ring, nmreq};
use netmap_sys::netmap_user::{NETMAP_BUF, NETMAP_IF, NETMAP_RXRING, NETMAP_TXRING};

pub const NIOCCTRL: c_ulong = 0xc058_6997;
pub const REGISTER: u16 = 1;
pub const ALL_NIC: u32 = 1;
pub const ONE_NIC: u32 = 4;

/// Returns the error that a call has left, or 0.
pub fn errno(result: c_int) -> c_int {
    if result < 0 { Error::last_os_error().raw_os_error().unwrap() } else { 0 }
}

pub fn open() -> c_int {
    // SAFETY: the path is NUL-terminated.
    unsafe { libc::open(c"/dev/netmap".as_ptr(), libc::O_RDWR | libc::O_CLOEXEC) }
}

pub fn ioctl(fd: c_int, request: c_ulong, argument: *mut c_void) -> c_int {
    // SAFETY: callers pass the argument that the request requires.
    unsafe { libc::ioctl(fd, request, argument) }
}

/// Makes a request of API 14, with its body. Returns the error, or 0.
pub fn control(fd: c_int, version: u16, kind: u16, name: &str, options: *mut c_void, body: &mut [u8]) -> c_int {
    let mut header = [0_u8; 88];
    header[..2].copy_from_slice(&version.to_le_bytes());
    header[2..4].copy_from_slice(&kind.to_le_bytes());
    header[8..8 + name.len()].copy_from_slice(name.as_bytes());
    header[72..80].copy_from_slice(&(options as u64).to_le_bytes());
    let body = if body.is_empty() { null_mut() } else { body.as_mut_ptr() };
    header[80..].copy_from_slice(&(body as u64).to_le_bytes());
    errno(ioctl(fd, NIOCCTRL, header.as_mut_ptr().cast()))
}

/// Returns the body of a registration.
pub fn registration(mode: u32, ring: u16, flags: u64, slots: u32) -> [u8; 56] {
    let mut body = [0; 56];
    body[16..20].copy_from_slice(&slots.to_le_bytes());
    body[20..24].copy_from_slice(&slots.to_le_bytes());
    body[34..36].copy_from_slice(&ring.to_le_bytes());
    body[36..40].copy_from_slice(&mode.to_le_bytes());
    body[48..].copy_from_slice(&flags.to_le_bytes());
    body
}

/// A registered port with its memory mapped.
pub struct Port {
    pub fd: c_int,
    pub size: usize,
    memory: *mut c_void,
    interface: *mut netmap_if,
}

// SAFETY: the pointers are into a mapping that this struct owns, and a mapping is valid in every thread.
unsafe impl Send for Port {}
// SAFETY: the mapping is valid in every thread; tests let one thread at a time use a ring.
unsafe impl Sync for Port {}

impl Port {
    pub fn new(name: &str) -> Self {
        Self::with_flags(name, 0)
    }

    pub fn with_flags(name: &str, flags: u64) -> Self {
        let (fd, mut body) = (open(), registration(ALL_NIC, 0, flags, 0));
        assert!(fd >= 0, "/dev/netmap: {}", Error::last_os_error());
        let error = control(fd, 14, REGISTER, name, null_mut(), &mut body);
        assert_eq!(error, 0, "{name}: {}", Error::from_raw_os_error(error));
        let number = |at: usize| u64::from_le_bytes(body[at..at + 8].try_into().unwrap());
        Self::map(fd, number(0) as isize, number(8) as usize)
    }

    /// Registers by the request from before API 14, with the struct of `netmap_sys`.
    pub fn legacy(name: &str, mode: u32, ring: u16) -> Self {
        // SAFETY: a struct of integers, for which zeros are valid.
        let mut request = unsafe { std::mem::zeroed::<nmreq>() };
        for (to, from) in request.nr_name.iter_mut().zip(CString::new(name).unwrap().as_bytes()) {
            *to = *from as libc::c_char;
        }
        (request.nr_version, request.nr_flags, request.nr_ringid) = (14, mode, ring);
        let fd = open();
        let error = errno(ioctl(fd, NIOCREGIF, (&raw mut request).cast()));
        assert_eq!(error, 0, "{name}: {}", Error::from_raw_os_error(error));
        Self::map(fd, request.nr_offset as isize, request.nr_memsize as usize)
    }

    fn map(fd: c_int, offset: isize, size: usize) -> Self {
        // SAFETY: a new mapping, at an address that the kernel chooses.
        let memory =
            unsafe { libc::mmap(null_mut(), size, libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED, fd, 0) };
        assert_ne!(memory, libc::MAP_FAILED, "{}", Error::last_os_error());
        // SAFETY: the granted offset lies inside the mapping.
        let interface = unsafe { NETMAP_IF(memory, offset) };
        Self { fd, size, memory, interface }
    }

    /// Whether each of its rings is bound: Tx, host Tx, Rx, host Rx.
    pub fn bound(&self) -> [bool; 4] {
        // SAFETY: the mapped descriptor is followed by four offsets: one ring and one of the host's each way.
        unsafe {
            let offsets = (&raw const (*self.interface).ring_ofs).cast::<isize>();
            std::array::from_fn(|at| offsets.add(at).read() != 0)
        }
    }

    pub fn tx(&self) -> Ring {
        // SAFETY: every port of these tests has a Tx ring, so the descriptor holds its offset.
        Ring(unsafe { NETMAP_TXRING(self.interface, 0) })
    }

    pub fn rx(&self) -> Ring {
        // SAFETY: every port of these tests has an Rx ring, so the descriptor holds its offset.
        Ring(unsafe { NETMAP_RXRING(self.interface, 0) })
    }

    pub fn tx_sync(&self) -> c_int {
        errno(ioctl(self.fd, NIOCTXSYNC.into(), null_mut()))
    }

    pub fn rx_sync(&self) -> c_int {
        errno(ioctl(self.fd, NIOCRXSYNC.into(), null_mut()))
    }

    /// Returns the events that `poll` reports for this port alone.
    pub fn poll(&self, events: c_short, limit: c_int) -> c_short {
        poll(&mut [pollfd { fd: self.fd, events, revents: 0 }], limit)[0]
    }

    /// Sends numbered frames, at most `batch` at a time.
    pub fn send(&self, numbers: std::ops::Range<u64>, batch: u32) {
        let (mut next, ring) = (numbers.start, self.tx());
        while next < numbers.end {
            assert_eq!(self.poll(libc::POLLOUT, 30_000), libc::POLLOUT, "room to send, after {next}");
            let count = ring.space().min(batch).min((numbers.end - next) as u32);
            for _ in 0..count {
                ring.write(next);
                next += 1;
            }
        }
        assert_eq!(self.tx_sync(), 0);
    }

    /// Receives numbered frames.
    pub fn receive(&self, numbers: std::ops::Range<u64>) {
        let (mut next, ring) = (numbers.start, self.rx());
        while next < numbers.end {
            assert_eq!(self.poll(libc::POLLIN, 30_000), libc::POLLIN, "frames, after {next}");
            for _ in 0..ring.space() {
                assert_eq!(ring.read(), next);
                next += 1;
            }
        }
        assert_eq!(self.rx_sync(), 0);
    }
}

impl Drop for Port {
    fn drop(&mut self) {
        // SAFETY: the port is dropped, so nothing uses its mapping and descriptor any more.
        unsafe {
            libc::munmap(self.memory, self.size);
            libc::close(self.fd);
        }
    }
}

/// Returns the events that `poll` reports for each.
pub fn poll(fds: &mut [pollfd], limit: c_int) -> Vec<c_short> {
    // SAFETY: pointer and length of a mutable slice.
    let count = unsafe { libc::poll(fds.as_mut_ptr(), fds.len() as libc::nfds_t, limit) };
    assert!(count >= 0, "{}", Error::last_os_error());
    assert_eq!(count as usize, fds.iter().filter(|fd| fd.revents != 0).count());
    fds.iter().map(|fd| fd.revents).collect()
}

/// Ethernet header: to all, from the same station on every port, of an experimental type.
const HEADER: [u8; 14] = [255, 255, 255, 255, 255, 255, 2, 0, 0, 0, 0, 1, 0x88, 0xb5];

/// A ring, as programs use it.
#[derive(Clone, Copy)]
pub struct Ring(pub *mut netmap_ring);

impl Ring {
    fn words(&self) -> (u32, u32, u32) {
        // SAFETY: a mapped ring; the library changes `tail` only during this program's own calls.
        unsafe {
            (
                (*self.0).num_slots,
                (&raw const (*self.0).head).read_volatile(),
                (&raw const (*self.0).tail).read_volatile(),
            )
        }
    }

    pub fn slots(&self) -> u32 {
        self.words().0
    }

    pub fn space(&self) -> u32 {
        let (slots, head, tail) = self.words();
        (tail + slots - head) % slots
    }

    pub fn advance(&self) {
        let (slots, head, _) = self.words();
        self.set_head((head + 1) % slots);
    }

    pub fn set_head(&self, head: u32) {
        // SAFETY: a mapped ring, whose `head` and `cur` are the program's.
        unsafe {
            (&raw mut (*self.0).cur).write_volatile(head);
            (&raw mut (*self.0).head).write_volatile(head);
        }
    }

    /// Releases this many slots, unchanged.
    pub fn give(&self, count: u32) {
        let (slots, head, _) = self.words();
        self.set_head((head + count) % slots);
    }

    /// Waits for more slots than there are.
    pub fn want_more(&self) {
        let tail = self.words().2;
        // SAFETY: a mapped ring, whose `cur` is the program's.
        unsafe { (&raw mut (*self.0).cur).write_volatile(tail) };
    }

    fn slot(&self) -> *mut netmap_sys::netmap::netmap_slot {
        // SAFETY: the ring is mapped with its slots, and `head` is below their number.
        unsafe { (*self.0).slot.as_mut_ptr().add(self.words().1 as usize) }
    }

    /// Writes a broadcast frame of 60 bytes with a number into the next slot.
    pub fn write(&self, number: u64) {
        // SAFETY: the slot and its buffer are mapped and the program's; a buffer has room for 60 bytes.
        unsafe {
            let slot = self.slot();
            (*slot).len = 60;
            (*slot).flags = 0;
            let frame = NETMAP_BUF(self.0, (*slot).buf_idx as isize).cast::<u8>();
            frame.copy_from_nonoverlapping(HEADER.as_ptr(), HEADER.len());
            frame.add(HEADER.len()).cast::<u64>().write_unaligned(number);
        }
        self.advance();
    }

    pub fn read(&self) -> u64 {
        // SAFETY: the slot and its buffer are mapped and the program's; a buffer has 60 bytes, which hold the
        // number.
        let number = unsafe {
            let slot = self.slot();
            assert_eq!((*slot).len, 60);
            let frame = NETMAP_BUF(self.0, (*slot).buf_idx as isize).cast::<u8>();
            frame.add(HEADER.len()).cast::<u64>().read_unaligned()
        };
        self.advance();
        number
    }
}
