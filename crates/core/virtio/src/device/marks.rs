//! Marks of the buffers that the device has.

use super::Used;

/// Removes the marks of `used`, and passes the id of each to `note`. Returns the number of ring positions that
/// they take, and the last of them.
#[inline(always)]
pub(super) fn unmark_all(
    marks: &mut [u8],
    used: impl Iterator<Item = Used>,
    mut note: impl FnMut(u16),
) -> (u16, Option<Used>) {
    used.fold((0, None), |(places, _), used| {
        if let Some(mark) = marks.get_mut(usize::from(used.id)) {
            *mark = 0;
        }
        note(used.id);
        (places + used.descriptors, Some(used))
    })
}
