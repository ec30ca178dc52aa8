//! Parses what the kernel reports about a container's IOMMU.

use vfio_bindings::bindings::vfio::{VFIO_IOMMU_INFO_CAPS, VFIO_IOMMU_TYPE1_INFO_CAP_IOVA_RANGE};

/// Returns the address ranges that the IOMMU can map, as first and last address; empty if the kernel does not
/// report them.
///
/// `struct vfio_iommu_type1_info` has its flags at offset 4 and the offset of its first capability at 16. A
/// capability begins with its id (16 bits), its version and the offset of the next one; in that of the address
/// ranges, their number is at 8 and the ranges begin at 16.
pub(super) fn ranges(info: &[u8]) -> Vec<(u64, u64)> {
    let number = |at: usize, len: usize| -> Option<u64> {
        let mut bytes = [0; 8];
        bytes[..len].copy_from_slice(info.get(at..at.checked_add(len)?)?);
        Some(u64::from_le_bytes(bytes))
    };
    let find = || -> Option<Vec<(u64, u64)>> {
        if number(4, 4)? as u32 & VFIO_IOMMU_INFO_CAPS == 0 {
            return None;
        }
        let mut at = number(16, 4)? as usize;
        // Offsets must increase, so that the loop ends.
        while number(at, 2)? as u32 != VFIO_IOMMU_TYPE1_INFO_CAP_IOVA_RANGE {
            at = Some(number(at + 4, 4)? as usize).filter(|&next| next > at)?;
        }
        let count = number(at + 8, 4)? as usize;
        let range = |i| Some((number(at + 16 + 16 * i, 8)?, number(at + 24 + 16 * i, 8)?));
        (0..count.min(info.len())).map(range).collect()
    };
    find().unwrap_or_default()
}

/// Returns whether all of `start..start + len` lies in one of the ranges, or no ranges are known. `len` must
/// not be 0.
pub(super) fn inside(ranges: &[(u64, u64)], start: u64, len: usize) -> bool {
    let Some(last) = start.checked_add(len as u64 - 1) else { return false };
    ranges.is_empty() || ranges.iter().any(|&(first, end)| first <= start && last <= end)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn info(words: &[u32]) -> Vec<u8> {
        words.iter().flat_map(|word| word.to_le_bytes()).collect()
    }

    #[test]
    fn ranges_are_found_behind_other_capabilities() {
        let mut words = vec![96, 2, 0, 0, 24, 0]; // size, flags, page sizes, first capability, padding
        words.extend([2 | 1 << 16, 36, 0]); // the migration capability
        words.extend([1 | 1 << 16, 0, 2, 0, 0, 0, 0xfedf_ffff, 0, 0xfef0_0000, 0, u32::MAX, 0x7f]);
        let ranges = super::ranges(&info(&words));
        assert_eq!(ranges, [(0, 0xfedf_ffff), (0xfef0_0000, 0x7f_ffff_ffff)]);
        assert!(inside(&ranges, 0xfedf_f000, 4096) && !inside(&ranges, 0xfedf_f000, 8192));
        assert!(inside(&ranges, 0x7f_ffff_f000, 4096) && !inside(&ranges, 0x80_0000_0000, 4096));
        assert!(!inside(&ranges, u64::MAX - 10, 4096));
        // If the kernel reports no ranges, all addresses are accepted.
        assert!(inside(&[], 0x7fff_ffff_f000, 4096));
    }

    #[test]
    fn what_makes_no_sense_is_left_alone() {
        for words in [
            &[0, 0][..],
            &[24, 2, 0, 0, 0, 0],         // offset 0 ends the chain
            &[24, 2, 0, 0, 5000, 0],      // an offset out of range
            &[32, 2, 0, 0, 24, 0, 9, 24], // a capability that points to itself
            &[40, 2, 0, 0, 24, 0, 1, 0, u32::MAX, 0],
        ] {
            assert_eq!(ranges(&info(words)), [], "{words:x?}");
        }
    }
}
