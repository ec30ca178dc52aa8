//! From a port address to a port.

use std::sync::Once;

use ringpass_bus::SysfsPci;
use ringpass_ixgbe::Ixgbe;
use ringpass_memory::{Addressing, Error as MemoryError, Mempool, MempoolConfig, PageSize, RegionConfig};
use ringpass_port::{Address, Error, PcapConfig, Port, PortConfig, ReplaySpeed};
use ringpass_ports::{Capture, Faults, Null, PacketSocket, Pcap, Tap};

use crate::cards;
use crate::model::Model;
use crate::options::Options;

/// Opens the port at an address.
pub fn open(address: &str, options: &Options) -> Result<Box<dyn Port>, Error> {
    let address: Address = address.parse()?;
    if is_card(&address) {
        return open_address(&address, &options.port(options.hugepages.unwrap_or(PageSize::Huge2M)), options);
    }
    on_pages(options, |pages| open_address(&address, &options.port(pages), options))
}

/// Tries huge pages first, unless the options say which: without enough of them, ordinary ones do, which is said.
pub fn on_pages<T>(options: &Options, mut open: impl FnMut(PageSize) -> Result<T, Error>) -> Result<T, Error> {
    static SAID: Once = Once::new();
    match open(options.hugepages.unwrap_or(PageSize::Huge2M)) {
        Err(Error::Memory(error)) if options.hugepages.is_none() => {
            SAID.call_once(|| eprintln!("ordinary pages under packets and rings: {error}"));
            open(PageSize::Ordinary)
        }
        result => result,
    }
}

/// Buffers for packets that this program makes and sends through the port at an address.
pub fn pool(address: &str, options: &Options) -> Result<Mempool, Error> {
    let buffers = options.txd + 1024;
    let pool = |pages, addressing| {
        let region = RegionConfig { pages, addressing, numa_node: None };
        Ok(Mempool::new(&MempoolConfig { buffers, region, ..Default::default() })?)
    };
    if is_card(&address.parse()?) {
        return pool(options.hugepages.unwrap_or(PageSize::Huge2M), Addressing::Physical);
    }
    on_pages(options, |pages| pool(pages, Addressing::Virtual))
}

/// Whether a real card lies behind an address.
fn is_card(address: &Address) -> bool {
    match address {
        Address::Pci(_) => true,
        Address::Capture(_, inner) | Address::Faults(_, inner) => is_card(inner),
        _ => false,
    }
}

fn open_address(address: &Address, config: &PortConfig, options: &Options) -> Result<Box<dyn Port>, Error> {
    Ok(match address {
        Address::Pci(pci) => Box::new(open_card(pci, config, options)?),
        Address::Model(model, wire) => {
            if let Address::Pcap(PcapConfig { input: Some(_), speed: ReplaySpeed::Max, .. }) = **wire {
                eprintln!("{address}: a card drops frames that come faster than they are taken; add speed=recorded");
            }
            let wire_config = PortConfig { queues: 1, ..*config };
            let wire = open_address(wire, &wire_config, options)?;
            Box::new(Model::open(&address.to_string(), model, wire, config, options.poll)?)
        }
        Address::Tap(name) => Box::new(Tap::open(name, config)?),
        Address::Packet(name) => Box::new(PacketSocket::open(name, config)?),
        Address::Pcap(pcap) => Box::new(Pcap::open(pcap, config)?),
        Address::Null => Box::new(Null::open(config)),
        Address::Capture(file, inner) => Box::new(Capture::wrap(open_address(inner, config, options)?, file)?),
        Address::Faults(faults, inner) => Box::new(Faults::wrap(open_address(inner, config, options)?, *faults)),
    })
}

/// A real card: refused if there is no driver for it, or if the kernel uses it and nobody said to take it over.
fn open_card(pci: &str, config: &PortConfig, options: &Options) -> Result<Ixgbe, Error> {
    let id = SysfsPci::identify(pci)?;
    if ringpass_ixgbe::supports(id).is_none() {
        let what = cards::describe(pci, id);
        return Err(Error::Other(format!(
            "{pci}: no driver for this {what}; Ringpass drives 82599, X540 and X550 cards"
        )));
    }
    let taken =
        options.take_over.iter().any(|named| named.parse().is_ok_and(|named| Address::Pci(pci.into()) == named));
    if let Some(why) = cards::in_use(pci).filter(|_| !taken) {
        return Err(Error::Other(format!("{pci} is in use: {why}; to take it all the same: --take-over {pci}")));
    }
    if config.pages == PageSize::Ordinary {
        return Err(MemoryError::PhysicalOnOrdinaryPages.into());
    }
    Ixgbe::open(SysfsPci::open(pci)?, pci, config)
}
