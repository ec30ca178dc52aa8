//! The model as a PCI function in files: a driver in another process maps registers and configuration space, and nobody
//! is told of its accesses.

use std::sync::Arc;
use std::sync::atomic::{AtomicU16, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use ringpass_memory::{Cells, ForeignMemory, Memory};
use ringpass_pci::PciDevice;
use ringpass_pci::registers::ixgbe::{bits::*, *};

use super::bits::set_bits;
use super::card::Card;
use super::limits::QUEUES;
use super::registers::{ALIASES, TAIL, canonical};
use super::vfio_user_function::{BAR_SIZE, config_space};

/// Offset of the command register in the configuration space, and its bit that lets the card access memory.
const COMMAND: usize = 0x04;
const BUS_MASTER: u16 = 1 << 2;

/// A NIC whose registers are a file in memory. Its driver writes and reads the file; [`poll`](Self::poll) compares the
/// registers with what it has last put there, carries out what has changed as writes, and puts the results there.
///
/// Writes are carried out in an order in which the driver may have made them: a comparison is repeated
/// until it finds the same twice, so that with a write all earlier ones are seen. Of those, registers at lower offsets
/// come first, and a reset last. That suits drivers that wait where the datasheet tells them to. Unlike on the card:
///
/// - A value that is written to a register that has it already is not seen.
/// - Reads have no side effects: counters are not cleared, and EICR reads as 0.
/// - Buses that software clocks bit by bit (I2CCTL, EEC) work only as far as each bit is longer than the time between two polls.
/// - There are no interrupts.
pub struct PolledFunction {
    card: Arc<Card>,
    words: Cells<AtomicU32>,
    command: Cells<AtomicU16>,
    /// All registers but the tails, and their second addresses.
    registers: Box<[Register]>,
    /// Offsets of the tails of the enabled queues.
    tails: Vec<u32>,
    bus_master: bool,
    /// Resets that the driver has asked for, as bits of CTRL, and that are still to be carried out.
    resets: u32,
    next_comparison: Instant,
    next_refresh: Instant,
    last_change: Instant,
}

/// A register in the file.
struct Register {
    offset: u32,
    /// Its address in the table, if `offset` is another one.
    canonical: u32,
    /// The value that was last put there.
    shown: u32,
}

impl PolledFunction {
    /// Size of the file with the registers, BAR 0, in bytes.
    pub const BAR_SIZE: usize = BAR_SIZE as usize;
    /// Size of the file with the configuration space in bytes.
    pub const CONFIG_SIZE: usize = 4096;

    /// Time between two comparisons: soon after a change, as drivers wait for results then, and otherwise.
    const GAPS: [Duration; 2] = [Duration::from_micros(5), Duration::from_micros(200)];
    /// Time after a change during which others are expected.
    const SOON: Duration = Duration::from_millis(100);
    /// Time after which counters, heads and the link are put there again.
    const REFRESH: Duration = Duration::from_millis(1);
    /// Comparisons after which the last is taken, if a driver writes without end.
    const COMPARISONS: usize = 8;

    /// Puts a NIC's registers and configuration space into two files, which are mapped here as a whole.
    ///
    /// # Panics
    /// If a file is shorter than [`BAR_SIZE`](Self::BAR_SIZE) or [`CONFIG_SIZE`](Self::CONFIG_SIZE).
    pub fn new(card: Arc<Card>, bar: Arc<ForeignMemory>, config: Arc<ForeignMemory>) -> Self {
        let (bar, config) = (Memory::from(bar), Memory::from(config));
        let mut bytes = [0; Self::CONFIG_SIZE];
        config_space(card.id()).read(0, &mut bytes);
        assert!(config.write(0, &bytes), "the configuration space has {} bytes", Self::CONFIG_SIZE);
        let words = bar.cells(0, Self::BAR_SIZE / 4).expect("registers are as long as the BAR");
        let command = config.cells(COMMAND, 1).expect("the configuration space was written just now");
        let in_table = TABLE.iter().flat_map(|row| (0..row.count).map(|index| row.at(index)));
        let aliases =
            ALIASES.iter().flat_map(|&(start, count, stride, ..)| (0..count).map(move |i| start + i * stride));
        let mut offsets: Vec<u32> = in_table.chain(aliases).filter(|&offset| card.tail(offset).is_none()).collect();
        offsets.sort_unstable();
        offsets.dedup();
        let register = |offset| Register { offset, canonical: canonical(offset), shown: 0 };
        let now = Instant::now();
        let mut function = Self {
            card,
            words,
            command,
            registers: offsets.into_iter().map(register).collect(),
            tails: Vec::new(),
            bus_master: false,
            resets: 0,
            next_comparison: now,
            next_refresh: now,
            last_change: now,
        };
        function.start();
        function
    }

    /// Puts the NIC into its state after power-on, as a driver has gone or the next one comes.
    pub fn restart(&mut self) {
        self.command[0].store(0, Ordering::Relaxed);
        self.card.reset();
        self.start();
    }

    fn start(&mut self) {
        self.words.iter().for_each(|word| word.store(0, Ordering::Relaxed));
        self.registers.iter_mut().for_each(|register| register.shown = 0);
        self.refresh();
    }

    /// Takes over what the driver has written: its tails, and registers if it is time to compare them. Before queues are
    /// enabled, `map` is called, which is to map the memory that they use.
    pub fn poll(&mut self, map: &mut dyn FnMut(&Card)) {
        self.take_tails();
        let now = Instant::now();
        if take_resets(&self.words, &mut self.resets) || now >= self.next_comparison {
            let changed = self.compare(map);
            if changed {
                self.last_change = now;
            }
            let soon = now - self.last_change < Self::SOON;
            self.next_comparison = Instant::now() + Self::GAPS[usize::from(!soon)];
            if changed || now >= self.next_refresh {
                self.refresh();
                self.next_refresh = now + Self::REFRESH;
            }
        }
    }

    /// Takes over all that the driver has written, as [`poll`](Self::poll) does, now.
    pub fn poll_now(&mut self, map: &mut dyn FnMut(&Card)) {
        self.take_tails();
        take_resets(&self.words, &mut self.resets);
        self.compare(map);
        self.refresh();
    }

    fn take_tails(&self) {
        for &tail in &self.tails {
            let value = self.words[tail as usize / 4].load(Ordering::Acquire) & TAIL;
            self.card.tail(tail).expect("the offset of a tail").store(value, Ordering::Release);
        }
    }

    /// Carries out what has changed; returns `false` if nothing has.
    fn compare(&mut self, map: &mut dyn FnMut(&Card)) -> bool {
        let bus_master = self.command[0].load(Ordering::Acquire) & BUS_MASTER != 0;
        if bus_master != self.bus_master {
            self.bus_master = bus_master;
            self.card.set_bus_master(bus_master).expect("a model takes it");
        }
        let mut changes = self.changes();
        for _ in 1..Self::COMPARISONS {
            if changes.is_empty() {
                break;
            }
            let before = std::mem::replace(&mut changes, self.changes());
            if before == changes {
                break;
            }
        }
        let offset = |&(register, _): &(usize, u32)| self.registers[register].offset;
        if changes.iter().any(|change| change.1 & RXDCTL_ENABLE != 0 && enables_a_queue(offset(change))) {
            map(&self.card);
        }
        changes.iter().for_each(|change| self.card.write(offset(change), change.1));
        let resets = std::mem::take(&mut self.resets);
        if resets != 0 {
            self.card.write(CTRL.offset, resets);
            let tails = (0..QUEUES).flat_map(|queue| [RDT.at(queue).offset, TDT.at(queue).offset]);
            tails.for_each(|tail| self.words[tail as usize / 4].store(0, Ordering::Relaxed));
        }
        for &(register, value) in &changes {
            self.registers[register].shown = value;
        }
        resets != 0 || !changes.is_empty()
    }

    /// Returns the registers that the driver has changed, by their numbers in `registers`, with their values.
    fn changes(&mut self) -> Vec<(usize, u32)> {
        let Self { words, registers, resets, .. } = self;
        let mut found = Vec::new();
        for (number, register) in registers.iter().enumerate() {
            if number % RESET_CHECK == 0 {
                take_resets(words, resets);
            }
            // Acquire: what the driver wrote before the value that is seen here is seen by the next comparison.
            let value = words[register.offset as usize / 4].load(Ordering::Acquire);
            if value != register.shown {
                found.push((number, value));
            }
        }
        found
    }

    /// Puts the present values of all registers there, except where the driver has just written.
    fn refresh(&mut self) {
        let Self { card, words, registers, tails, resets, .. } = self;
        let [rx, tx] = card.look(|device| {
            for (number, register) in registers.iter_mut().enumerate() {
                if number % RESET_CHECK == 0 {
                    take_resets(words, resets);
                }
                let value = device.peek(register.canonical);
                if value != register.shown {
                    let word = &words[register.offset as usize / 4];
                    // If this fails, the next comparison finds what the driver wrote.
                    let _ = word.compare_exchange(register.shown, value, Ordering::Release, Ordering::Relaxed);
                    register.shown = value;
                }
            }
            [device.rx_enabled, device.tx_enabled]
        });
        tails.clear();
        tails.extend(set_bits(rx).map(|queue| RDT.at(queue).offset));
        tails.extend(set_bits(tx).map(|queue| TDT.at(queue).offset));
    }
}

/// Number of registers after which CTRL is looked at again: drivers wait for the end of a reset for 10 µs only (DPDK 22.11,
/// `ixgbe_reset_hw_82599`).
const RESET_CHECK: usize = 256;

/// Clears the bits of CTRL that ask for a reset, which says that it is done: until it is, the driver waits for
/// milliseconds anyway (4.2.1.6). Adds the bits to `resets`; returns whether there are any.
fn take_resets(words: &[AtomicU32], resets: &mut u32) -> bool {
    let word = &words[CTRL.offset as usize / 4];
    let value = word.load(Ordering::Acquire);
    let asked = value & (CTRL_RST | CTRL_LRST);
    if asked != 0 && word.compare_exchange(value, value & !asked, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
        *resets |= asked;
    }
    *resets != 0
}

/// Returns whether a register has the bit [`RXDCTL_ENABLE`], which is also that of TXDCTL.
fn enables_a_queue(offset: u32) -> bool {
    (0..QUEUES).any(|queue| offset == RXDCTL.at(queue).offset || offset == TXDCTL.at(queue).offset)
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use proptest::prelude::*;
    use ringpass_pci::registers::ixgbe::bits::*;
    use rustix::fs::{MemfdFlags, ftruncate, memfd_create};

    use super::*;
    use crate::ixgbe::CardConfig;

    fn file(len: usize) -> Arc<ForeignMemory> {
        let file = memfd_create("registers", MemfdFlags::CLOEXEC).expect("a file in memory");
        ftruncate(&file, len as u64).expect("room");
        ForeignMemory::map(file.as_fd(), 0, len).expect("mapped")
    }

    /// A card that is polled, its driver's view, and a card whose driver is heard.
    struct Rig {
        function: PolledFunction,
        words: Cells<AtomicU32>,
        heard: Arc<Card>,
    }

    impl Rig {
        fn new() -> Self {
            let card = || Card::new(&CardConfig { device: 0x10f7, ..CardConfig::default() });
            let bar = file(PolledFunction::BAR_SIZE);
            let words = Memory::from(bar.clone()).cells(0, PolledFunction::BAR_SIZE / 4).expect("all of it");
            let function = PolledFunction::new(card(), bar, file(PolledFunction::CONFIG_SIZE));
            Self { function, words, heard: card() }
        }

        fn poll(&mut self) {
            self.function.poll_now(&mut |_| {});
        }

        fn read(&self, offset: u32) -> u32 {
            self.words[offset as usize / 4].load(Ordering::Acquire)
        }

        fn write(&self, offset: u32, value: u32) {
            self.words[offset as usize / 4].store(value, Ordering::Release);
        }

        /// Returns the registers whose value in the file is not that of the card, or not that of the card that is heard.
        fn differences(&self, with_heard: bool) -> Vec<(u32, u32, u32)> {
            let mut found = Vec::new();
            let offsets: Vec<_> = self.function.registers.iter().map(|r| (r.offset, r.canonical)).collect();
            let card = if with_heard { &self.heard } else { &self.function.card };
            card.look(|device| {
                let all =
                    offsets.iter().map(|&(offset, canonical)| (offset, self.read(offset), device.peek(canonical)));
                found.extend(all.filter(|(_, shown, value)| shown != value));
            });
            found
        }
    }

    /// Any register, more often one that does something, and any value, more often one with few bits.
    fn writes() -> impl Strategy<Value = (usize, u32)> {
        (any::<prop::sample::Index>(), prop_oneof![any::<u32>(), (0u32..32).prop_map(|bit| 1 << bit), Just(0)])
            .prop_map(|(index, value)| (index.index(1 << 16), value))
    }

    proptest! {
        #[test]
        fn a_write_has_the_effect_of_one_that_is_heard(writes in prop::collection::vec(writes(), 1..60)) {
            let mut rig = Rig::new();
            prop_assert_eq!(rig.differences(true), []);
            for (number, value) in writes {
                let offset = rig.function.registers[number % rig.function.registers.len()].offset;
                // Such a write is not seen.
                if rig.read(offset) == value {
                    continue;
                }
                rig.write(offset, value);
                rig.heard.write(offset, value);
                rig.poll();
                prop_assert_eq!(rig.differences(true), [], "after {:#x} was written to {:#x}", value, offset);
            }
        }

        #[test]
        fn any_writes_in_any_order_leave_a_card_that_is_shown_as_it_is(
            bursts in prop::collection::vec(prop::collection::vec(writes(), 1..40), 1..10),
        ) {
            let mut rig = Rig::new();
            for burst in bursts {
                for (number, value) in burst {
                    // All of the file, also where there is no register, or a tail.
                    rig.write((number % (PolledFunction::BAR_SIZE / 4)) as u32 * 4, value);
                }
                rig.poll();
                prop_assert_eq!(rig.differences(false), []);
            }
        }
    }

    #[test]
    fn a_driver_that_is_not_heard_starts_a_ring() {
        let mut rig = Rig::new();
        // The NIC is reset, and says so by clearing the bit.
        rig.write(CTRL.offset, CTRL_RST);
        rig.poll();
        assert_eq!(rig.read(CTRL.offset), 0);
        // A word of the EEPROM.
        rig.write(EERD.offset, 1);
        rig.poll();
        assert_ne!(rig.read(EERD.offset) & 2, 0, "done");
        // The queue asks for its memory before it is enabled, and is enabled although its ring has none.
        rig.write(RDLEN.at(3).offset, 4096);
        rig.write(RXDCTL.at(3).offset, RXDCTL_ENABLE);
        let mut asked = 0;
        rig.function.poll_now(&mut |card| {
            asked += 1;
            assert_eq!(card.look(|device| device.rx_enabled), 0, "not enabled yet");
        });
        assert_eq!(asked, 1);
        assert_eq!(rig.function.card.look(|device| [device.rx_enabled, device.tx_enabled]), [1 << 3, 0]);
        // Its tail counts from now on.
        rig.write(RDT.at(3).offset, 0xffff_0005);
        rig.function.poll(&mut |_| {});
        assert_eq!(rig.function.card.read(RDT.at(3).offset), 5);
        // The next driver finds the NIC as after power-on.
        rig.function.restart();
        assert_eq!(rig.function.card.look(|device| device.rx_enabled), 0);
        assert_eq!((rig.read(RDT.at(3).offset), rig.read(RXDCTL.at(3).offset) & RXDCTL_ENABLE), (0, 0));
    }
}
