//! Access to 32-bit registers by messages of any length.

/// Reads any bytes of registers; each register touched is read as a whole.
pub fn read(offset: u64, out: &mut [u8], register: impl Fn(u64) -> u32) {
    let (mut at, mut out) = (offset, out);
    while !out.is_empty() {
        let skip = (at % 4) as usize;
        let count = (4 - skip).min(out.len());
        let word = register(at - skip as u64).to_le_bytes();
        let (now, later) = out.split_at_mut(count);
        now.copy_from_slice(&word[skip..skip + count]);
        (at, out) = (at + count as u64, later);
    }
}

/// Returns the registers that a write covers completely, with their new values. Registers covered in part are not
/// written.
pub fn written(offset: u64, data: &[u8]) -> impl Iterator<Item = (u64, u32)> + '_ {
    let skip = (offset.next_multiple_of(4) - offset) as usize;
    let words = data.get(skip..).unwrap_or_default().chunks_exact(4);
    (offset + skip as u64..).step_by(4).zip(words.map(|word| u32::from_le_bytes([word[0], word[1], word[2], word[3]])))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_part_is_read_whole_words_are_written() {
        let register = |at: u64| 0x0302_0100 + 0x0404_0404 * (at / 4) as u32;
        for (offset, len) in (0..9).flat_map(|offset| (0..9).map(move |len| (offset, len))) {
            let mut out = vec![0; len];
            read(offset, &mut out, register);
            let expected: Vec<u8> = (offset as u8..).take(len).collect();
            assert_eq!(out, expected);
            let writes: Vec<(u64, u32)> = written(offset, &expected).collect();
            let whole = (0..5).map(|n| 4 * n).filter(|at| (offset..=offset + len as u64).contains(at));
            let whole = whole.filter(|at| at + 4 <= offset + len as u64).map(|at| (at, register(at)));
            assert_eq!(writes, whole.collect::<Vec<_>>(), "{offset} {len}");
        }
    }
}
