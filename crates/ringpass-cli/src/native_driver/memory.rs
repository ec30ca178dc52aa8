//! Memory of drivers, found in `/proc` (Linux, filesystems/proc and admin-guide/mm/pagemap), and mapped for the cards.

use std::fs::{self, File, Metadata};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use ringpass::Error;
use ringpass_memory::{Access, ForeignMemory, Memory};
use ringpass_models::ixgbe::Card;
use rustix::fs::{major, minor};

/// Identity of a file, as `/proc/PID/maps` has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Inode {
    device: (u32, u32),
    number: u64,
}

impl Inode {
    pub(super) fn of(metadata: &Metadata) -> Self {
        Self { device: (major(metadata.dev()), minor(metadata.dev())), number: metadata.ino() }
    }
}

/// The memory that drivers of the cards share with others, which is where DMA memory is. A driver is a process in the
/// command's mount namespace that maps a card's registers.
pub(super) struct DriverMemory {
    /// Link of the namespace in `/proc/PID/ns`.
    namespace: PathBuf,
    cards: Vec<CardMemory>,
}

/// Memory that a card can access.
struct CardMemory {
    card: Arc<Card>,
    registers: Inode,
    known: Vec<Known>,
    /// A process maps its registers.
    is_driven: bool,
    /// Set when the last driver has gone.
    gone: Arc<AtomicBool>,
}

/// A mapping of a driver that a card can access.
struct Known {
    mapping: Mapping,
    memory: Memory,
    /// Addresses and lengths that were mapped for the card.
    ranges: Vec<(u64, u64)>,
    /// Pages that were found at their physical addresses.
    pages: Vec<bool>,
}

/// A mapping of a process: a line of `/proc/PID/maps`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Mapping {
    process: u32,
    start: u64,
    end: u64,
    offset: u64,
    inode: Inode,
    is_shared: bool,
}

impl Mapping {
    /// Parses a line: addresses, permissions, offset, device, inode, path.
    fn parse(process: u32, line: &str) -> Option<Self> {
        let mut words = line.split_ascii_whitespace();
        let hex = |word: &str| u64::from_str_radix(word, 16).ok();
        let (start, end) = words.next()?.split_once('-')?;
        let permissions = words.next()?;
        let offset = hex(words.next()?)?;
        let (major, minor) = words.next()?.split_once(':')?;
        let device = (hex(major)? as u32, hex(minor)? as u32);
        let inode = Inode { device, number: words.next()?.parse().ok()? };
        let is_shared = permissions.starts_with("rw") && permissions.ends_with('s');
        Some(Self { process, start: hex(start)?, end: hex(end)?, offset, inode, is_shared })
    }

    fn len(&self) -> usize {
        (self.end - self.start) as usize
    }
}

impl DriverMemory {
    /// Starts with no memory, of drivers in a mount namespace.
    pub(super) fn new(namespace: PathBuf, cards: impl Iterator<Item = (Inode, Arc<Card>)>) -> Self {
        let memory = |(registers, card)| CardMemory {
            card,
            registers,
            known: Vec::new(),
            is_driven: false,
            gone: Arc::new(AtomicBool::new(false)),
        };
        Self { namespace, cards: cards.map(memory).collect() }
    }

    /// Returns, for each card, what is set when the last of its drivers has gone.
    pub(super) fn gone(&self) -> Vec<Arc<AtomicBool>> {
        self.cards.iter().map(|card| card.gone.clone()).collect()
    }

    /// Returns the processes that map registers of a card.
    pub(super) fn drivers(&self) -> Vec<u32> {
        let processes = processes(&self.namespace);
        let drives = |mapping: &&Mapping| self.cards.iter().any(|card| card.registers == mapping.inode);
        processes.iter().filter_map(|mappings| Some(mappings.iter().find(drives)?.process)).collect()
    }

    /// Maps what is new, and unmaps what has gone.
    pub(super) fn refresh(&mut self) {
        let processes = processes(&self.namespace);
        for card in &mut self.cards {
            let is_driver = |mappings: &&Vec<Mapping>| mappings.iter().any(|mapping| mapping.inode == card.registers);
            let drivers: Vec<_> = processes.iter().filter(is_driver).collect();
            let of_drivers = drivers.iter().copied().flatten();
            let shared = of_drivers.filter(|m| m.is_shared && m.inode.device != card.registers.device);
            card.refresh(!drivers.is_empty(), &shared.copied().collect::<Vec<_>>());
        }
    }

    /// Unmaps everything.
    pub(super) fn clear(&mut self) {
        self.cards.iter_mut().for_each(|card| card.refresh(false, &[]));
    }
}

impl CardMemory {
    fn refresh(&mut self, is_driven: bool, mappings: &[Mapping]) {
        let Self { card, known, .. } = self;
        known.retain(|known| {
            let stays = mappings.contains(&known.mapping);
            if !stays {
                known.ranges.iter().for_each(|&(address, len)| _ = card.unmap(address, len));
            }
            stays
        });
        for mapping in mappings {
            // Whatever fails here fails because the process has changed or ended since its list was read; the next look
            // finds what is there then.
            match known.iter_mut().find(|known| known.mapping == *mapping) {
                Some(known) => _ = known.add_pages(card),
                None => known.extend(Known::new(card, *mapping)),
            }
        }
        if std::mem::replace(&mut self.is_driven, is_driven) && !is_driven {
            self.gone.store(true, Ordering::Release);
        }
    }
}

/// Returns the mappings of files of each process in a mount namespace.
fn processes(namespace: &Path) -> Vec<Vec<Mapping>> {
    let number = |entry: io::Result<fs::DirEntry>| entry.ok()?.file_name().to_str()?.parse().ok();
    let inside = |process: &u32| fs::read_link(format!("/proc/{process}/ns/mnt")).is_ok_and(|link| link == namespace);
    let mappings = |process: u32| {
        let text = fs::read_to_string(format!("/proc/{process}/maps")).unwrap_or_default();
        text.lines().filter_map(|line| Mapping::parse(process, line)).filter(|m| m.inode.number != 0).collect()
    };
    let all = fs::read_dir("/proc").into_iter().flatten().filter_map(number);
    all.filter(inside).map(mappings).collect()
}

impl Known {
    /// Maps the memory for a card at the driver's own addresses, where nothing else is.
    fn new(card: &Card, mapping: Mapping) -> Result<Self, Error> {
        let Mapping { process, start, end, offset, .. } = mapping;
        let path = format!("/proc/{process}/map_files/{start:x}-{end:x}");
        let file = File::options().read(true).write(true).open(path);
        let file = file.map_err(|source| Error::os("memory of a driver", source))?;
        let memory = ForeignMemory::map(file.as_fd(), offset, mapping.len()).map_err(Error::Memory)?;
        let pages = vec![false; mapping.len() / PAGE as usize];
        let mut known = Self { mapping, memory: memory.into(), ranges: Vec::new(), pages };
        known.add_pages(card)?;
        known.add(card, start, 0, mapping.len());
        Ok(known)
    }

    /// Maps pages that were not there before at their physical addresses, which drivers without an IOMMU use.
    fn add_pages(&mut self, card: &Card) -> Result<(), Error> {
        if self.pages.iter().all(|&mapped| mapped) {
            return Ok(());
        }
        let Mapping { process, start, .. } = self.mapping;
        let frames = frames(process, start, self.mapping.len());
        let frames = frames.map_err(|source| Error::os("addresses of a driver's memory", source))?;
        let new: Vec<_> = frames.iter().zip(&self.pages).map(|(frame, &mapped)| frame.filter(|_| !mapped)).collect();
        let mut page = 0;
        for run in new.chunk_by(|a, b| a.zip(*b).is_some_and(|(a, b)| b == a + PAGE)) {
            if let Some(address) = run[0] {
                let added = self.add(card, address, page * PAGE as usize, run.len() * PAGE as usize);
                self.pages[page..page + run.len()].fill(added);
            }
            page += run.len();
        }
        Ok(())
    }

    /// Maps a part of the memory; `false` if another process that shares it has come first.
    fn add(&mut self, card: &Card, address: u64, offset: usize, len: usize) -> bool {
        let part = self.memory.part(offset, len).expect("a part of the mapping");
        let added = card.map_at(address, part, Access::ReadWrite).is_ok();
        if added {
            self.ranges.push((address, len as u64));
        }
        added
    }
}

/// Size in bytes of the pages in `/proc/PID/pagemap`.
const PAGE: u64 = 4096;

/// Returns the physical address of each page; `None` for one that is not there.
fn frames(process: u32, start: u64, len: usize) -> io::Result<Vec<Option<u64>>> {
    let mut entries = vec![0; len / PAGE as usize * 8];
    File::open(format!("/proc/{process}/pagemap"))?.read_exact_at(&mut entries, start / PAGE * 8)?;
    let frame = |entry: &[u8; 8]| {
        let entry = u64::from_ne_bytes(*entry);
        let number = entry & ((1 << 55) - 1);
        (entry >> 63 != 0 && number != 0).then_some(number * PAGE)
    };
    Ok(entries.as_chunks().0.iter().map(frame).collect())
}
