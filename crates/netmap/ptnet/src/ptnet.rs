//! A port as a PCI device.

use std::sync::Arc;

use ringpass_memory::{Access, DmaMap, DmaMapError, LookupHint, Memory};
use ringpass_netmap::csb::{Csb, ENTRY};
use ringpass_netmap::{PortRing, Relay, Relayed};
use ringpass_pci::registers::ptnet::VENDOR;
use ringpass_pci::registers::ptnet::port::{
    CONTROL, CREATE, CSB_GUEST, CSB_HOST, DELETE, DEVICE, FEATURES, HEADER_LEN, INTERFACE, KICKS, MAC, MEMORY_ID,
    RINGS, SLOTS,
};
use ringpass_port::MacAddress;
use ringpass_vfio_user::{CONFIG_REGION, Change, ConfigSpace, Device, EventNotifier, Identity, Region, words};
use rustix::io::Errno;

use crate::BAR;
use crate::counters::{Counters, count};

/// A port to be passed to a guest.
pub struct GuestPort {
    /// Offset of the interface descriptor in the memory; below 4 GiB. It must have no host rings: programs in the
    /// guest would send on those, too, and nobody serves them.
    pub interface: u32,
    /// Tx rings, then Rx rings, as a program has them; at most 64 in all. Rings of one direction have equal length.
    pub rings: [Vec<PortRing>; 2],
    /// MAC address.
    pub mac: MacAddress,
    /// Number of the memory that the rings are in.
    pub memory_id: u16,
    /// Changes the length of the header in front of the port's frames, in bytes, and returns whether that is done. `None` if its
    /// frames can have none.
    pub set_header_len: Option<SetHeaderLen>,
}

/// Changes the length of the header in front of a port's frames; see [`GuestPort`].
pub type SetHeaderLen = Box<dyn FnMut(u32) -> bool + Send>;

/// Feature: frames have a header of virtio-net.
const VNET_HEADER: u32 = 1;

/// BAR of the MSI-X table and the pending bits, both emulated by the client.
const MSIX_BAR: u32 = 2;
const MSIX_BAR_SIZE: u32 = 4096;
const PENDING: u32 = 0x800;
/// PCI class code: Ethernet controller.
const CLASS: u32 = 0x02_0000;

/// The device. It serves its rings only in [`sync_rings`](Self::sync_rings), on the thread that also handles the
/// client's messages.
///
/// DMA does not require bus mastering, because netmap's drivers may leave it off; turning it off ends serving.
pub struct Ptnet {
    config: ConfigSpace,
    /// Number of Tx and of Rx rings.
    counts: [u32; 2],
    /// Slots per ring, for Tx and for Rx.
    slots: [u32; 2],
    interface: u32,
    mac: MacAddress,
    memory_id: u16,
    set_header_len: Option<SetHeaderLen>,
    /// Features that the guest has requested and that there are.
    features: u32,
    /// Bytes of the header in front of each frame.
    header_len: u32,
    relays: Vec<Relay<PortRing>>,
    dma: DmaMap,
    vectors: Vec<Option<EventNotifier>>,
    /// Addresses of the two halves of the CSB, each as high and low 32 bits.
    csb_at: [[u32; 2]; 2],
    /// Result of the last command.
    status: u32,
    /// Addresses of the CSB with which a guest has started the port; `None` if the port is stopped.
    created: Option<[u64; 2]>,
    /// The CSB, while it is completely mapped.
    csb: Option<Csb>,
    counters: Arc<Counters>,
}

impl Ptnet {
    /// Creates a device for this port.
    ///
    /// # Panics
    /// If the port has no ring or more than 64, or if rings of one direction differ in length.
    pub fn new(port: GuestPort) -> Self {
        let GuestPort { interface, rings, mac, memory_id, set_header_len } = port;
        let counts = rings.each_ref().map(|rings| rings.len() as u32);
        let slots = rings.each_ref().map(|rings| rings.first().map_or(0, |ring| ring.ring().slots()));
        let relays: Vec<Relay<PortRing>> =
            rings.into_iter().flatten().enumerate().map(|(entry, ring)| Relay::new(ring, entry)).collect();
        assert!((1..=64).contains(&relays.len()), "a port of {} rings", relays.len());
        let expected = [0, 1].map(|way| std::iter::repeat_n(slots[way], counts[way] as usize));
        assert!(
            relays.iter().map(|relay| relay.ring().ring().slots()).eq(expected.into_iter().flatten()),
            "rings of different lengths"
        );
        let identity =
            Identity { vendor: VENDOR, device: DEVICE, subsystem: (0x1af4, 0x1100), revision: 0, class: CLASS };
        let config = ConfigSpace::new(&identity)
            .register_bar(0, BAR)
            .register_bar(MSIX_BAR as usize, MSIX_BAR_SIZE)
            .power_management(0x40)
            .msix(0x50, relays.len() as u16, (MSIX_BAR, 0), (MSIX_BAR, PENDING));
        let vectors = vec![None; relays.len()];
        Self {
            config,
            counts,
            slots,
            interface,
            mac,
            memory_id,
            set_header_len,
            features: 0,
            header_len: 0,
            relays,
            dma: Default::default(),
            vectors,
            csb_at: Default::default(),
            status: Default::default(),
            created: Default::default(),
            csb: Default::default(),
            counters: Default::default(),
        }
    }

    /// Returns the device's counters.
    pub fn counters(&self) -> &Arc<Counters> {
        &self.counters
    }

    /// Returns whether the device serves a guest.
    pub fn is_serving(&self) -> bool {
        self.csb.is_some()
    }

    /// Synchronizes each ring once in both directions. Returns by how many slots the port's side has moved.
    pub fn sync_rings(&mut self) -> usize {
        let Some(csb) = &self.csb else { return 0 };
        let mut moved = 0;
        for (entry, relay) in self.relays.iter_mut().enumerate() {
            let Relayed { moved: has_moved, call, refused, lost } = relay.pass(csb);
            moved += has_moved as usize;
            if refused {
                count(&self.counters.invalid_positions);
            }
            if lost {
                count(&self.counters.peer_faults);
            }
            if call && let Some(signal) = &self.vectors[entry] {
                count(&self.counters.interrupts);
                signal.notify();
            }
        }
        moved
    }

    /// Prepares to sleep: enables kicks of the guest and wake-ups by the port's other side. Call
    /// [`sync_rings`](Self::sync_rings) once more before sleeping.
    pub fn arm(&mut self) {
        let Some(csb) = &self.csb else { return };
        self.relays.iter().for_each(|relay| relay.arm(csb));
    }

    /// Disables kicks and wake-ups after a sleep.
    pub fn disarm(&mut self) {
        let Some(csb) = &self.csb else { return };
        self.relays.iter().for_each(|relay| relay.disarm(csb));
    }

    fn command(&mut self, command: u32) {
        self.status = match command {
            CREATE => self.create(),
            DELETE => {
                // Pass on positions that the guest wrote before the command.
                self.sync_rings();
                self.stop();
                Ok(())
            }
            _ => Err(Errno::INVAL),
        }
        .map_or_else(|errno| errno.raw_os_error() as u32, |()| 0);
    }

    /// Starts to serve a guest's CSB, after a stop if the port is running.
    fn create(&mut self) -> Result<(), Errno> {
        self.stop();
        let addresses = self.csb_at.map(|[high, low]| u64::from(high) << 32 | u64::from(low));
        let csb = self.find(addresses).ok_or(Errno::FAULT)?;
        for relay in &mut self.relays {
            relay.begin(&csb).map_err(|_| Errno::IO)?;
        }
        count(&self.counters.creates);
        (self.created, self.csb) = (Some(addresses), Some(csb));
        Ok(())
    }

    /// Stops serving: from here on neither the CSB nor a ring is accessed. Positions that were passed on stay in
    /// effect.
    fn stop(&mut self) {
        (self.created, self.csb) = (None, None);
        self.relays.iter().for_each(Relay::quiesce);
    }

    /// Returns the CSB at these addresses, if all of it is mapped and writable.
    fn find(&self, addresses: [u64; 2]) -> Option<Csb> {
        let (len, hint) = (ENTRY * self.relays.len(), &mut LookupHint::default());
        let [guest, host] = addresses.map(|iova| self.dma.find(iova, len, Access::ReadWrite, hint));
        Csb::from_halves(guest?, host?, self.relays.len())
    }

    /// Looks the CSB up again after a change of the mapped memory.
    fn refresh_csb(&mut self) {
        let Some(addresses) = self.created else { return };
        self.csb = self.find(addresses);
        if self.csb.is_none() {
            self.relays.iter().for_each(Relay::quiesce);
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
            both([FEATURES, HEADER_LEN], [self.features, self.header_len]),
        ];
        pairs.into_iter().flatten().find_map(|(at, value)| (at == offset).then_some(value)).unwrap_or(0)
    }

    fn set_register(&mut self, offset: u64, value: u32) {
        if offset >= KICKS {
            // The server calls `sync_rings` after each message, which finds the reason.
            return count(&self.counters.kicks);
        }
        let csb = [CSB_GUEST, CSB_HOST];
        let word = csb.as_flattened().iter().position(|&at| at == offset);
        match word.and_then(|word| self.csb_at.as_flattened_mut().get_mut(word)) {
            Some(word) => *word = value,
            None if offset == CONTROL => self.command(value),
            None if offset == FEATURES => {
                self.features = if self.set_header_len.is_some() { value & VNET_HEADER } else { 0 };
            }
            // netmap's driver requests a header even without the feature, and uses what it reads back.
            None if offset == HEADER_LEN => {
                self.request_header(if self.features & VNET_HEADER != 0 { value } else { 0 })
            }
            None => {}
        }
    }

    /// Changes the length of the header, if it is another one and the port accepts it.
    fn request_header(&mut self, len: u32) {
        if len != self.header_len
            && let Some(set) = &mut self.set_header_len
            && set(len)
        {
            self.header_len = len;
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
            // The client emulates the table, and no vector is ever pending here.
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

    fn set_vector(&mut self, vector: u32, signal: Option<EventNotifier>) {
        // There may have been a reason for an interrupt before the vector was set.
        if let Some(signal) = signal.as_ref().filter(|_| self.is_serving()) {
            signal.notify();
        }
        self.vectors[vector as usize] = signal;
    }

    fn map(&mut self, iova: u64, memory: Memory, access: Access) -> Result<(), DmaMapError> {
        self.dma.insert(iova, memory, access)?;
        if self.csb.is_none() {
            self.refresh_csb();
        }
        Ok(())
    }

    fn unmap(&mut self, iova: u64, len: u64) -> Result<(), DmaMapError> {
        self.dma.remove(iova, len)?;
        self.refresh_csb();
        Ok(())
    }

    fn reset(&mut self) {
        self.config.reset();
        self.restart();
    }
}

impl Ptnet {
    fn restart(&mut self) {
        self.stop();
        self.request_header(0);
        (self.csb_at, self.status, self.features) = Default::default();
    }
}
