//! Objects behind file descriptors, by number. A lookup takes a few loads and never blocks.

use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};

use arc_swap::{ArcSwapOption, Guard};

/// Descriptors of one part of the table, and number of parts.
const PART: usize = 1024;

type Part<T> = Box<[ArcSwapOption<T>]>;

/// A table for descriptors below 2^20.
pub struct Table<T> {
    parts: [OnceLock<Part<T>>; PART],
    count: AtomicUsize,
}

impl<T> Table<T> {
    /// Creates an empty table.
    pub const fn new() -> Self {
        Self { parts: [const { OnceLock::new() }; PART], count: AtomicUsize::new(0) }
    }

    /// Whether the table has no entries.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.count.load(Relaxed) == 0
    }

    /// Returns the object behind a descriptor. It lives as long as the result, even if the descriptor is
    /// closed.
    #[inline]
    pub fn get(&self, fd: i32) -> Option<Guard<Option<Arc<T>>>> {
        if self.is_empty() {
            return None;
        }
        let fd = usize::try_from(fd).ok()?;
        let there = self.parts.get(fd / PART)?.get()?[fd % PART].load();
        there.is_some().then_some(there)
    }

    /// Sets or clears the object behind a descriptor. Returns the previous one; an error if the number is out
    /// of range.
    pub fn set(&self, fd: i32, to: Option<Arc<T>>) -> Result<Option<Arc<T>>, InvalidFd> {
        let fd = usize::try_from(fd).map_err(|_| InvalidFd)?;
        let part = self.parts.get(fd / PART).ok_or(InvalidFd)?;
        if to.is_none() && part.get().is_none() {
            return Ok(None);
        }
        let part = part.get_or_init(|| (0..PART).map(|_| ArcSwapOption::empty()).collect());
        // Counted before it is stored, so that the count is never too low: a reader that sees 0 must not miss
        // an entry.
        self.count.fetch_add(1, Relaxed);
        let set = to.is_some();
        let was = part[fd % PART].swap(to);
        self.count.fetch_sub(usize::from(!set) + usize::from(was.is_some()), Relaxed);
        Ok(was)
    }

    /// Returns the descriptors in a range that have an object.
    pub fn fds_in_range(&self, range: RangeInclusive<usize>) -> Vec<i32> {
        let parts = self.parts.iter().enumerate().filter_map(|(number, part)| Some((number * PART, part.get()?)));
        let slots = parts.flat_map(|(first, part)| part.iter().enumerate().map(move |(at, slot)| (first + at, slot)));
        let there = slots.filter(|(fd, slot)| range.contains(fd) && slot.load().is_some());
        there.map(|(fd, _)| fd as i32).collect()
    }
}

/// The number is negative, or not below 2^20.
#[derive(Debug, PartialEq, Eq)]
pub struct InvalidFd;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_stand_for_what_was_set() {
        let table = Table::new();
        let at = |fd| table.get(fd).map(|there| **there.as_ref().unwrap());
        assert_eq!((at(0), at(-1), table.is_empty()), (None, None, true));
        for fd in [0, 3, 1023, 1024, 1_048_575] {
            assert_eq!(table.set(fd, Some(Arc::new(fd))), Ok(None));
        }
        assert_eq!([0, 3, 1023, 1024, 1_048_575].map(at), [0, 3, 1023, 1024, 1_048_575].map(Some));
        assert_eq!([1, 1025, -1, i32::MIN, i32::MAX, 1 << 20].map(at), [None; 6]);
        assert_eq!(table.set(-1, None), Err(InvalidFd));
        assert_eq!(table.set(1 << 20, Some(Arc::new(1))), Err(InvalidFd));
        assert_eq!(table.fds_in_range(1..=1024), [3, 1023, 1024]);
        assert_eq!(table.set(3, Some(Arc::new(7))).unwrap().as_deref(), Some(&3));
        for fd in [0, 3, 1023, 1024, 1_048_575] {
            assert!(!table.is_empty());
            assert!(table.set(fd, None).unwrap().is_some());
        }
        assert!(table.is_empty() && table.set(3, None) == Ok(None));
    }

    /// An object that is in use survives its removal, and is dropped once.
    #[test]
    fn readers_keep_what_is_taken_out() {
        let (table, thing) = (Table::new(), Arc::new(5));
        table.set(9, Some(thing.clone())).unwrap();
        let seen = table.get(9).unwrap();
        drop(table.set(9, None).unwrap());
        assert_eq!(**seen.as_ref().unwrap(), 5);
        drop(seen);
        assert_eq!(Arc::strong_count(&thing), 1);
    }

    #[test]
    fn threads_set_and_look() {
        let table = Table::new();
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let table = &table;
                scope.spawn(move || {
                    for round in 0..20_000 {
                        let fd = (thread + round) % 5;
                        if let Some(there) = table.get(fd) {
                            assert_eq!(**there.as_ref().unwrap(), fd);
                        }
                        table.set(fd, (round % 3 != 0).then(|| Arc::new(fd))).unwrap();
                    }
                });
            }
        });
        (0..5).for_each(|fd| drop(table.set(fd, None)));
        assert!(table.is_empty());
    }
}
