//! Owning handles to the buffers of a pool: [`Buffer`] without a frame, [`Packet`] with one.

use std::mem::ManuallyDrop;
use std::ptr::NonNull;

use crate::flags::RequestWord;
use crate::shared::put;
use crate::{Flags, Headers, RawBytes, depot, shared};

/// State of a pool.
pub(crate) type Shared = shared::Shared<PacketMetadata>;
/// One buffer's address, size and pool.
pub(crate) type Slot = depot::Slot<Shared>;
/// A pointer to a slot. Arrays are filled with dangling ones, which are never dereferenced.
pub(crate) type SlotRef = NonNull<Slot>;

/// A buffer of a mempool, as a device's ring holds it. Dropping it returns it to its pool, on any thread.
#[derive(Debug)]
#[repr(transparent)]
pub struct Buffer(SlotRef);

// SAFETY: the handle owns its buffer, and returning it may happen on any thread, as the pool is `Sync`.
unsafe impl Send for Buffer {}
// SAFETY: a shared reference only allows reading the slot, which does not change while its buffer is out.
unsafe impl Sync for Buffer {}

impl Buffer {
    /// Creates the handle of a slot's buffer.
    ///
    /// # Safety
    /// The slot is outside its pool's depot. The caller owns it and passes the ownership on.
    pub(crate) unsafe fn new(slot: SlotRef) -> Self {
        Self(slot)
    }

    pub(crate) fn slot(&self) -> &Slot {
        // SAFETY: a buffer outside the depot counts as a reference to its pool (see `Shared`), which owns the
        // slot.
        unsafe { self.0.as_ref() }
    }

    /// Returns the pool, and the slot in it.
    pub(crate) fn home(&self) -> (NonNull<Shared>, SlotRef) {
        (self.slot().pool, self.0)
    }

    /// Returns the address at which a device is to write a frame, behind the standard headroom.
    pub fn iova(&self) -> u64 {
        self.slot().iova
    }

    /// Makes a packet of the first `len` bytes behind the standard headroom.
    ///
    /// # Safety
    /// `len` is at most the pool's buffer size.
    pub unsafe fn into_packet(self, len: usize) -> Packet {
        debug_assert!(len <= self.slot().size as usize);
        Packet { buffer: self, offset: 0, flags: Flags::default(), len: len as u32 }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        let (pool, slot) = self.home();
        // SAFETY: this handle owns the slot, which is outside the depot, and gives it up here.
        unsafe { put(pool, &[slot]) };
    }
}

/// One Ethernet frame, without its CRC, in a buffer.
///
/// Other processes or devices may write its bytes at any time, so these are copied in and out
/// ([`bytes`](Self::bytes), [`write`](Self::write)); there are no references to them:
///
/// ```compile_fail
/// fn frame(packet: &ringpass_memory::Packet) -> &[u8] {
///     packet
/// }
/// ```
///
/// Headers are read as copies, and written back:
///
/// ```
/// # use ringpass_memory::{Mempool, MempoolConfig};
/// # let pool = Mempool::new(&MempoolConfig { buffers: 1, ..Default::default() })?;
/// # let mut packet = pool.alloc().expect("a free buffer");
/// # assert!(packet.copy_from(&[[2; 6], [4; 6], [0; 6]].concat()));
/// if let (Some(to), Some(from)) = (packet.array::<6>(0), packet.array::<6>(6)) {
///     packet.write(0, &from);
///     packet.write(6, &to);
/// }
/// # assert_eq!((packet.array(0), packet.array(6)), (Some([4; 6]), Some([2; 6])));
/// # Ok::<(), ringpass_memory::Error>(())
/// ```
///
/// Dropping it returns the buffer, on any thread. Many packets are better dropped as a [`Burst`](crate::Burst),
/// which returns their buffers together.
///
/// Its layout is fixed for the vector instructions of [`Four`](crate::Four).
#[derive(Debug)]
#[repr(C)]
pub struct Packet {
    pub(crate) buffer: Buffer,
    /// Length of the frame in this buffer. `offset + len` is at most the slot's size.
    pub(crate) len: u32,
    /// Start of the frame, relative to the end of the standard headroom; at least minus the slot's headroom.
    pub(crate) offset: i16,
    pub(crate) flags: Flags,
}

/// Metadata of a packet, kept by the pool outside of the buffer, where nobody else can write it. A field is valid
/// if its flag is set.
#[derive(Default)]
pub(crate) struct PacketMetadata {
    pub(crate) next: Option<Packet>,
    pub(crate) request: RequestWord,
    hash: u32,
    mss: u16,
}

impl Packet {
    /// Returns the buffer and forgets the frame. Further segments are dropped.
    #[inline]
    pub fn into_buffer(mut self) -> Buffer {
        if self.is_chained() {
            self.drop_rest();
        }
        let packet = ManuallyDrop::new(self);
        // SAFETY: `packet` is neither used again nor dropped (`ManuallyDrop`), so only the copy owns the
        // buffer.
        unsafe { std::ptr::read(&packet.buffer) }
    }

    /// Like [`into_buffer`](Self::into_buffer), for a packet that the caller then forgets instead of passing it
    /// by value.
    ///
    /// # Safety
    /// The packet has no further segments, and is forgotten: neither used nor dropped.
    #[inline]
    pub unsafe fn copy_buffer(&self) -> Buffer {
        debug_assert!(!self.is_chained());
        // SAFETY: the packet is neither used nor dropped afterwards, by this function's contract, so only the
        // copy owns the buffer.
        unsafe { std::ptr::read(&self.buffer) }
    }

    /// Returns the packet cut to the bytes `front..end` of its buffer, as a copy of the handle.
    ///
    /// # Safety
    /// The packet is as [`Cache::packets`](crate::Cache::packets) made it, and is forgotten afterwards: neither used nor dropped.
    /// `front <= end`, and `end` is at most the pool's buffer size.
    #[inline]
    pub unsafe fn copy_received(&self, front: usize, end: usize) -> Packet {
        debug_assert!(front <= end && end <= self.len as usize && self.offset == 0 && self.flags == Flags::default());
        // SAFETY: the packet is neither used nor dropped afterwards, by this function's contract, so only the
        // copy owns the buffer.
        let buffer = unsafe { std::ptr::read(&self.buffer) };
        Packet { buffer, offset: front as i16, flags: Flags::default(), len: (end - front) as u32 }
    }

    /// Returns the length in bytes of the frame, or of its part in the first buffer if
    /// [segments](Self::segments) follow.
    #[inline]
    pub fn len(&self) -> usize {
        self.len as usize
    }

    /// Returns the frame's address on the device's side.
    pub fn iova(&self) -> u64 {
        self.buffer.slot().iova.wrapping_add_signed(i64::from(self.offset))
    }

    /// Whether the frame, or its part in the first buffer, is empty.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the number of free bytes in front of the frame.
    #[inline]
    pub fn headroom(&self) -> usize {
        (self.buffer.slot().headroom as i32 + i32::from(self.offset)) as usize
    }

    /// Returns the largest length that the frame can have from its present start.
    #[inline]
    pub fn capacity(&self) -> usize {
        (self.buffer.slot().size as i32 - i32::from(self.offset)) as usize
    }

    /// Sets the frame's length. When it grows, the added bytes keep what the buffer held before.
    ///
    /// # Panics
    /// If `len` is above [`capacity`](Self::capacity).
    #[inline]
    pub fn set_len(&mut self, len: usize) {
        assert!(len <= self.capacity(), "a frame of {len} bytes in a buffer of {}", self.capacity());
        self.len = len as u32;
    }

    /// Replaces the frame by a copy of `bytes`. Returns `false` and changes nothing if it does not fit.
    #[must_use]
    pub fn copy_from(&mut self, bytes: &[u8]) -> bool {
        let fits = bytes.len() <= self.capacity();
        if fits {
            self.len = bytes.len() as u32;
            self.write(0, bytes);
        }
        fits
    }

    /// Extends the frame by `n` bytes at the front, which keep what the buffer held there. Returns `false` and
    /// changes nothing if the headroom is smaller.
    #[inline]
    #[must_use]
    pub fn prepend(&mut self, n: usize) -> bool {
        let fits = n <= self.headroom();
        if fits {
            self.offset -= n as i16;
            self.len += n as u32;
        }
        fits
    }

    /// Adds these bytes in front of the frame. Returns `false` and changes nothing if there is no [`headroom`](Self::headroom) for them.
    ///
    /// Takes the bytes by value, so that what is put together in registers goes from there into the frame.
    #[inline]
    #[must_use]
    pub fn prepend_array<const N: usize>(&mut self, bytes: [u8; N]) -> bool {
        let fits = self.prepend(N);
        if fits {
            // SAFETY: `prepend` has found `N` bytes of headroom, at which the frame begins now. Only raw pointers lead to the buffer,
            // and bytes need no alignment.
            unsafe { self.as_ptr().cast::<[u8; N]>().write(bytes) };
        }
        fits
    }

    /// Removes `n` bytes from the front. Returns `false` and changes nothing if the frame is shorter.
    #[inline]
    #[must_use]
    pub fn trim_front(&mut self, n: usize) -> bool {
        let fits = n <= self.len as usize;
        if fits {
            self.offset += n as i16;
            self.len -= n as u32;
        }
        fits
    }

    /// Sets the frame to `len` bytes, `front` bytes behind its present start. Returns `false` and changes nothing if they do not fit.
    ///
    /// ```
    /// use ringpass_memory::{Mempool, MempoolConfig};
    ///
    /// let mut packet = Mempool::new(&MempoolConfig::default())?.alloc().expect("a buffer");
    /// assert!(packet.copy_from(b"head and body") && packet.set_range(9, 4));
    /// assert_eq!(packet.to_vec(), b"body");
    /// assert!(!packet.set_range(0, 2048) && packet.set_range(0, 2048 - 9));
    /// # Ok::<(), ringpass_memory::Error>(())
    /// ```
    #[inline]
    #[must_use]
    pub fn set_range(&mut self, front: usize, len: usize) -> bool {
        let capacity = self.capacity();
        let fits = front <= capacity && len <= capacity - front;
        if fits {
            self.offset += front as i16;
            self.len = len as u32;
        }
        fits
    }

    /// Returns the bytes of the frame, or of its part in the first buffer if [segments](Self::segments) follow.
    #[inline]
    pub fn bytes(&self) -> RawBytes<'_> {
        // SAFETY: a packet keeps its offset and length inside its buffer, which it owns for the lifetime of the
        // result. The memory of pools is zeroed at first, so every byte is initialised. Nobody makes references
        // to it, only raw pointers.
        unsafe { RawBytes::new(self.as_ptr(), self.len()) }
    }

    /// Returns a pointer to the first byte, for reading and writing up to [`capacity`](Self::capacity) bytes.
    /// Others may write there too.
    #[inline]
    pub fn as_ptr(&self) -> *mut u8 {
        self.buffer.slot().data.wrapping_offset(self.offset as isize)
    }

    /// Returns a copy of the `N` bytes from `at`, or `None` if the first buffer does not hold them all.
    #[inline]
    pub fn array<const N: usize>(&self, at: usize) -> Option<[u8; N]> {
        self.bytes().array(at)
    }

    /// Returns a copy of the bytes in the first buffer.
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
        // SAFETY: `range` checked that the bytes are inside this packet's buffer, to which only raw pointers
        // lead. `bytes` can be read, as `RawBytes::new` requires.
        unsafe { crate::copy(bytes.as_ptr(), to.as_ptr().cast_mut(), bytes.len()) };
    }

    pub(crate) fn metadata(&self) -> &PacketMetadata {
        let slot = self.buffer.slot();
        // SAFETY: the buffer keeps its pool alive, which has an entry for each slot. Only the packet's owner accesses its
        // entry, and `self` is borrowed, so nobody modifies it meanwhile.
        unsafe { &*slot.pool.as_ref().metadata.get_unchecked(slot.index as usize).get() }
    }

    pub(crate) fn metadata_mut(&mut self) -> &mut PacketMetadata {
        let slot = self.buffer.slot();
        // SAFETY: the buffer keeps its pool alive, which has an entry for each slot. Only the packet's owner accesses its
        // entry, and `self` is borrowed mutably, so nobody else accesses it meanwhile.
        unsafe { &mut *slot.pool.as_ref().metadata.get_unchecked(slot.index as usize).get() }
    }

    /// Returns the flags.
    #[inline]
    pub fn flags(&self) -> Flags {
        self.flags
    }

    /// Adds flags that need no further metadata: checksum results, [`L3_CHECKSUM`](Flags::L3_CHECKSUM),
    /// [`NO_LEARN`](Flags::NO_LEARN) and [`LENT`](Flags::LENT).
    #[inline]
    pub fn add_flags(&mut self, flags: Flags) {
        let with_metadata = Flags::HASH | Flags::VLAN | Flags::CHECKSUM | Flags::TSO | Flags::CHAINED;
        debug_assert!(!flags.any(with_metadata), "{flags:?} have methods of their own");
        self.flags |= flags.without(with_metadata);
    }

    /// Clears flags, and with them the metadata that they stand for. [`CHAINED`](Flags::CHAINED) and
    /// [`LENT`](Flags::LENT) stay set.
    #[inline]
    pub fn clear_flags(&mut self, flags: Flags) {
        self.flags = self.flags.without(flags.without(Flags::CHAINED.or(Flags::LENT)));
    }

    /// Returns the RSS hash that the card computed over addresses and ports.
    #[inline]
    pub fn rss_hash(&self) -> Option<u32> {
        self.flags.any(Flags::HASH).then(|| self.metadata().hash)
    }

    /// Sets the RSS hash.
    pub fn set_rss_hash(&mut self, hash: u32) {
        self.metadata_mut().hash = hash;
        self.flags |= Flags::HASH;
    }

    /// Returns the outer VLAN tag (priority, DEI and id) that belongs to the frame but is not in its bytes.
    #[inline]
    pub fn vlan(&self) -> Option<u16> {
        self.flags.any(Flags::VLAN).then(|| self.metadata().request.vlan())
    }

    /// Sets the VLAN tag that is kept outside of the frame.
    pub fn set_vlan(&mut self, tag: u16) {
        self.metadata_mut().request.set_vlan(tag);
        self.flags |= Flags::VLAN;
    }

    /// Returns the positions of the headers, if the packet requests a checksum or segmentation.
    #[inline]
    pub fn headers(&self) -> Option<Headers> {
        self.flags.any(Flags::CHECKSUM | Flags::TSO).then(|| self.metadata().request.headers())
    }

    /// Requests the TCP or UDP checksum; see [`Flags::CHECKSUM`].
    pub fn request_checksum(&mut self, headers: Headers) {
        self.metadata_mut().request.set_headers(headers);
        self.flags |= Flags::CHECKSUM;
    }

    /// Returns the bytes of TCP payload in each segment, if the packet requests segmentation.
    #[inline]
    pub fn mss(&self) -> Option<u16> {
        self.flags.any(Flags::TSO).then(|| self.metadata().mss)
    }

    /// Requests segmentation into frames of `mss` bytes of TCP payload each; see [`Flags::TSO`].
    pub fn request_segmentation(&mut self, mss: u16, headers: Headers) {
        self.request_checksum(headers);
        self.metadata_mut().mss = mss;
        self.flags |= Flags::TSO;
    }

    /// Whether the frame continues in further buffers.
    #[inline]
    pub fn is_chained(&self) -> bool {
        self.flags().any(Flags::CHAINED)
    }

    /// Returns the segments of the frame in order, this packet first. The first segment's flags are those of
    /// the frame.
    pub fn segments(&self) -> impl Iterator<Item = &Packet> {
        std::iter::successors(Some(self), |packet| packet.next())
    }

    /// Returns the length of the whole frame in bytes.
    pub fn total_len(&self) -> usize {
        self.segments().map(|segment| segment.len()).sum()
    }

    fn next(&self) -> Option<&Packet> {
        self.is_chained().then(|| self.metadata().next.as_ref()).flatten()
    }

    /// Appends `rest` to the frame. Walks all segments; to append many, use [`push_segment`](Self::push_segment).
    pub fn append(&mut self, rest: Packet) {
        self.push_segment(rest);
    }

    /// Appends `rest`, and returns the segment at which it starts. Pushing further ones to that segment avoids
    /// the walk over those before it.
    pub fn push_segment(&mut self, rest: Packet) -> &mut Packet {
        let mut last = self;
        while last.is_chained() {
            last = last.metadata_mut().next.as_mut().expect("chained packets have a next one");
        }
        last.flags |= Flags::CHAINED;
        last.metadata_mut().next.insert(rest)
    }

    /// Cuts the whole frame to its first `len` bytes, and drops segments that become empty. Does nothing if the
    /// frame is not longer.
    pub fn truncate(&mut self, len: usize) {
        let (mut left, mut last) = (len, self);
        while left > last.len() && last.is_chained() {
            left -= last.len();
            last = last.metadata_mut().next.as_mut().expect("chained packets have a next one");
        }
        last.set_len(left.min(last.len()));
        drop(last.take_rest());
    }

    /// Detaches and returns what follows the first buffer.
    pub fn take_rest(&mut self) -> Option<Packet> {
        let rest = self.is_chained().then(|| self.metadata_mut().next.take()).flatten();
        self.flags = self.flags.without(Flags::CHAINED);
        rest
    }

    /// Copies the whole frame to the front of `out` and returns its length. Returns `None` and copies nothing
    /// if it does not fit.
    pub fn copy_to(&self, out: &mut [u8]) -> Option<usize> {
        let mut out = out.get_mut(..self.total_len())?;
        let len = out.len();
        for segment in self.segments() {
            let (here, rest) = out.split_at_mut(segment.len());
            segment.bytes().read(0, here);
            out = rest;
        }
        Some(len)
    }

    /// Drops the further segments in a loop, not recursively: a chain may be long.
    #[cold]
    pub(crate) fn drop_rest(&mut self) {
        let mut rest = self.take_rest();
        while let Some(mut packet) = rest {
            rest = packet.take_rest();
        }
    }
}

impl Drop for Packet {
    #[inline]
    fn drop(&mut self) {
        if self.is_chained() {
            self.drop_rest();
        }
    }
}

impl<'a> From<&'a Packet> for RawBytes<'a> {
    #[inline]
    fn from(packet: &'a Packet) -> Self {
        packet.bytes()
    }
}
