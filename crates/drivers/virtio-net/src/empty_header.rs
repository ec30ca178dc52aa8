//! The header of a frame that requests nothing: zeros.

use ringpass_memory::Flags;

/// Flags by which a packet requests an offload.
pub(crate) const REQUESTS: Flags = Flags::CHECKSUM.or(Flags::TSO);

/// Writes a header of `N` zeros in front of a frame, unless it is there.
///
/// # Safety
/// The frame's buffer has `N` bytes of headroom before `frame`, and its owner has lent it to the caller.
#[inline(always)]
pub(crate) unsafe fn write_zeros<const N: usize>(frame: *mut u8) {
    let header = frame.wrapping_sub(N).cast::<[u8; N]>();
    // The bytes are mostly zero already, since the buffer was last sent. Writing them again would take the cache
    // line from the core that reads them, which costs both cores more than this comparison.
    // SAFETY: these `N` bytes are inside the packet's buffer, by this function's contract; its memory is initialised
    // and reached through raw pointers only. An array of bytes needs no alignment.
    unsafe {
        if header.read() != [0; N] {
            header.write([0; N]);
        }
    }
}
