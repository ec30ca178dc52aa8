//! The input of a fuzz case.

/// The bytes of a case, read as numbers. Behind its end, all numbers are 0.
pub struct CaseInput<'a>(&'a [u8]);

impl<'a> CaseInput<'a> {
    /// Begins to read a case.
    pub fn new(case: &'a [u8]) -> Self {
        Self(case)
    }

    /// Reads a little-endian number of up to `width` bytes, at most 8.
    pub fn number(&mut self, width: usize) -> u64 {
        let (now, later) = self.0.split_at(width.min(self.0.len()));
        self.0 = later;
        now.iter().rev().fold(0, |number, &byte| number << 8 | u64::from(byte))
    }

    /// Reads a byte, as a number below `end`.
    pub fn below(&mut self, end: usize) -> usize {
        self.number(1) as usize % end
    }

    /// Returns the bytes that are not read yet.
    pub fn rest(&self) -> &'a [u8] {
        self.0
    }

    /// Reads a length and a byte, and returns a frame of 14 to 1,999 bytes. It begins with a copy of up to 64 bytes of
    /// [`rest`](Self::rest) and continues with the byte.
    pub fn frame(&mut self) -> Vec<u8> {
        let (len, byte) = (self.number(2) % 2000, self.number(1) as u8);
        let mut frame: Vec<u8> = self.0.iter().copied().take(64).collect();
        frame.resize((len as usize).max(14), byte);
        frame
    }

    /// Calls `act` until all bytes are read, `most` times at most.
    pub fn each_action(&mut self, most: usize, mut act: impl FnMut(&mut Self)) {
        for _ in 0..most {
            if self.0.is_empty() {
                break;
            }
            act(self);
        }
    }
}

/// Returns whether a case of messages is to be repeated over a socket: one in 512 is, because each message with descriptors
/// takes a process that receives them. It depends on three bits of the case's flags, and on all bytes of its messages.
pub fn runs_over_a_socket(flags: u8, messages: &[u8]) -> bool {
    const SOCKET: u8 = 0xe0;
    let mix = |sum: u32, &byte: &u8| (sum.rotate_left(5) ^ u32::from(byte)).wrapping_mul(0x9e37_79b9);
    flags & SOCKET == SOCKET && messages.iter().fold(0, mix).to_be_bytes()[0].is_multiple_of(64)
}
