//! Packets: handles by value, with what a C program needs of the frame beside them.

use std::ffi::{c_int, c_void};
use std::ptr::null_mut;

use ringpass::Burst;
use ringpass_memory::MAX_BATCH;

use crate::{Failure, result};

/// A packet: a handle that owns a buffer with an Ethernet frame, without its CRC. It may be copied like any struct as long as
/// only one copy is used. It ends by being sent or freed; each packet must, before ringpass_close.
#[repr(C)]
pub struct Packet {
    /// First byte of the frame. `length` bytes may be read, and ringpass_capacity() written. Only functions change this pointer.
    pub data: *mut u8,
    /// Length of the frame in bytes. May be set, up to ringpass_capacity(), unless the frame continues in further buffers.
    pub length: u32,
    /// Length of the whole frame, as it was received. Above `length` if it continues in further buffers, which happens only with an
    /// MTU above 2030; ringpass_copy reads these, too.
    pub total: u32,
    /// The library's own. Zeros: no packet.
    pub handle: [*mut c_void; 2],
}

/// The handle consists of all bytes of the Rust type, among which is a pointer that is not null.
const _: () = assert!(size_of::<ringpass::Packet>() == size_of::<[*mut c_void; 2]>());
const _: () = assert!(align_of::<ringpass::Packet>() <= align_of::<*mut c_void>());

impl Packet {
    /// Marks a place of an array as empty.
    const NONE: Self = Self { data: null_mut(), length: 0, total: 0, handle: [null_mut(); 2] };

    #[inline]
    pub(crate) fn new(packet: ringpass::Packet) -> Self {
        let (data, length) = (packet.as_ptr(), packet.len() as u32);
        let total = if packet.is_chained() { packet.total_len() as u32 } else { length };
        // SAFETY: both have the same size (asserted above), every byte of a packet is initialised, as its fields fill it, and
        // any bytes are valid as pointers that are not followed. The copy owns the packet from here on.
        let handle = unsafe { std::mem::transmute::<ringpass::Packet, [*mut c_void; 2]>(packet) };
        Self { data, length, total, handle }
    }

    pub(crate) fn is_none(&self) -> bool {
        self.handle == [null_mut(); 2]
    }

    /// Returns the packet that the handle stands for. Fails if there is none.
    ///
    /// # Safety
    /// The handle is of this library and stands for a packet that has neither been sent nor freed, or it is zero.
    #[inline]
    unsafe fn inner(&mut self) -> Result<&mut ringpass::Packet, Failure> {
        if self.is_none() {
            return Err(Failure::invalid("there is no packet: it was sent or freed, or never received"));
        }
        // SAFETY: size and alignment suffice (asserted above). The bytes are those of a packet that this handle owns, by this
        // function's contract; `self` is borrowed mutably, so nobody else uses them.
        Ok(unsafe { &mut *(&raw mut self.handle).cast::<ringpass::Packet>() })
    }

    /// Returns the packet with the length that the program has set. Fails if there is no packet, or if the length is wrong.
    ///
    /// # Safety
    /// The handle is of this library and stands for a packet that has neither been sent nor freed, or it is zero.
    #[inline]
    pub(crate) unsafe fn get(&mut self) -> Result<&mut ringpass::Packet, Failure> {
        let length = self.length as usize;
        // SAFETY: this function has the contract of `inner`.
        let packet = unsafe { self.inner() }?;
        if length != packet.len() {
            if packet.is_chained() || length > packet.capacity() {
                return Err(wrong_length(packet, length));
            }
            packet.set_len(length);
        }
        Ok(packet)
    }

    /// Takes the packet out, and leaves an empty place.
    ///
    /// # Safety
    /// The handle is of this library and stands for a packet that has neither been sent nor freed, or it is zero.
    #[inline]
    pub(crate) unsafe fn take(&mut self) -> Result<ringpass::Packet, Failure> {
        // SAFETY: this function has the contract of `inner`. The handle becomes zero before it can be used again, so only the
        // copy owns the packet.
        let packet = unsafe { std::ptr::read(self.inner()?) };
        *self = Self::NONE;
        Ok(packet)
    }

    /// Updates what is beside the handle.
    fn update(&mut self, data: *mut u8, length: usize, total: usize) {
        self.data = data;
        self.length = length as u32;
        self.total = total as u32;
    }
}

#[cold]
fn wrong_length(packet: &ringpass::Packet, length: usize) -> Failure {
    Failure::invalid(&match packet.is_chained() {
        true => "the length of a frame in several buffers cannot be set".into(),
        false => format!("a frame of {length} bytes in a buffer of {}", packet.capacity()),
    })
}

/// Runs `with` on the packet at a pointer.
///
/// # Safety
/// `packet` is NULL, or points to a packet that nobody else uses, as [`Packet::get`] requires.
unsafe fn with(packet: *mut Packet, with: impl FnOnce(&mut ringpass::Packet) -> Result<c_int, Failure>) -> c_int {
    result(|| {
        // SAFETY: not NULL is valid, and nobody else uses it, by this function's contract.
        let place = unsafe { packet.as_mut() }.ok_or_else(|| Failure::invalid("a packet is NULL"))?;
        // SAFETY: the packet is as `get` requires, by this function's contract.
        let packet = unsafe { place.get() }?;
        let value = with(packet)?;
        let data = packet.as_ptr();
        let length = packet.len();
        let total = packet.total_len();
        place.update(data, length, total);
        Ok(value)
    })
}

/// Returns the largest length that the frame can have from its present start, or a negative code.
///
/// # Safety
/// `packet` points to a packet of this library that was neither sent nor freed, and no other thread uses it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ringpass_capacity(packet: *mut Packet) -> c_int {
    // SAFETY: the caller says that the packet is valid, its own, and used by no other thread.
    unsafe { with(packet, |packet| Ok(packet.capacity() as c_int)) }
}

/// Extends the frame by `bytes` at its front, whose contents are to be written by the program, and changes `data`. Fails with
/// RINGPASS_INVALID if there is too little room; received frames have 128 bytes.
///
/// # Safety
/// `packet` points to a packet of this library that was neither sent nor freed, and no other thread uses it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ringpass_prepend(packet: *mut Packet, bytes: usize) -> c_int {
    let prepend = |packet: &mut ringpass::Packet| match packet.prepend(bytes) {
        true => Ok(0),
        false => Err(Failure::invalid("there is too little room in front of the frame")),
    };
    // SAFETY: the caller says that the packet is valid, its own, and used by no other thread.
    unsafe { with(packet, prepend) }
}

/// Cuts `bytes` off the front of the frame, and changes `data`. Fails with RINGPASS_INVALID if `length` is smaller.
///
/// # Safety
/// `packet` points to a packet of this library that was neither sent nor freed, and no other thread uses it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ringpass_trim_front(packet: *mut Packet, bytes: usize) -> c_int {
    let trim = |packet: &mut ringpass::Packet| match packet.trim_front(bytes) {
        true => Ok(0),
        false => Err(Failure::invalid("the frame is shorter than what is to be cut off")),
    };
    // SAFETY: the caller says that the packet is valid, its own, and used by no other thread.
    unsafe { with(packet, trim) }
}

/// Copies up to `length` bytes of the frame to `to`, from the byte at `offset` on, across all of its buffers. Returns the number
/// of bytes, fewer if the frame ends before, or a negative code. A peer that shares the frame cannot change the copy.
///
/// # Safety
/// `packet` points to a packet of this library that was neither sent nor freed, and no other thread uses it. `length` bytes
/// can be written at `to`, which is not in the packet.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ringpass_copy(packet: *mut Packet, offset: usize, to: *mut c_void, length: usize) -> c_int {
    let copy = |packet: &mut ringpass::Packet| {
        if to.is_null() {
            return Err(Failure::invalid("ringpass_copy: to is NULL"));
        }
        let (mut skip, mut copied) = (offset, 0);
        for segment in packet.segments() {
            let start = skip.min(segment.len());
            let part = segment.bytes().range(start..segment.len().min(start.saturating_add(length - copied)));
            // SAFETY: `copied + part.len() <= length`, and the caller says that `length` bytes at `to` can be written and
            // are not in the packet. `part` can be read, as `RawBytes::new` requires.
            unsafe { ringpass_memory::copy(part.as_ptr(), to.cast::<u8>().add(copied), part.len()) };
            (skip, copied) = (skip - start, copied + part.len());
        }
        Ok(copied as c_int)
    };
    // SAFETY: the caller says that the packet is valid, its own, and used by no other thread.
    unsafe { with(packet, copy) }
}

/// Frees packets, and sets their handles to zeros. Places whose handle is zero already are passed over.
///
/// # Safety
/// `packets` points to `count` packets of this library (or zeros) that no other thread uses; or `count` is 0.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ringpass_free(packets: *mut Packet, count: usize) {
    result(|| {
        if packets.is_null() {
            return Ok(0);
        }
        let mut burst = Burst::new(MAX_BATCH);
        for index in 0..count {
            // SAFETY: the caller says that `count` packets are here, its own, and that nobody else uses them.
            let place = unsafe { &mut *packets.add(index) };
            if burst.room() == 0 {
                burst.clear();
            }
            if !place.is_none() {
                // SAFETY: the handle is not zero, so the caller says that it stands for a packet of its own.
                burst.push(unsafe { place.take() }?);
            }
        }
        Ok(0)
    });
}
