//! Objects behind file descriptors, by number. A lookup takes a few loads and never blocks. Where the kernel
//! duplicates or closes a descriptor that has an object, both change in one step, under [`Table::lock`].

use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};

use arc_swap::{ArcSwapOption, Guard};

use crate::change_lock::ChangeLock;

/// Descriptors of one part of the table, and number of parts.
const PART: usize = 1024;

type Part<T> = Box<[ArcSwapOption<T>]>;

/// A table for descriptors below 2^20.
pub struct Table<T> {
    parts: [OnceLock<Part<T>>; PART],
    count: AtomicUsize,
    /// Held while the kernel's descriptors and this table change together.
    pub lock: ChangeLock,
}

impl<T> Table<T> {
    /// Creates an empty table.
    pub const fn new() -> Self {
        Self { parts: [const { OnceLock::new() }; PART], count: AtomicUsize::new(0), lock: ChangeLock::new() }
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

    /// Duplicates a descriptor and the object behind it, in one step. `kernel` makes the new descriptor and
    /// returns its number, which is `to` if that is given, or -1 if it fails.
    pub fn duplicate(&self, old: i32, to: Option<i32>, kernel: impl FnOnce() -> i32) -> i32 {
        let held = self.lock.hold();
        let object = self.get(old).and_then(|there| (*there).clone());
        // Lookups take no lock. So an object is entered before its descriptor and removed after it: in between,
        // other threads find an object, not the kernel's file behind one.
        let early = to.filter(|&to| to != old && object.is_some());
        let mut replaced = early.and_then(|to| self.set(to, object.clone()).unwrap_or_default());
        let new = kernel();
        match early {
            Some(to) if new < 0 => drop(self.set(to, replaced.take())),
            None if new >= 0 && new != old => replaced = self.set(new, object.clone()).unwrap_or_default(),
            _ => {}
        }
        // First the lock: dropping an object may take a while.
        drop(held);
        drop(replaced);
        new
    }

    /// Closes a descriptor by `kernel` and removes the object behind it, in one step. Removed first, because
    /// another thread may be given the number as soon as the kernel has closed it.
    pub fn close(&self, fd: i32, kernel: impl FnOnce() -> i32) -> i32 {
        let held = self.lock.hold();
        let removed = self.set(fd, None);
        let result = kernel();
        // First the lock: dropping an object may take a while.
        drop(held);
        drop(removed);
        result
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
    fn an_object_is_there_before_its_descriptor_and_goes_after_it() {
        let table = Table::new();
        let at = |fd| table.get(fd).map(|there| **there.as_ref().unwrap());
        table.set(3, Some(Arc::new(3))).unwrap();
        let duplicate = |old, to, new, during: Option<i32>| {
            let kernel = || {
                assert_eq!(at(9), during, "while the kernel duplicates {old}");
                new
            };
            assert_eq!(table.duplicate(old, to, kernel), new);
            at(9)
        };
        assert_eq!(duplicate(3, Some(9), 9, Some(3)), Some(3));
        assert_eq!(duplicate(4, Some(9), -1, Some(3)), Some(3), "refused by the kernel");
        assert_eq!(duplicate(4, Some(9), 9, Some(3)), None, "4 is another file");
        assert_eq!(duplicate(3, Some(9), -1, Some(3)), None, "refused by the kernel");
        assert_eq!((duplicate(3, None, 7, None), at(7)), (None, Some(3)));
        assert_eq!((duplicate(3, Some(3), 3, None), at(3)), (None, Some(3)));
        assert_eq!((duplicate(3, Some(1 << 20), 1 << 20, None), at(1 << 20)), (None, None), "out of range");
        assert_eq!((table.close(7, || at(7).map_or(0, |_| -1)), at(7)), (0, None));
        assert_eq!(table.count.load(Relaxed), 1);
    }

    /// Descriptors of a kernel: each has the number of an object, or 0 for another file. Whatever threads do at the
    /// same time, the table has the kernel's objects in the end.
    #[test]
    fn threads_duplicate_and_close_and_the_table_agrees_with_the_kernel() {
        use std::sync::Barrier;
        use std::sync::atomic::AtomicI32;
        const FDS: i32 = 5;
        let (table, kernel) = (Table::new(), [const { AtomicI32::new(0) }; FDS as usize]);
        let turn = Barrier::new(3);
        for round in 0..3000 {
            for fd in [0, 1] {
                kernel[fd as usize].store(fd + 1, Relaxed);
                table.set(fd, Some(Arc::new(fd + 1))).unwrap();
            }
            std::thread::scope(|scope| {
                for thread in 0..3 {
                    let table = &table;
                    let kernel = &kernel;
                    let turn = &turn;
                    scope.spawn(move || {
                        turn.wait();
                        for step in 0..4 {
                            let (old, to) = ((thread + step) % FDS, (thread * round + step) % FDS);
                            let file = |fd: i32| &kernel[fd as usize];
                            if step == 3 {
                                table.close(old, || (file(old).store(0, Relaxed), 0).1);
                            } else {
                                table.duplicate(old, Some(to), || {
                                    (file(to).store(file(old).load(Relaxed), Relaxed), to).1
                                });
                            }
                        }
                    });
                }
            });
            let objects = (0..FDS).map(|fd| table.get(fd).map_or(0, |there| **there.as_ref().unwrap()));
            assert_eq!(objects.collect::<Vec<_>>(), kernel.each_ref().map(|file| file.load(Relaxed)), "round {round}");
        }
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
