//! Cyclic redundancy checks: the frame check sequence (IEEE 802.3, 3.2.9) and SCTP's (RFC 9260, appendix A).

const fn table(polynomial: u32) -> [u32; 256] {
    let mut table = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        let mut value = byte as u32;
        let mut bit = 0;
        while bit < 8 {
            value = value >> 1 ^ if value & 1 != 0 { polynomial } else { 0 };
            bit += 1;
        }
        table[byte] = value;
        byte += 1;
    }
    table
}

static ETHERNET: [u32; 256] = table(0xedb8_8320);
static CASTAGNOLI: [u32; 256] = table(0x82f6_3b78);

fn crc<'a>(table: &[u32; 256], bytes: impl Iterator<Item = &'a u8>) -> u32 {
    !bytes.fold(!0, |crc, &byte| crc >> 8 ^ table[(crc as u8 ^ byte) as usize])
}

/// Returns the CRC of a frame; its lowest byte goes onto the wire first.
pub(super) fn crc32(frame: &[u8]) -> u32 {
    crc(&ETHERNET, frame.iter())
}

/// Returns the CRC of an SCTP packet given in parts; its lowest byte goes onto the wire first.
pub(super) fn crc32c(parts: &[&[u8]]) -> u32 {
    crc(&CASTAGNOLI, parts.iter().copied().flatten())
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_check_values_come_out() {
        assert_eq!(super::crc32(b"123456789"), 0xcbf4_3926);
        assert_eq!(super::crc32c(&[b"1234", b"", b"56789"]), 0xe306_9283);
    }
}
