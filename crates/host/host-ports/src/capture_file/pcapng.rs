//! The blocks of pcapng files that contain packets, and those needed to interpret them: sections and
//! interfaces.

use super::stream::{ReadError, Stream};
use super::{ByteOrder, ETHERNET, MAX_FRAME};

pub(super) const SECTION_HEADER: u32 = 0x0a0d_0d0a;
pub(super) const INTERFACE: u32 = 1;
const PACKET: u32 = 2;
const SIMPLE_PACKET: u32 = 3;
pub(super) const ENHANCED_PACKET: u32 = 6;
pub(super) const INTERFACE_STATISTICS: u32 = 5;
pub(super) const BYTE_ORDER_MAGIC: u32 = 0x1a2b_3c4d;
pub(super) const IF_NAME: u16 = 2;
pub(super) const IF_TSRESOL: u16 = 9;
const IF_TSOFFSET: u16 = 14;

/// Framing of a block in bytes: type and length at its start, length at its end.
const FRAMING: usize = 12;
/// Longest interface description in bytes; longer ones mean that the file is damaged.
const MAX_INTERFACE_BLOCK: usize = 64 << 10;
/// Largest number of interfaces in a section; more mean that the file is damaged.
const MAX_INTERFACES: usize = 4096;

/// An interface description.
struct Interface {
    link: u16,
    snaplen: u32,
    /// Time unit (`if_tsresol`): 10^-n seconds or, with the highest bit set, 2^-n seconds.
    resolution: u8,
    /// Time offset (`if_tsoffset`) in seconds.
    offset: i64,
}

impl Interface {
    fn nanos(&self, time: u64) -> u64 {
        const SECOND: u128 = 1_000_000_000;
        let exponent = u32::from(self.resolution & 0x7f);
        let nanos = if self.resolution & 0x80 != 0 {
            (u128::from(time) * SECOND).checked_shr(exponent).unwrap_or(0)
        } else {
            10u128.checked_pow(exponent).map_or(0, |units| u128::from(time) * SECOND / units)
        };
        let nanos = i128::try_from(nanos).unwrap_or(i128::MAX);
        nanos.saturating_add(i128::from(self.offset) * SECOND as i128).clamp(0, u64::MAX.into()) as u64
    }
}

/// Location of a packet: `skip` bytes into a block of `block` bytes, with captured and original length, and its
/// time.
pub(super) struct PacketBlock {
    pub(super) skip: usize,
    pub(super) captured: usize,
    pub(super) original: usize,
    pub(super) block: usize,
    pub(super) nanos: u64,
}

/// State of the section that is being read.
pub(super) struct Section {
    order: ByteOrder,
    interfaces: Vec<Interface>,
}

fn damaged<T>(what: impl Into<String>) -> Result<T, ReadError> {
    Err(ReadError::Damaged(what.into()))
}

impl Section {
    /// Returns the state before the first section header.
    pub(super) fn new() -> Self {
        Self { order: ByteOrder::Little, interfaces: Vec::new() }
    }

    /// Reads up to and including the first interface description, and checks that its link type is Ethernet.
    /// Reads to the end of a file that has none.
    pub(super) fn first_interface(&mut self, stream: &mut Stream) -> Result<(), ReadError> {
        while self.interfaces.is_empty() && stream.fill(8)? > 0 {
            let (kind, length) = self.block(stream)?;
            if matches!(kind, PACKET | SIMPLE_PACKET | ENHANCED_PACKET) {
                return damaged("a packet before any interface");
            }
            self.pass(stream, kind, length)?;
        }
        match self.interfaces.first() {
            Some(&Interface { link, .. }) => only_ethernet(link),
            None => Ok(()),
        }
    }

    /// Reads up to the next packet, which stays in the stream; `None` at the end of the file.
    pub(super) fn next(&mut self, stream: &mut Stream) -> Result<Option<PacketBlock>, ReadError> {
        while stream.fill(8)? > 0 {
            let (kind, length) = self.block(stream)?;
            match kind {
                ENHANCED_PACKET | PACKET | SIMPLE_PACKET => return self.packet(stream, kind, length).map(Some),
                _ => self.pass(stream, kind, length)?,
            }
        }
        Ok(None)
    }

    /// Returns type and length of the next block, whose head is in the stream's buffer afterwards.
    fn block(&mut self, stream: &mut Stream) -> Result<(u32, usize), ReadError> {
        let head = stream.need(8)?;
        // This type reads the same in both byte orders.
        if self.order.u32(head, 0) == SECTION_HEADER {
            let head = stream.need(12)?;
            self.order = match (ByteOrder::Little.u32(head, 8), ByteOrder::Big.u32(head, 8)) {
                (BYTE_ORDER_MAGIC, _) => ByteOrder::Little,
                (_, BYTE_ORDER_MAGIC) => ByteOrder::Big,
                _ => return damaged("a section without byte order"),
            };
        }
        let head = stream.need(8)?;
        let (kind, length) = (self.order.u32(head, 0), self.order.u32(head, 4) as usize);
        if length < FRAMING || !length.is_multiple_of(4) {
            return damaged(format!("a block of {length} bytes"));
        }
        Ok((kind, length))
    }

    /// Consumes a block that is no packet.
    fn pass(&mut self, stream: &mut Stream, kind: u32, length: usize) -> Result<(), ReadError> {
        match kind {
            SECTION_HEADER => {
                // Minor versions are compatible (draft-ietf-opsawg-pcapng, 4.1).
                let major = self.order.u16(stream.need(16)?, 12);
                if length < 28 || major != 1 {
                    return damaged(format!("a section of version {major}"));
                }
                self.interfaces.clear();
            }
            INTERFACE if length > MAX_INTERFACE_BLOCK || self.interfaces.len() == MAX_INTERFACES => {
                return damaged("too many or too long interface descriptions");
            }
            INTERFACE => {
                let interface = self.interface(stream.need(length)?)?;
                self.interfaces.push(interface);
            }
            _ => {}
        }
        stream.skip(length)
    }

    fn interface(&self, block: &[u8]) -> Result<Interface, ReadError> {
        if block.len() < 20 {
            return damaged("an interface description that is too short");
        }
        let (link, snaplen) = (self.order.u16(block, 8), self.order.u32(block, 12));
        // The default unit is microseconds.
        let mut interface = Interface { link, snaplen, resolution: 6, offset: 0 };
        let mut options = &block[16..block.len() - 4];
        while options.len() >= 4 {
            let (code, len) = (self.order.u16(options, 0), usize::from(self.order.u16(options, 2)));
            let Some(value) = options.get(4..4 + len) else { return damaged("an option beyond its block") };
            match (code, len) {
                (0, _) => break,
                (IF_TSRESOL, 1) => interface.resolution = value[0],
                (IF_TSOFFSET, 8) => {
                    let (a, b) = (u64::from(self.order.u32(value, 0)), u64::from(self.order.u32(value, 4)));
                    interface.offset = (if self.order == ByteOrder::Little { b << 32 | a } else { a << 32 | b }) as i64;
                }
                _ => {}
            }
            options = options.get(4 + len.next_multiple_of(4)..).unwrap_or_default();
        }
        Ok(interface)
    }

    /// Parses an enhanced, simple or (obsolete) plain packet block.
    fn packet(&self, stream: &mut Stream, kind: u32, block: usize) -> Result<PacketBlock, ReadError> {
        let skip = if kind == SIMPLE_PACKET { 12 } else { 28 };
        if block < skip + 4 {
            return damaged(format!("a packet block of {block} bytes"));
        }
        let order = self.order;
        let head = stream.need(skip)?;
        let index = match kind {
            SIMPLE_PACKET => 0,
            PACKET => usize::from(order.u16(head, 8)),
            _ => order.u32(head, 8) as usize,
        };
        let Some(interface) = self.interfaces.get(index) else { return damaged(format!("no interface {index}")) };
        only_ethernet(interface.link)?;
        let (captured, original, nanos) = if kind == SIMPLE_PACKET {
            let original = order.u32(head, 8);
            (original.min(if interface.snaplen == 0 { u32::MAX } else { interface.snaplen }), original, 0)
        } else {
            let time = u64::from(order.u32(head, 12)) << 32 | u64::from(order.u32(head, 16));
            (order.u32(head, 20), order.u32(head, 24), interface.nanos(time))
        };
        let (captured, original) = (captured as usize, original as usize);
        if captured > MAX_FRAME || captured > block - skip - 4 {
            return damaged(format!("a packet of {captured} bytes in a block of {block}"));
        }
        stream.need(skip + captured)?;
        Ok(PacketBlock { skip, captured, original, block, nanos })
    }
}

fn only_ethernet(link: u16) -> Result<(), ReadError> {
    if link == ETHERNET { Ok(()) } else { damaged(format!("link type {link}; Ethernet (1) is needed")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_in_any_unit() {
        let nanos = |resolution, offset, time| Interface { link: 1, snaplen: 0, resolution, offset }.nanos(time);
        assert_eq!(nanos(6, 0, 1_500_000), 1_500_000_000);
        assert_eq!(nanos(9, 0, 7), 7);
        assert_eq!(nanos(12, 0, 7_999), 7);
        assert_eq!(nanos(0, 0, 2), 2_000_000_000);
        assert_eq!(nanos(0x80 | 10, 0, 512), 500_000_000);
        assert_eq!(nanos(9, -1, 1_000_000_005), 5);
        assert_eq!(nanos(9, -2, 1_000_000_005), 0);
        assert_eq!(nanos(0, i64::MAX, u64::MAX), u64::MAX);
        assert_eq!(nanos(0x7f, 0, u64::MAX), 0);
        assert_eq!(nanos(0xff, 0, u64::MAX), 0);
    }
}
