//! A port as a PCI device.

use std::sync::Arc;

use ringpass_memory::ForeignMemory;
use ringpass_netmap::PortRing;
use ringpass_netmap::csb::{Csb, ENTRY};
use ringpass_port::MacAddress;
use ringpass_registers::ptnet::VENDOR;
use ringpass_registers::ptnet::port::{
    CONTROL, CREATE, CSB_GUEST, CSB_HOST, DELETE, DEVICE, INTERFACE, KICKS, MAC, MEMORY_ID, RINGS, SLOTS,
};
use ringpass_vfio_user::{Access, CONFIG_REGION, Change, ConfigSpace, Device, Identity, Refusal, Region, Signal};
use rustix::io::Errno;

use crate::BAR;
use crate::counters::{Counters, count};
use crate::dma::Dma;
use crate::relay::Relay;
use crate::words;

/// A port that a guest is to have.
pub struct GuestPort {
    /// Where the descriptor of its rings lies in the memory; below 4 GiB. It has none of the host's: netmap's programs in the guest
    /// would send by those, too, which nobody serves.
    pub interface: u32,
    /// Its rings, as a program has them: those to send, those to receive; at most 64. Rings of a direction are equally long.
    pub rings: [Vec<PortRing>; 2],
    /// Its address.
    pub mac: MacAddress,
    /// The memory's number.
    pub memory_id: u16,
}

/// The MSI-X table and its pending bits, which the client emulates.
const MSIX_BAR: u32 = 2;
const MSIX_BAR_SIZE: u32 = 4096;
const PENDING: u32 = 0x800;
/// An Ethernet controller.
const CLASS: u32 = 0x02_0000;

/// The device. It serves its rings only in [`look`](Self::look): all that reaches it is of one thread.
///
/// Bus mastering need not be on for DMA, as netmap's drivers may leave that out; turning it off ends serving.
pub struct Ptnet {
    config: ConfigSpace,
    /// Rings to send, to receive.
    counts: [u32; 2],
    /// Slots of each.
    slots: [u32; 2],
    interface: u32,
    mac: MacAddress,
    memory_id: u16,
    relays: Vec<Relay>,
    dma: Dma,
    vectors: Vec<Option<Signal>>,
    /// Addresses of the CSB's halves, high and low words.
    csb_at: [[u32; 2]; 2],
    /// The answer to the last command.
    status: u32,
    /// A guest has started the port and not stopped it, with the CSB at these addresses.
    created: Option<[u64; 2]>,
    /// The CSB, while all of it is mapped.
    csb: Option<Csb>,
    counters: Arc<Counters>,
}

impl Ptnet {
    /// A device for this port.
    ///
    /// # Panics
    /// If it has no ring, more than 64, or some of them are longer than others of their direction.
    pub fn new(port: GuestPort) -> Self {
        let GuestPort { interface, rings, mac, memory_id } = port;
        let counts = rings.each_ref().map(|rings| rings.len() as u32);
        let slots = rings.each_ref().map(|rings| rings.first().map_or(0, |ring| ring.ring().slots()));
        let relays: Vec<Relay> = rings.into_iter().flatten().map(Relay::new).collect();
        assert!((1..=64).contains(&relays.len()), "a port of {} rings", relays.len());
        let expected = [0, 1].map(|way| std::iter::repeat_n(slots[way], counts[way] as usize));
        assert!(relays.iter().map(Relay::slots).eq(expected.into_iter().flatten()), "rings of different lengths");
        let identity =
            Identity { vendor: VENDOR, device: DEVICE, subsystem: (0x1af4, 0x1100), revision: 0, class: CLASS };
        let config = ConfigSpace::new(&identity)
            .register_bar(0, BAR)
            .register_bar(MSIX_BAR as usize, MSIX_BAR_SIZE)
            .power_management(0x40)
            .msix(0x50, relays.len() as u16, (MSIX_BAR, 0), (MSIX_BAR, PENDING));
        let vectors = vec![None; relays.len()];
        let (dma, csb_at, status, created, csb, counters) = Default::default();
        Self {
            config,
            counts,
            slots,
            interface,
            mac,
            memory_id,
            relays,
            dma,
            vectors,
            csb_at,
            status,
            created,
            csb,
            counters,
        }
    }

    /// What it counts.
    pub fn counters(&self) -> &Arc<Counters> {
        &self.counters
    }

    /// Whether it serves a guest.
    pub fn is_serving(&self) -> bool {
        self.csb.is_some()
    }

    /// Looks once at each ring, from both sides. Returns how many have moved.
    pub fn look(&mut self) -> usize {
        let Some(csb) = &self.csb else { return 0 };
        let mut moved = 0;
        for (entry, relay) in self.relays.iter_mut().enumerate() {
            let passed = relay.pass(csb.application(entry), csb.server(entry), &self.counters);
            moved += usize::from(passed.moved);
            if passed.call
                && let Some(signal) = &self.vectors[entry]
            {
                count(&self.counters.interrupts);
                signal.raise();
            }
        }
        moved
    }

    /// Before a sleep: the guest is to kick, the port's other side to ring. [`look`](Self::look) once more before sleeping.
    pub fn arm(&mut self) {
        let Some(csb) = &self.csb else { return };
        self.relays.iter().enumerate().for_each(|(entry, relay)| relay.arm(csb.server(entry)));
    }

    /// Behind a sleep.
    pub fn disarm(&mut self) {
        let Some(csb) = &self.csb else { return };
        self.relays.iter().enumerate().for_each(|(entry, relay)| relay.disarm(csb.server(entry)));
    }

    fn command(&mut self, command: u32) {
        self.status = match command {
            CREATE => self.create(),
            DELETE => {
                // What the guest has said before.
                self.look();
                self.stop();
                Ok(())
            }
            _ => Err(Errno::INVAL),
        }
        .map_or_else(|errno| errno.raw_os_error() as u32, |()| 0);
    }

    /// Starts, over again if need be.
    fn create(&mut self) -> Result<(), Errno> {
        self.stop();
        let addresses = self.csb_at.map(|[high, low]| u64::from(high) << 32 | u64::from(low));
        let csb = self.find(addresses).ok_or(Errno::FAULT)?;
        for (entry, relay) in self.relays.iter_mut().enumerate() {
            relay.begin(csb.application(entry), csb.server(entry)).map_err(|_| Errno::IO)?;
        }
        count(&self.counters.creates);
        (self.created, self.csb) = (Some(addresses), Some(csb));
        Ok(())
    }

    /// From here on neither the CSB nor a ring is touched. What was passed on stays so.
    fn stop(&mut self) {
        (self.created, self.csb) = (None, None);
        self.relays.iter().for_each(Relay::rest);
    }

    /// The CSB at these addresses, if all of it is the device's to write.
    fn find(&self, addresses: [u64; 2]) -> Option<Csb> {
        let [guest, host] = addresses.map(|iova| self.dma.find(iova, ENTRY * self.relays.len()));
        Csb::in_two(guest?, host?, self.relays.len())
    }

    /// The CSB may have come, or gone, with a change of what is mapped.
    fn find_again(&mut self) {
        let Some(addresses) = self.created else { return };
        self.csb = self.find(addresses);
        if self.csb.is_none() {
            self.relays.iter().for_each(Relay::rest);
        }
    }

    fn register(&self, offset: u64) -> u32 {
        let [a, b, c, d, e, f] = self.mac.0;
        let both = |places: [u64; 2], values: [u32; 2]| [(places[0], values[0]), (places[1], values[1])];
        let pairs = [
            both(MAC, [[c, d, e, f], [0, 0, a, b]].map(u32::from_be_bytes)),
            both(RINGS, self.counts),
            both(SLOTS, self.slots),
            both(CSB_GUEST, self.csb_at[0]),
            both(CSB_HOST, self.csb_at[1]),
            both([CONTROL, INTERFACE], [self.status, self.interface]),
            both([MEMORY_ID, MEMORY_ID], [self.memory_id.into(); 2]),
        ];
        // No feature is accepted, so frames have no header before them: both registers read 0.
        pairs.into_iter().flatten().find_map(|(at, value)| (at == offset).then_some(value)).unwrap_or(0)
    }

    fn set_register(&mut self, offset: u64, value: u32) {
        if offset >= KICKS {
            // The look that follows each message sees why.
            return count(&self.counters.kicks);
        }
        let csb = [CSB_GUEST, CSB_HOST];
        let word = csb.as_flattened().iter().position(|&at| at == offset);
        match word.and_then(|word| self.csb_at.as_flattened_mut().get_mut(word)) {
            Some(word) => *word = value,
            None if offset == CONTROL => self.command(value),
            None => {}
        }
    }
}

impl Device for Ptnet {
    fn region(&self, index: u32) -> Region<'_> {
        let trapped = |size| Region { size, readable: true, writable: true, ..Region::default() };
        match index {
            0 => trapped(BAR.into()),
            MSIX_BAR => trapped(MSIX_BAR_SIZE.into()),
            CONFIG_REGION => trapped(ConfigSpace::SIZE),
            _ => Region::default(),
        }
    }

    fn read(&mut self, region: u32, offset: u64, out: &mut [u8]) {
        match region {
            0 => words::read(offset, out, |at| self.register(at)),
            CONFIG_REGION => self.config.read(offset, out),
            // The client has the table; no vector is ever pending here.
            _ => out.fill(0),
        }
    }

    fn write(&mut self, region: u32, offset: u64, data: &[u8]) {
        match region {
            0 => words::written(offset, data).for_each(|(at, value)| self.set_register(at, value)),
            CONFIG_REGION => {
                let mastered = self.config.bus_master();
                match self.config.write(offset, data) {
                    Change::BusMaster if mastered => self.stop(),
                    Change::Reset => self.restart(),
                    Change::BusMaster | Change::None => {}
                }
            }
            _ => {}
        }
    }

    fn vectors(&self) -> u32 {
        self.vectors.len() as u32
    }

    fn set_vector(&mut self, vector: u32, signal: Option<Signal>) {
        // Something may have happened before it was there.
        if let Some(signal) = signal.as_ref().filter(|_| self.is_serving()) {
            signal.raise();
        }
        self.vectors[vector as usize] = signal;
    }

    fn map(
        &mut self,
        iova: u64,
        memory: &Arc<ForeignMemory>,
        offset: usize,
        len: usize,
        access: Access,
    ) -> Result<(), Refusal> {
        self.dma.map(iova, memory, offset, len, access);
        if self.csb.is_none() {
            self.find_again();
        }
        Ok(())
    }

    fn unmap(&mut self, iova: u64, len: u64) {
        self.dma.unmap(iova, len);
        self.find_again();
    }

    fn reset(&mut self) {
        self.config.reset();
        self.restart();
    }
}

impl Ptnet {
    fn restart(&mut self) {
        self.stop();
        (self.csb_at, self.status) = Default::default();
    }
}
