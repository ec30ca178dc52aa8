//! Bytes that others may write at the same time.
//!
//! A frame may lie in a guest's memory, or in a pool that another process or a card writes as well. A `&[u8]` to it would
//! promise the compiler that nobody does. So memory of packets is reached by copies only, through raw pointers, as crates for
//! guest memory (`vm-memory`) do: a copy holds whatever the bytes were at that time, perhaps a mixture of two writes, and
//! does not change any more. Code copies a header once, checks the copy and uses it.

use std::fmt;
use std::marker::PhantomData;
use std::ops::Range;

use crate::Packet;

/// A range of memory that others may write at any time: a pointer and a length, without a reference to the bytes.
#[derive(Clone, Copy)]
pub struct RawBytes<'a> {
    start: *const u8,
    len: usize,
    memory: PhantomData<&'a ()>,
}

impl<'a> RawBytes<'a> {
    /// The `len` bytes from `start`.
    ///
    /// # Safety
    /// They are initialised and can be read for `'a`. Nobody holds a `&mut` reference to them in that time.
    #[inline]
    pub unsafe fn new(start: *const u8, len: usize) -> Self {
        Self { start, len, memory: PhantomData }
    }

    /// Number of bytes.
    #[inline]
    pub fn len(self) -> usize {
        self.len
    }

    /// Whether there are none.
    #[inline]
    pub fn is_empty(self) -> bool {
        self.len == 0
    }

    /// The first byte, for system calls and for [`copy`](crate::copy).
    #[inline]
    pub fn as_ptr(self) -> *const u8 {
        self.start
    }

    /// A copy of the `N` bytes from `at`, each read exactly once; `None` if they are not all inside.
    #[inline]
    pub fn array<const N: usize>(self, at: usize) -> Option<[u8; N]> {
        let inside = at <= self.len && self.len - at >= N;
        // SAFETY: `at + N <= len`, and `new` requires that `len` initialised bytes from `start` can be read.
        inside.then(|| unsafe { read_once(self.start.add(at)) })
    }

    /// Copies bytes from `at` on, until `out` is full.
    ///
    /// # Panics
    /// If they are not all inside.
    #[inline]
    pub fn read(self, at: usize, out: &mut [u8]) {
        let from = self.range(at..at.saturating_add(out.len()));
        // SAFETY: `range` checked that `out.len()` bytes can be read. `out` is borrowed mutably, so it does not overlap.
        unsafe { crate::copy(from.start, out.as_mut_ptr(), out.len()) };
    }

    /// A part of it.
    ///
    /// # Panics
    /// If the range is not inside.
    #[inline]
    pub fn range(self, range: Range<usize>) -> Self {
        let Range { start, end } = range;
        assert!(start <= end && end <= self.len, "bytes {start}..{end} of {}", self.len);
        // SAFETY: `start <= len`, so the pointer stays within the bytes or at their end, and `end <= len`.
        unsafe { Self::new(self.start.add(start), end - start) }
    }

    /// A copy of all.
    pub fn to_vec(self) -> Vec<u8> {
        let mut copy = vec![0; self.len];
        self.read(0, &mut copy);
        copy
    }
}

/// Copies `N` bytes by volatile loads: from a plain copy, the compiler might read a byte again where it is used, and find
/// another one there than was checked.
///
/// # Safety
/// `N` initialised bytes from `from` can be read.
#[inline(always)]
unsafe fn read_once<const N: usize>(from: *const u8) -> [u8; N] {
    #[repr(C, packed)]
    #[derive(Clone, Copy)]
    struct Word<T>(T);

    let (mut bytes, mut at) = ([0; N], 0);
    macro_rules! words_of {
        ($word:ty) => {
            while N - at >= size_of::<$word>() {
                // SAFETY: the word ends at `N` at most. It is packed, so it needs no alignment, and any bytes make one.
                let word = unsafe { from.add(at).cast::<Word<$word>>().read_volatile() }.0;
                bytes[at..at + size_of::<$word>()].copy_from_slice(&word.to_ne_bytes());
                at += size_of::<$word>();
            }
        };
    }
    words_of!(u64);
    words_of!(u32);
    words_of!(u16);
    words_of!(u8);
    bytes
}

impl<'a, T: AsRef<[u8]> + ?Sized> From<&'a T> for RawBytes<'a> {
    #[inline]
    fn from(bytes: &'a T) -> Self {
        let bytes = bytes.as_ref();
        // SAFETY: a slice's bytes are initialised, and borrowed for `'a`.
        unsafe { Self::new(bytes.as_ptr(), bytes.len()) }
    }
}

impl<'a> From<&'a Packet> for RawBytes<'a> {
    #[inline]
    fn from(packet: &'a Packet) -> Self {
        packet.bytes()
    }
}

impl fmt::Debug for RawBytes<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:02x?}", self.to_vec())
    }
}

impl Packet {
    /// The frame, or what the first buffer holds of it if [segments](Self::segments) follow.
    #[inline]
    pub fn bytes(&self) -> RawBytes<'_> {
        // SAFETY: a packet keeps offset and length inside its buffer, which it owns and keeps; memory of pools is zeroed at
        // first, so every byte is initialised. Only raw pointers lead there.
        unsafe { RawBytes::new(self.as_ptr(), self.len()) }
    }

    /// The first byte, to read from and to write to, as far as [`capacity`](Self::capacity). Others may write there too.
    #[inline]
    pub fn as_ptr(&self) -> *mut u8 {
        self.buffer.slot().data.wrapping_offset(self.offset as isize)
    }

    /// A copy of the `N` bytes from `at`; `None` if the first buffer does not hold them all.
    #[inline]
    pub fn array<const N: usize>(&self, at: usize) -> Option<[u8; N]> {
        self.bytes().array(at)
    }

    /// A copy of the bytes in the first buffer.
    pub fn to_vec(&self) -> Vec<u8> {
        self.bytes().to_vec()
    }

    /// Copies bytes into the frame, from `at` on.
    ///
    /// # Panics
    /// If they are not all inside the first buffer's part of the frame.
    #[inline]
    pub fn write(&mut self, at: usize, bytes: &[u8]) {
        self.write_raw(at, bytes.into());
    }

    /// Copies bytes of another packet into the frame, from `at` on.
    ///
    /// # Panics
    /// If they are not all inside the first buffer's part of the frame.
    #[inline]
    pub fn write_raw(&mut self, at: usize, bytes: RawBytes<'_>) {
        let to = self.bytes().range(at..at.saturating_add(bytes.len()));
        // SAFETY: `range` checked that the bytes are inside this packet's buffer, to which only raw pointers lead; `bytes` can
        // be read, by its type's promise.
        unsafe { crate::copy(bytes.as_ptr(), to.as_ptr().cast_mut(), bytes.len()) };
    }
}
