//! Copying frames into as many buffers as they need.

use ringpass_memory::{Cache, Flags, Packet, RawBytes};

/// Copies the pieces, one after the other, into one packet, which is chained as needed. Takes empty packets
/// from `alloc`; returns `None` if there are too few.
pub fn chain<'a>(
    pieces: impl IntoIterator<Item = impl Into<RawBytes<'a>>>,
    mut alloc: impl FnMut() -> Option<Packet>,
) -> Option<Packet> {
    let (mut head, mut last): (Option<Packet>, Packet) = (None, alloc()?);
    last.set_len(0);
    for piece in pieces {
        let (piece, mut at) = (piece.into(), 0);
        loop {
            let len = last.len();
            let here = (piece.len() - at).min(last.capacity() - len);
            last.set_len(len + here);
            last.write_raw(len, piece.range(at..at + here));
            at += here;
            if at == piece.len() {
                break;
            }
            let mut next = alloc()?;
            next.set_len(0);
            let full = std::mem::replace(&mut last, next);
            append(&mut head, full);
        }
    }
    append(&mut head, last);
    head
}

fn append(head: &mut Option<Packet>, packet: Packet) {
    match head {
        Some(head) => head.append(packet),
        None => *head = Some(packet),
    }
}

/// Returns the pieces that hold the `len` bytes of a frame from its byte `from` on.
pub(crate) fn range(packet: &Packet, from: usize, len: usize) -> impl Iterator<Item = RawBytes<'_>> {
    let mut start = 0;
    packet.segments().map(move |segment| {
        let (here, end) = (start, start + segment.len());
        start = end;
        segment.bytes().range(from.clamp(here, end) - here..(from + len).clamp(here, end) - here)
    })
}

/// Copies a packet with all its metadata and requests, into buffers of the cache; `None` if too few are free.
///
/// ```
/// use ringpass_memory::{Burst, Mempool, MempoolConfig};
/// use ringpass_port::copy_packet;
///
/// let pool = Mempool::new(&MempoolConfig { buffers: 64, ..Default::default() })?;
/// let (mut cache, mut burst) = (pool.cache(), Burst::new(2));
/// let mut packet = pool.alloc().expect("a buffer");
/// packet.copy_from(b"both ports send this");
/// burst.push(copy_packet(&packet, &mut cache).expect("buffers"));
/// burst.push(packet);
/// assert_eq!(burst[0].to_vec(), burst[1].to_vec());
/// # Ok::<(), ringpass_memory::Error>(())
/// ```
pub fn copy_packet(packet: &Packet, cache: &mut Cache) -> Option<Packet> {
    let mut copy = chain(packet.segments(), || cache.take(1).next())?;
    copy_flags(packet, &mut copy);
    Some(copy)
}

/// Copies the flags of a packet and their metadata to another packet with the same frame.
pub fn copy_flags(from: &Packet, to: &mut Packet) {
    let verdicts = Flags::L3_GOOD | Flags::L3_BAD | Flags::L4_GOOD | Flags::L4_BAD | Flags::L3_CHECKSUM;
    to.add_flags(from.flags().and(verdicts));
    if let Some(hash) = from.rss_hash() {
        to.set_rss_hash(hash);
    }
    if let Some(tag) = from.vlan() {
        to.set_vlan(tag);
    }
    match (from.headers(), from.mss()) {
        (Some(headers), Some(mss)) => to.request_segmentation(mss, headers),
        (Some(headers), None) => to.request_checksum(headers),
        (None, _) => {}
    }
}

#[cfg(test)]
mod tests {
    use ringpass_memory::{Mempool, MempoolConfig};

    use super::*;

    #[test]
    fn pieces_become_one_frame_in_few_buffers() {
        let pool = Mempool::new(&MempoolConfig { buffers: 8, size: 100, ..Default::default() }).unwrap();
        let bytes: Vec<u8> = (0..=255).collect();
        let packet = chain([&bytes[..90], &[], &bytes[90..95], &bytes[95..]], || pool.alloc()).unwrap();
        assert_eq!(packet.segments().map(|segment| segment.len()).collect::<Vec<_>>(), [100, 100, 56]);
        assert_eq!(packet.segments().flat_map(|segment| segment.to_vec()).collect::<Vec<_>>(), bytes);
        for (from, len) in [(0, 256), (0, 0), (99, 2), (100, 100), (255, 1), (30, 200)] {
            let range = range(&packet, from, len).flat_map(RawBytes::to_vec).collect::<Vec<_>>();
            assert_eq!(range, bytes[from..from + len]);
        }
        assert!(chain([&[0; 600][..]], || pool.alloc()).is_none(), "five are left");
        drop(packet);
        assert_eq!(chain([&[0; 800][..]], || pool.alloc()).unwrap().segments().count(), 8);
        assert!(chain(Vec::<&[u8]>::new(), || pool.alloc()).unwrap().is_empty());
    }

    #[test]
    fn flags_are_copied() {
        let pool = Mempool::new(&MempoolConfig::default()).unwrap();
        let (mut from, mut to) = (pool.alloc().unwrap(), pool.alloc().unwrap());
        from.add_flags(Flags::L4_GOOD);
        from.set_rss_hash(7);
        from.set_vlan(9);
        from.request_segmentation(1000, Default::default());
        from.append(pool.alloc().unwrap());
        copy_flags(&from, &mut to);
        assert_eq!(to.flags(), from.flags().without(Flags::CHAINED).and(to.flags()));
        assert_eq!((to.rss_hash(), to.vlan(), to.mss(), to.is_chained()), (Some(7), Some(9), Some(1000), false));
        assert!(to.flags().any(Flags::L4_GOOD) && to.flags().any(Flags::CHECKSUM));
    }
}
