//! What a program requests by `NETMAP_REQ_OPT_OFFSETS`.

use super::Fields;
use crate::Offsets;

/// Offsets of frames in their buffers, as a program requests them and as they are granted (`struct nmreq_opt_offsets` behind its
/// header).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AskedOffsets {
    /// Largest offset in bytes.
    pub max: u64,
    /// Offset that all slots get.
    pub initial: u64,
    /// Number of bits of a slot's pointer that are the offset; 0 for all.
    pub bits: u32,
    /// Alignment of the frames to be sent. Any is right here, as frames are copied.
    pub tx_align: u32,
    /// Reserved; 0.
    pub min_gap: u64,
}

impl AskedOffsets {
    /// Bytes of it.
    pub const LEN: usize = 32;

    /// Parses it. Any bytes are valid.
    pub fn parse(bytes: &[u8; Self::LEN]) -> Self {
        let mut fields = Fields(bytes);
        let (max, initial) = (fields.u64(), fields.u64());
        let bits = fields.u32();
        Self { max, initial, bits, tx_align: fields.u32(), min_gap: fields.u64() }
    }

    /// Serialises it.
    pub fn bytes(&self) -> Vec<u8> {
        let Self { max, initial, bits, tx_align, min_gap } = self;
        let mut bytes = [max, initial].map(|word| word.to_le_bytes()).concat();
        bytes.extend([bits, tx_align].map(|word| word.to_le_bytes()).concat());
        bytes.extend(min_gap.to_le_bytes());
        bytes
    }

    /// Returns the offsets, in buffers of `buffer` bytes, or why there cannot be such.
    pub fn offsets(&self, buffer: usize) -> Result<Offsets, String> {
        let Self { max, initial, bits, min_gap, .. } = *self;
        if max > buffer as u64 {
            return Err(format!("an offset of {max} in buffers of {buffer} bytes"));
        }
        if initial > max {
            return Err(format!("an initial offset of {initial}, where the largest is {max}"));
        }
        if min_gap != 0 {
            return Err("a reserved field that is not 0".into());
        }
        Offsets::new(max, bits).ok_or_else(|| format!("an offset of {max} in {bits} bits of 64"))
    }

    /// Returns it as granted.
    pub fn granted(&self, offsets: Offsets) -> Self {
        Self { max: offsets.max().into(), bits: offsets.bits(), ..*self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_come_as_they_go() {
        let bytes: [u8; 32] = std::array::from_fn(|n| n as u8);
        let asked = AskedOffsets::parse(&bytes);
        assert_eq!((asked.max, asked.initial), (0x0706_0504_0302_0100, 0x0f0e_0d0c_0b0a_0908));
        assert_eq!((asked.bits, asked.bytes()), (0x1312_1110, bytes.to_vec()));
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        let asked = |max, initial, bits| AskedOffsets { max, initial, bits, ..AskedOffsets::default() };
        let granted = asked(128, 64, 16).offsets(2048).unwrap();
        assert_eq!(asked(128, 64, 16).granted(granted), asked(128, 64, 16));
        assert_eq!(asked(128, 64, 0).granted(asked(128, 64, 0).offsets(2048).unwrap()), asked(128, 64, 64));
        for invalid in
            [asked(2049, 0, 0), asked(64, 128, 16), asked(1024, 0, 8), asked(64, 0, 65), asked(u64::MAX, 0, 0)]
        {
            assert!(invalid.offsets(2048).is_err(), "{invalid:?}");
        }
        assert!(AskedOffsets { min_gap: 1, ..asked(1, 1, 1) }.offsets(2048).is_err());
    }
}
