//! Copies of frames in rings of cells, a cache line each: a short frame takes one, and a ring of them lies densely in memory.

use ringpass_memory::Packet;

use crate::capture_file::{MAX_FRAME, append_frame};
use crate::ring::{Consumer, Producer};

/// Bytes of a cell.
const CELL: usize = 64;
/// Bytes in front of a frame in its first cell.
const HEAD: usize = 4;
/// In the place of a frame's length: the frames behind have another time.
const TIME: u32 = u32::MAX;

/// A part of a frame, or of what is said of frames.
#[derive(Clone, Copy)]
#[repr(align(64))]
pub(super) struct Cell([u8; CELL]);

/// Length of a VLAN tag in bytes.
const TAG: usize = 4;

/// Returns the number of cells that a frame takes.
pub(super) fn cells(packet: &Packet) -> usize {
    let tag = if packet.vlan().is_some() { TAG } else { 0 };
    (HEAD + packet.total_len() + tag).div_ceil(CELL)
}

/// Stages a time in nanoseconds since 1970, that of the frames behind it. It takes a cell.
pub(super) fn stage_time(ring: &mut Producer<Cell>, nanos: u64) {
    let mut cell = [0; CELL];
    cell[..HEAD].copy_from_slice(&TIME.to_le_bytes());
    cell[HEAD..HEAD + 8].copy_from_slice(&nanos.to_le_bytes());
    ring.stage(Cell(cell));
}

/// Stages a frame, for which there is room. `false`, without a cell, if it is longer than any.
#[inline]
pub(super) fn stage_frame(ring: &mut Producer<Cell>, packet: &Packet) -> bool {
    if packet.is_chained() || packet.vlan().is_some() {
        return stage_long(ring, packet);
    }
    let bytes = packet.bytes();
    let len = packet.len();
    let mut cell = [0; CELL];
    cell[..HEAD].copy_from_slice(&(len as u32).to_le_bytes());
    // Lengths that are known when this is compiled make no calls.
    match bytes.array::<{ CELL - HEAD }>(0) {
        Some(front) => cell[HEAD..].copy_from_slice(&front),
        None => bytes.read(0, &mut cell[HEAD..HEAD + len]),
    }
    ring.stage(Cell(cell));
    let mut next = CELL - HEAD;
    while next + CELL <= len {
        let mut cell = [0; CELL];
        bytes.read(next, &mut cell);
        ring.stage(Cell(cell));
        next += CELL;
    }
    if next < len {
        let mut cell = [0; CELL];
        bytes.read(next, &mut cell[..len - next]);
        ring.stage(Cell(cell));
    }
    true
}

/// Stages a frame in several buffers, or one whose VLAN tag is beside it.
#[cold]
fn stage_long(ring: &mut Producer<Cell>, packet: &Packet) -> bool {
    // With room for a tag.
    if packet.total_len() + TAG > MAX_FRAME {
        return false;
    }
    let mut bytes = vec![0; HEAD];
    append_frame(packet, &mut bytes);
    let len = (bytes.len() - HEAD) as u32;
    bytes[..HEAD].copy_from_slice(&len.to_le_bytes());
    for part in bytes.chunks(CELL) {
        let mut cell = [0; CELL];
        cell[..part.len()].copy_from_slice(part);
        ring.stage(Cell(cell));
    }
    true
}

/// Reads frames out of a ring of cells.
pub(super) struct FrameReader {
    ring: Consumer<Cell>,
    /// Time of the next frame.
    nanos: u64,
}

impl FrameReader {
    pub(super) fn new(ring: Consumer<Cell>) -> Self {
        Self { ring, nanos: 0 }
    }

    /// Returns the time of the next frame, if there is one.
    pub(super) fn peek(&mut self) -> Option<u64> {
        loop {
            let Cell(cell) = self.ring.peek()?;
            let [head, low, high] =
                [0, 4, 8].map(|at| u32::from_le_bytes([cell[at], cell[at + 1], cell[at + 2], cell[at + 3]]));
            if head != TIME {
                return Some(self.nanos);
            }
            self.nanos = u64::from(high) << 32 | u64::from(low);
            let _ = self.ring.take(1).next();
        }
    }

    /// Takes the next frame into `frame`, replacing what is there. All of its cells were published together.
    pub(super) fn take(&mut self, frame: &mut Vec<u8>) {
        frame.clear();
        let Some(Cell(cell)) = self.ring.peek() else { return };
        let len = u32::from_le_bytes([cell[0], cell[1], cell[2], cell[3]]) as usize;
        for Cell(part) in self.ring.take((HEAD + len).div_ceil(CELL)) {
            frame.extend_from_slice(&part);
        }
        frame.drain(..HEAD.min(frame.len()));
        frame.truncate(len);
    }
}
