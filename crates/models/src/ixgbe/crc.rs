//! The frame check sequence (IEEE 802.3, 3.2.9).

const TABLE: [u32; 256] = {
    let mut table = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        let mut value = byte as u32;
        let mut bit = 0;
        while bit < 8 {
            value = value >> 1 ^ if value & 1 != 0 { 0xedb8_8320 } else { 0 };
            bit += 1;
        }
        table[byte] = value;
        byte += 1;
    }
    table
};

/// The CRC of a frame; its lowest byte goes onto the wire first.
pub(super) fn crc32(frame: &[u8]) -> u32 {
    !frame.iter().fold(!0, |crc, &byte| crc >> 8 ^ TABLE[(crc as u8 ^ byte) as usize])
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_check_value_comes_out() {
        assert_eq!(super::crc32(b"123456789"), 0xcbf4_3926);
    }
}
