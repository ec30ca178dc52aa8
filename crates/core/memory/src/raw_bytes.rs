//! Bytes that others may write at the same time.
//!
//! A frame may lie in memory of another process, or in a pool that one or a card writes as well. A `&[u8]`
//! to it would promise the compiler that nobody does. So the memory of packets is accessed by copying through
//! raw pointers only, as in crates for guest memory (`vm-memory`). A copy holds whatever the bytes were at that
//! time, possibly a mixture of two writes, and does not change afterwards. Code copies a header once, checks
//! the copy and uses it.

use std::fmt;
use std::marker::PhantomData;
use std::ops::Range;

/// A range of memory that others may write at any time: a pointer and a length, without a reference to the
/// bytes.
#[derive(Clone, Copy)]
pub struct RawBytes<'a> {
    start: *const u8,
    len: usize,
    memory: PhantomData<&'a ()>,
}

impl<'a> RawBytes<'a> {
    /// Creates the range of `len` bytes from `start`.
    ///
    /// # Safety
    /// The bytes are initialised and readable for `'a`. Nobody holds a `&mut` reference to them during that
    /// time.
    #[inline]
    pub unsafe fn new(start: *const u8, len: usize) -> Self {
        Self { start, len, memory: PhantomData }
    }

    /// Returns the number of bytes.
    #[inline]
    pub fn len(self) -> usize {
        self.len
    }

    /// Whether the range is empty.
    #[inline]
    pub fn is_empty(self) -> bool {
        self.len == 0
    }

    /// Returns a pointer to the first byte, for system calls and for [`copy`](crate::copy).
    #[inline]
    pub fn as_ptr(self) -> *const u8 {
        self.start
    }

    /// Returns a copy of the `N` bytes from `at`, each read exactly once, or `None` if they are not all inside.
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
        // SAFETY: `range` checked that `out.len()` bytes can be read. `out` is borrowed mutably, so it does not
        // overlap.
        unsafe { crate::copy(from.start, out.as_mut_ptr(), out.len()) };
    }

    /// Returns a part of the range.
    ///
    /// # Panics
    /// If the range is not inside.
    #[inline]
    pub fn range(self, range: Range<usize>) -> Self {
        let Range { start, end } = range;
        assert!(start <= end && end <= self.len, "bytes {start}..{end} of {}", self.len);
        // SAFETY: `start <= end <= len`, so the new range lies within this one, whose bytes `new` requires to
        // be initialised and readable for `'a`.
        unsafe { Self::new(self.start.add(start), end - start) }
    }

    /// Returns a copy of all bytes.
    pub fn to_vec(self) -> Vec<u8> {
        let mut copy = vec![0; self.len];
        self.read(0, &mut copy);
        copy
    }
}

/// Copies `N` bytes by volatile loads. After a plain copy, the compiler might read a byte again where it is
/// used, and find a value that was not checked.
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
                // SAFETY: the loop's condition keeps the value within the `N` bytes, which are readable by this
                // function's contract. `Word` is packed, so it needs no alignment, and any bytes are a valid
                // integer.
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
        // SAFETY: a slice's bytes are initialised and are borrowed for `'a`.
        unsafe { Self::new(bytes.as_ptr(), bytes.len()) }
    }
}

impl fmt::Debug for RawBytes<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:02x?}", self.to_vec())
    }
}
