//! Tests of both interfaces on a card made of plain memory.

mod capabilities;
mod legacy;
mod modern;

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex};

use ringpass_memory::{Addressing, DmaRegion};
use ringpass_pci::registers::{IoRegion, Window};
use ringpass_pci::{DeviceId, PciDevice};
use ringpass_port::Error;

use super::{Transport, find};

/// A register access: offset, width in bytes, and the value written or read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Access {
    Read(usize, usize, u32),
    Write(usize, usize, u32),
}
use Access::{Read, Write};

/// Memory that records each access and returns prepared values.
struct Memory {
    len: usize,
    bytes: Mutex<HashMap<usize, u8>>,
    accesses: Mutex<Vec<Access>>,
    /// Values that reads of an offset return, in order; the last one is repeated.
    answers: Mutex<HashMap<usize, VecDeque<u32>>>,
}

impl Memory {
    fn new(len: usize) -> Arc<Self> {
        Arc::new(Self { len, bytes: Default::default(), accesses: Default::default(), answers: Default::default() })
    }

    fn set(&self, offset: usize, bytes: &[u8]) {
        self.bytes.lock().unwrap().extend((offset..).zip(bytes.iter().copied()));
    }

    fn answer(&self, offset: usize, values: impl IntoIterator<Item = u32>) {
        self.answers.lock().unwrap().insert(offset, values.into_iter().collect());
    }

    /// Returns the accesses since the last call.
    fn accesses(&self) -> Vec<Access> {
        std::mem::take(&mut self.accesses.lock().unwrap())
    }

    fn read(&self, offset: usize, width: usize) -> u32 {
        assert!(offset.is_multiple_of(width) && offset + width <= self.len, "{width} bytes at {offset:#x}");
        let value = match self.answers.lock().unwrap().get_mut(&offset) {
            Some(answers) if answers.len() > 1 => answers.pop_front().unwrap(),
            Some(answers) => answers[0],
            None => {
                let bytes = self.bytes.lock().unwrap();
                (0..width).map(|i| u32::from(*bytes.get(&(offset + i)).unwrap_or(&0)) << (8 * i)).sum()
            }
        };
        self.accesses.lock().unwrap().push(Read(offset, width, value));
        value
    }

    fn write(&self, offset: usize, width: usize, value: u32) {
        assert!(offset.is_multiple_of(width) && offset + width <= self.len, "{width} bytes at {offset:#x}");
        self.set(offset, &value.to_le_bytes()[..width]);
        self.accesses.lock().unwrap().push(Write(offset, width, value));
    }
}

impl IoRegion for Memory {
    fn len(&self) -> usize {
        self.len
    }

    fn description(&self) -> String {
        "memory of a test".into()
    }

    fn read8(&self, offset: usize) -> u8 {
        self.read(offset, 1) as u8
    }

    fn read16(&self, offset: usize) -> u16 {
        self.read(offset, 2) as u16
    }

    fn read32(&self, offset: usize) -> u32 {
        self.read(offset, 4)
    }

    fn write8(&self, offset: usize, value: u8) {
        self.write(offset, 1, value.into());
    }

    fn write16(&self, offset: usize, value: u16) {
        self.write(offset, 2, value.into());
    }

    fn write32(&self, offset: usize, value: u32) {
        self.write(offset, 4, value);
    }
}

/// A card with such memory as its BARs.
struct Card {
    config: Mutex<Vec<u8>>,
    bars: HashMap<usize, Arc<Memory>>,
}

impl PciDevice for Card {
    fn id(&self) -> DeviceId {
        DeviceId { vendor: 0x1af4, device: 0x1041 }
    }

    fn description(&self) -> String {
        "a test's".into()
    }

    fn window(&self) -> Result<Window, Error> {
        Err(Error::Unsupported("no window".into()))
    }

    fn region(&self, bar: usize) -> Result<Arc<dyn IoRegion>, Error> {
        match self.bars.get(&bar) {
            Some(memory) => Ok(memory.clone()),
            None => Err(Error::Unsupported(format!("no BAR {bar}"))),
        }
    }

    fn read_config(&self, offset: usize, out: &mut [u8]) -> Result<(), Error> {
        let config = self.config.lock().unwrap();
        let bytes =
            config.get(offset..offset + out.len()).ok_or_else(|| Error::Unsupported("beyond the end".into()))?;
        out.copy_from_slice(bytes);
        Ok(())
    }

    fn addressing(&self) -> Addressing {
        Addressing::Physical
    }

    fn numa_node(&self) -> Option<u32> {
        None
    }

    fn map(&self, _: &Arc<DmaRegion>) -> Result<(), Error> {
        Ok(())
    }

    fn set_bus_master(&self, _: bool) -> Result<(), Error> {
        Ok(())
    }
}

/// Returns a configuration space with the given capabilities, each at its offset; the list begins at 0x40.
fn config(capabilities: &[(usize, &[u8])]) -> Vec<u8> {
    let mut config = vec![0; 256];
    if !capabilities.is_empty() {
        (config[6], config[0x34]) = (0x10, 0x40);
    }
    for &(at, bytes) in capabilities {
        config[at..at + bytes.len()].copy_from_slice(bytes);
    }
    config
}

/// Returns a structure's capability (4.1.4), followed by `rest`.
fn structure(next: u8, kind: u8, bar: u8, offset: u32, len: u32, rest: &[u8]) -> Vec<u8> {
    let head = [0x09, next, 16 + rest.len() as u8, kind, bar, 0, 0, 0];
    [&head[..], &offset.to_le_bytes(), &len.to_le_bytes(), rest].concat()
}

fn card(config: Vec<u8>, bars: &[(usize, &Arc<Memory>)]) -> Arc<Card> {
    let bars = bars.iter().map(|&(bar, memory)| (bar, memory.clone())).collect();
    Arc::new(Card { config: Mutex::new(config), bars })
}

fn open(card: &Arc<Card>) -> Result<Box<dyn Transport>, Error> {
    let bus: Arc<dyn PciDevice> = card.clone();
    find(&bus)
}

fn refused(card: &Arc<Card>) -> String {
    open(card).map(drop).expect_err("a reason").to_string()
}
