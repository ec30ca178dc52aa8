//! Fuzz body: the options of a request, a list anywhere in the program's memory.

use std::collections::BTreeSet;
use std::os::fd::OwnedFd;

use rustix::io::Errno;

use crate::external_memory::MemoryFile;
use crate::options::Options;
use crate::refusal::Refusal;
use crate::user_memory::UserMemory;

/// A program's memory, from address 1 on.
struct Memory(Vec<u8>);

impl Memory {
    fn range(&self, at: u64, len: usize) -> Result<std::ops::Range<usize>, Errno> {
        let start = at.checked_sub(1).and_then(|start| usize::try_from(start).ok()).ok_or(Errno::FAULT)?;
        let end = start.checked_add(len).filter(|end| *end <= self.0.len()).ok_or(Errno::FAULT)?;
        Ok(start..end)
    }
}

impl UserMemory for Memory {
    fn read<const N: usize>(&self, at: u64) -> Result<[u8; N], Errno> {
        Ok(self.0[self.range(at, N)?].try_into().expect("as long"))
    }

    fn write(&mut self, at: u64, bytes: &[u8]) -> Result<(), Errno> {
        let range = self.range(at, bytes.len())?;
        self.0[range].copy_from_slice(bytes);
        Ok(())
    }

    fn map(&self, _: u64, _: usize) -> Result<ringpass_memory::Memory, Errno> {
        Err(Errno::FAULT)
    }

    fn file_of(&mut self, _: u64, _: u64) -> Result<MemoryFile, Errno> {
        Err(Errno::FAULT)
    }

    fn duplicate(&self, _: i32) -> Result<OwnedFd, Errno> {
        Err(Errno::BADF)
    }
}

/// More options than any request may have.
const MANY: usize = 1000;
/// Offset of the status in an option.
const STATUS: usize = 12;

/// Returns the bytes of the statuses of all options of a list.
fn statuses(memory: &Memory, first: u64) -> BTreeSet<usize> {
    let mut bytes = BTreeSet::new();
    let mut at = first;
    for _ in 0..MANY {
        let Ok(range) = memory.range(at, 24) else { break };
        bytes.extend(range.start + STATUS..range.start + STATUS + 4);
        at = u64::from_le_bytes(memory.0[range.start..range.start + 8].try_into().expect("eight bytes"));
    }
    bytes
}

/// Runs one case: the size of the request's body, where the list begins, which kinds are used, and the memory.
pub fn options(data: &[u8]) {
    let Some((&[body, first, used], memory)) = data.split_first_chunk() else { return };
    let mut memory = Memory(memory.to_vec());
    let before = Memory(memory.0.clone());
    if let Ok(mut options) = Options::read(first.into(), body.into(), &mut memory) {
        assert!(memory.0 == before.0, "nothing is written before the request was executed");
        for kind in 1..6 {
            if let Some((at, len)) = options.payload(kind) {
                assert!(len < 4096 && at > 24);
                let result = if used & 1 << kind == 0 { Ok(()) } else { Err(Refusal::new(Errno::NOMEM, "a reason")) };
                let _ = options.used(kind, result);
            }
        }
        let _ = options.all_used();
        let _ = options.write_statuses(&mut memory);
    }
    let allowed = statuses(&before, first.into());
    let changed = before.0.iter().zip(&memory.0).enumerate().filter(|(_, (before, after))| before != after);
    assert!(changed.into_iter().all(|(at, _)| allowed.contains(&at)), "more than statuses was written");
}
